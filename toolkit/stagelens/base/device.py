"""Chooses the device of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelens.base.errors import UsageError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str = "auto") -> torch.device:
    """Returns the device called `name`; `auto` is the accelerator if there is one, else the CPU."""
    import torch

    if name == "auto":
        available = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return available or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the device `meta` has shapes but no values
    except (RuntimeError, AssertionError, ImportError) as error:  # NotImplementedError is a RuntimeError
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used here ({reason}); give auto, cpu, cuda or mps") from None
    return device
