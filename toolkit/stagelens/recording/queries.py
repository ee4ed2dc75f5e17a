"""The queries of an attention pattern that probes read: those that are scored, or a sample of them in long contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stagelens.recording.errors import DoesNotApply

LONG = 32  # queries of a block of a long pattern
AT_ONCE = 2**20  # weights of a block of any other
STEP = 16  # queries of a step


@dataclass(frozen=True)
class Queries:
    """The queries of a pattern [batch, head, query, key] that are read, and the keys that they see.

    The dimension `sequence` has size 1 if all sequences are read at the same queries, else the size of the batch.
    """

    rows: slice | Tensor  # rows of the pattern: a slice or int [query]; int [sequence, query] if they are sampled
    position: Tensor  # int [sequence, query]
    visible: Tensor  # bool [sequence, query, key]; a block leaves out the last keys if none of its queries sees them
    n_all: int  # queries of the whole pattern
    n_key: int  # keys of the whole pattern
    lowest_lag: int  # the smallest query - key: 0, or negative if queries see keys to their right

    @property
    def sampled(self) -> bool:
        """True if each sequence is read at queries of its own."""
        return isinstance(self.rows, Tensor) and self.rows.ndim == 2

    @cached_property
    def count(self) -> Tensor:
        """The number of keys that each query sees, int [sequence, query]."""
        return self.visible.sum(-1)

    @cached_property
    def n_seen(self) -> list[int]:
        """The number of keys up to the last one that each step of 16 queries sees."""
        return [_n_seen(visible) for visible in torch.split(self.visible, STEP, dim=1)]

    def steps(self, pattern: Tensor) -> list[Tensor]:
        """Returns `pattern` [..., query, key] in steps of 16 queries, without the last keys if none of them sees them.

        What is summed over the keys of a causal pattern is cheaper in steps, because they leave out most masked keys.
        """
        return [step[..., :n] for step, n in zip(torch.split(pattern, STEP, dim=-2), self.n_seen, strict=True)]

    def blocks(self, shape: Sequence[int]) -> list[Queries]:
        """Returns the queries in blocks of a pattern of `shape`, so that little of it is copied at once.

        Sampled queries are those of long patterns, which the fused forward path makes in these blocks.
        """
        n_batch, n_head, _, n_key = shape
        at_once = LONG if self.sampled else max(LONG, AT_ONCE // max(1, n_batch * n_head * n_key))
        n = self.position.shape[1]
        if n <= at_once:
            return [self]
        rows = range(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        parts = []
        for start in range(0, n, at_once):
            part = slice(start, start + at_once)
            own = rows[part] if isinstance(rows, range) else rows[..., part]
            visible = self.visible[:, part]
            parts.append(
                replace(
                    self,
                    rows=slice(own.start, own.stop) if isinstance(own, range) else own,
                    position=self.position[:, part],
                    visible=visible[..., : _n_seen(visible)],
                )
            )
        return parts

    def of(self, pattern: Tensor) -> Tensor:
        """Returns the rows of `pattern` [sequence, ..., query, key] that are read, [sequence, ..., query, key]."""
        pattern = pattern[..., : self.visible.shape[-1]]
        if not self.sampled:
            return pattern[..., self.rows, :]
        assert isinstance(self.rows, Tensor)
        index = self.rows.view(len(self.rows), *(1,) * (pattern.ndim - 3), -1, 1)
        return pattern.gather(-2, index.expand(*pattern.shape[:-2], -1, pattern.shape[-1]))


def _n_seen(visible: Tensor) -> int:
    """Returns the number of keys up to the last one that a query of `visible` [..., key] sees."""
    return int(visible.flatten(0, -2).any(0).nonzero().max()) + 1


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


def read_queries(rows: Sequence[int], visible: Tensor, n_batch: int, at_most: int | None) -> Queries:
    """Returns the queries to read of a pattern with `visible` keys [query, key]: its `rows`, or `at_most` of them.

    If there are more, each sequence has its own random sample: one query of each of `at_most` parts of equal length.
    So the spread between sequences contains what the sampling adds. The sample depends on the sizes alone.
    """
    n_query, n_key = visible.shape
    chosen = torch.tensor(rows, device=visible.device)
    if at_most is not None and len(rows) > at_most:
        uniform = np.random.default_rng(0).random((n_batch, at_most))
        index = ((np.arange(at_most) + uniform) * len(rows) / at_most).astype(np.int64)  # [sequence, query]
        chosen = chosen[torch.from_numpy(index).to(visible.device)]
    rows_2d = chosen if chosen.ndim == 2 else chosen[None]
    position = rows_2d + n_key - n_query  # the last query is at the last key
    seen = visible[rows_2d]
    consecutive = chosen.ndim == 1 and list(rows) == list(range(rows[0], rows[-1] + 1))
    lags = position[..., None] - torch.arange(n_key, device=visible.device)
    lowest = min(0, int(lags.masked_fill(~seen, 0).min()))
    return Queries(slice(rows[0], rows[-1] + 1) if consecutive else chosen, position, seen, n_query, n_key, lowest)
