"""stagelens watches circuits form: probes, stages and claims for transformers in training."""

from typing import Any

import lazy_loader

from stagelens.base import moved

# The public names are declared in `__init__.pyi` and imported on first use: `import stagelens` brings in no torch.
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
moved.install()


def _find(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("stagelens")
    return _public(name)


__getattr__ = moved.with_old_names(__name__, _find)
