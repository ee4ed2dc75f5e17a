"""base: errors, files and safe paths, JSON documents, seeds and devices. It imports no other room."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
