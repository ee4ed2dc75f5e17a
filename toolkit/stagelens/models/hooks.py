"""Finds out if a model has hooks."""

from __future__ import annotations

from typing import Any

from torch.nn.modules.module import _has_any_global_hook

from stagelens.models.lens import HookPoint


def watched(model: Any, itself: bool = False) -> bool:
    """Returns True if a part of `model` has a forward or backward hook, or a replaced `forward`.

    With `itself` the model counts as a part. A hook point of a class other than TransformerLens' HookPoint counts as a
    hook, since it may change the activation.
    """
    if _has_any_global_hook() or (itself and _is_watched(model)):  # type: ignore[no-untyped-call]
        return True
    parts = [model._modules]
    while parts:
        for name, part in parts.pop().items():
            if (part is not None and _is_watched(part)) or (name.startswith("hook_") and type(part) is not HookPoint):
                return True
            if part is not None and part._modules:
                parts.append(part._modules)
    return False


def _is_watched(part: Any) -> Any:
    own = part.__dict__
    return (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
    )
