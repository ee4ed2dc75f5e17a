"""Which device a run uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelens.base.errors import UsageError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str = "auto") -> torch.device:
    """The device called `name`; `auto` is the accelerator where there is one, else the CPU."""
    import torch

    if name == "auto":
        available = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return available or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device that only knows shapes (meta) has no numbers to give
    except (RuntimeError, AssertionError, ImportError) as error:  # NotImplementedError is a RuntimeError
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used here ({reason}); give auto, cpu, cuda or mps") from None
    return device
