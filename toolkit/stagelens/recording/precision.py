"""Probes compute in float32 or better, whatever the precision of the model and of the training around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

DEVICES = ("cpu", "cuda", "xpu", "mps")
Autocast = dict[str, torch.dtype]  # device type -> the dtype that `torch.autocast` computes in there

_switched_off: ContextVar[Autocast] = ContextVar("switched_off", default={})  # noqa: B039  never written into


def wide(tensor: Tensor) -> Tensor:
    """Returns `tensor` in at least float32: sums of many bfloat16 or float16 numbers lose digits."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@contextmanager
def full_precision() -> Iterator[None]:
    """Switches `torch.autocast` off: it would compute products of float32 tensors in bfloat16 or float16."""
    active = {device: torch.get_autocast_dtype(device) for device in DEVICES if torch.is_autocast_enabled(device)}
    with _autocast(active, enabled=False, switched_off=active or _switched_off.get()):
        yield


@contextmanager
def as_trained() -> Iterator[None]:
    """Switches autocast on again inside `full_precision`, so that a pass of the model computes as the training does."""
    with _autocast(_switched_off.get(), enabled=True, switched_off={}):
        yield


@contextmanager
def _autocast(states: Autocast, enabled: bool, switched_off: Autocast) -> Iterator[None]:
    token = _switched_off.set(switched_off)
    try:
        with ExitStack() as stack:
            for device, dtype in states.items():
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            yield
    finally:
        _switched_off.reset(token)
