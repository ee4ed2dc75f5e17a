"""recording: probes, what they see of a model, and the recorder that runs them in one shared pass."""

import lazy_loader

from stagelens.base.moved import with_old_names

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(__name__, _public)
