"""figures: what every run gets, in one style: loss and theory, heads over groups, probes, attention maps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
