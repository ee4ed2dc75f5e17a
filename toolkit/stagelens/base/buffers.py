"""Restores the buffers of a model after a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def untouched_buffers(model: nn.Module) -> Iterator[None]:
    """Restores every buffer of `model` after the block, whether it was changed in place or replaced.

    Models count batches or collect statistics in buffers. A measurement must not change them.
    """
    import torch

    found = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for module, name, buffer, values in found:
            module._buffers[name] = buffer
            if buffer is not None and values is not None and not torch.equal(buffer, values):
                with torch.no_grad():
                    buffer.copy_(values)
