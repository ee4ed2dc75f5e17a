"""TransformerLens: the names that versions 3 and 4 share, and the error for those that version 4 removed.

All other code imports these names from here, so that only this module depends on the installed version.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from transformer_lens import (
    HookedRootModule as HookedRootModule,  # TransformerLens' base class of models with hook points
)
from transformer_lens.hook_points import (
    HookPoint as HookPoint,  # TransformerLens' module through which an activation passes, so that hooks can see it
)

REMOVED = (
    "this needs a HookedTransformer, which TransformerLens 4 removed; pip install 'transformer-lens<4', or use a "
    "Hugging Face or plain PyTorch model"
)


def has_hooked_transformer() -> bool:
    """Returns True if the installed TransformerLens has HookedTransformer, which version 4 removed."""
    return find_spec("transformer_lens.HookedTransformer") is not None


def fast(model: Any) -> Any:
    """Returns `model` itself, changed to train at the speed of plain PyTorch while it has no hooks.

        model = sl.fast(HookedTransformer(cfg))

    Parameters, hooks, caches and copies are as before. A HookedTransformer with a config that is not covered (rotary
    positions, gated MLPs, ...) stays as it is and a `SlowForward` warning gives the reason. Any other model is returned
    unchanged.
    """
    if not has_hooked_transformer():
        return model
    from stagelens.models.transformer import accelerated

    return accelerated(model)
