"""Reading: functions are given activations of a forward pass, which they must not change.

Hooks may replace an activation, so a model with hooks computes every activation. Functions that only read can stay on
the fused forward path. It gives them queries, keys and patterns, and computes a pattern only at the rows that are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Hook = tuple[str, Callable[..., None]]  # the name of a hook point, and a function of (activation, hook=)
Blocks = Sequence[tuple[Tensor, int]]  # rows of a pattern, int [batch, row], and how many of the keys are read there
Rows = Callable[[str, Sequence[int], torch.device], Blocks | None]  # (hook point, shape, device) -> what is read of it
READABLE = re.compile(r"blocks\.\d+\.attn\.hook_(q|k|pattern)")


@dataclass(frozen=True)
class Readers:
    """Functions that read activations, by the names of their hook points, and the rows of patterns that they read."""

    see: Mapping[str, Callable[..., None]]
    rows: Rows | None = None
    left: set[str] | None = None  # the hook points after which the pass ends; None: it does not end early
    prefix: str = ""  # of the names that `show` and `wants` are given

    def of_layer(self, layer: int) -> Readers:
        """Returns the readers of the attention of one layer."""
        return replace(self, prefix=f"blocks.{layer}.attn.hook_") if self.see else self

    def wants(self, name: str) -> bool:
        """Returns True if a function reads at `name`."""
        return self.prefix + name in self.see

    def show(self, name: str, activation: Tensor, last: bool = True) -> None:
        """Shows `activation`, or the `last` block of it or another, to the function at `name`, if there is one."""
        if self.wants(name):
            self.see[self.prefix + name](activation, hook=None)
            if last and self.left is not None:
                self.left.discard(self.prefix + name)
                if not self.left:
                    raise _Enough

    def rows_of(self, name: str, shape: Sequence[int], device: torch.device) -> Blocks | None:
        """Returns the blocks in which a pattern of `shape` is read; None for all of it at once."""
        return None if self.rows is None else self.rows(self.prefix + name, shape, device)


class _Enough(Exception):
    """Ends a pass when every hook has read its activation."""


NO_READERS = Readers({})


@contextmanager
def reading(model: Any, hooks: Sequence[Hook], rows: Rows | None = None, stop: bool = False) -> Iterator[None]:
    """Calls `hooks` with the activations of each pass of `model` in the block. The hooks must not change them.

    `rows` returns the blocks of a pattern that are needed, which are shown one after the other, or None for all of it.
    With `stop` the block ends as soon as every hook has read, and the pass has no output. Only the fused forward path
    supports `rows` and `stop`; on every other path, and for other hook points, this is `model.hooks`.
    """
    names = [name for name, _ in hooks]
    if (
        not getattr(model, "shows_readers", False)
        or not all(map(READABLE.fullmatch, names))
        or len({*names}) < len(names)
    ):
        with model.hooks(fwd_hooks=list(hooks)):
            yield
        return
    outer = model.readers
    model.readers = Readers(dict(hooks), rows, {*names} if stop else None)
    try:
        yield
    except _Enough:
        pass
    finally:
        model.readers = outer
