"""sweeps: many runs over a grid of configs and seeds, and the power laws fitted to them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
