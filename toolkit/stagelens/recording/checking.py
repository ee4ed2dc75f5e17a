"""Refuses models and batches on which nothing can be measured."""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens.base import UsageError
from stagelens.experiments import Batch, map_tensors


def check_measurable(device: torch.device, batch: Batch) -> None:
    """Raises UsageError if the model's parameters, on `device`, have no values, or if `batch` has no sequences."""
    if device.type == "meta":
        raise UsageError(
            "the model is on the device 'meta', where parameters have no values; "
            "load its weights before it is measured, or build it on 'cpu'"
        )
    shapes: list[torch.Size] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(tensor.shape)
        return tensor

    map_tensors(note, batch)
    if shapes and all(shape[:1] == (0,) for shape in shapes):
        raise UsageError(f"the batch has no sequences (shape {list(shapes[0])}); give at least one")
