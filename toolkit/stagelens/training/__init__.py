"""training: from a plan to a finished run on disk, for one seed or several."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
