"""The rows of an activation or an output that belong to the positions that a task scores."""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens.recording import rows_of as rows_of


def as_index(rows: list[int], device: torch.device) -> slice | Tensor:
    """Returns `rows` as an index: a slice if they are consecutive, which avoids a copy."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
