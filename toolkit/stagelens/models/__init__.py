"""models: HookedTransformers to train from scratch, their fused forward path, and configs of toy models."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
