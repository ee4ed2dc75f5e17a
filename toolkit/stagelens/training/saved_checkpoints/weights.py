"""Files of weights: reading them without running code, and what identifies their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stagelens.base import EnvironmentFault, UsageError
from stagelens.runs import check_size

PARTS = ("embed.", "pos_embed.", "blocks.", "ln_final.", "unembed.")  # of a HookedTransformer
CONSTANTS = (".mask", ".IGNORE", ".rotary_sin", ".rotary_cos")  # which some versions save with the weights


def load_tensors(path: Path) -> Any:
    """Returns what a file of safetensors or `torch.save` holds. It is read with weights only, so it runs no code."""
    try:
        check_size(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise unreadable(path, error) from None


def load_weights(path: Path) -> dict[str, Tensor]:
    """Returns the state dict in `path`."""
    loaded = load_tensors(path)
    for key in ("model", "state_dict", "model_state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UsageError(f"{path} holds no state dict; expected names and tensors")
    return loaded


def unreadable(path: Any, error: Exception) -> EnvironmentFault:
    """Returns the error for a checkpoint that a library cannot read."""
    reason = " ".join(str(error).split())[:150] or type(error).__name__
    return EnvironmentFault(f"checkpoint {path} cannot be read ({reason}); leave it out or restore it")


def misfit(weights: Mapping[str, Tensor], model: Any) -> str:
    """Returns the first of `weights` that differs from what `model` has; empty if all fit. Other tensors may exist."""
    ours = model.state_dict()
    for name in sorted(weights.keys() & ours.keys()):
        if weights[name].shape != ours[name].shape:
            return f"{name!r} has another shape, {list(weights[name].shape)} and not {list(ours[name].shape)}"
    for name, _ in model.named_parameters():
        if name not in weights:
            return f"{name!r} is missing"
    for name in sorted(weights.keys() - ours.keys()):
        if name.startswith(PARTS) and not name.endswith(CONSTANTS):
            return f"{name!r} is one too many"
    return ""


def digest_of(model: nn.Module) -> str:
    """Returns a digest of the names and values of all parameters."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        numbers: Any = parameter.detach().cpu().contiguous().view(torch.uint8).numpy()
        digest.update(numbers)
    return digest.hexdigest()
