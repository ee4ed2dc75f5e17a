"""The rows of an activation or an output that belong to the positions that a task scores."""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens.recording import DoesNotApply


def rows_of(queries: slice, n_here: int, n_all: int | None, what: str) -> list[int]:
    """Returns the rows of a tensor with `n_here` positions that are at the positions `queries` of `n_all` inputs.

    The tensor has the last `n_here` of all positions, as in a model with fewer queries than keys. If `n_all` is None,
    it has all. Raises DoesNotApply if none of the positions is among them; `what` names the tensor in the error.
    """
    n_all = n_here if n_all is None else max(n_all, n_here)
    first = n_all - n_here
    rows = [t - first for t in range(n_all)[queries] if t >= first]
    if not rows:
        raise DoesNotApply(f"{what} has the last {n_here} of {n_all} positions, and the task scores none of them")
    return rows


def as_index(rows: list[int], device: torch.device) -> slice | Tensor:
    """Returns `rows` as an index: a slice if they are consecutive, which avoids a copy."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
