"""Which rows of an activation or an output are at the positions that a task scores."""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens.recording import DoesNotApply


def rows_of(queries: slice, n_here: int, n_all: int | None, what: str) -> list[int]:
    """The rows, of a tensor with `n_here` positions, that are at the positions `queries` of all `n_all` inputs.

    The tensor's positions are the last of all, as those of a model with fewer queries than keys. If `n_all` is not
    known, they are all. Raises DoesNotApply if no row of `what` is among the positions.
    """
    n_all = n_here if n_all is None else max(n_all, n_here)
    first = n_all - n_here
    rows = [t - first for t in range(n_all)[queries] if t >= first]
    if not rows:
        raise DoesNotApply(f"{what} has the last {n_here} of {n_all} positions, and the task scores none of them")
    return rows


def as_index(rows: list[int], device: torch.device) -> slice | Tensor:
    """`rows` as an index; neighbours as a slice, which copies nothing."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
