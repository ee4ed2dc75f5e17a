"""recording: probes, what they see of a model, and the recorder that runs them in one shared pass."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
