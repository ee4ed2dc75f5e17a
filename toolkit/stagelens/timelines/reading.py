"""A reading: a small labelled array, what a probe returns."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


ERROR = "_error"  # ends the name of a reading's standard error
CHANCE = "_chance"  # ends the name of a reading's chance level
COMPANIONS = (ERROR, CHANCE)  # `score_error` is the standard error of `score`; they are drawn with it, not alone


def is_companion(name: str, names: Container[str]) -> bool:
    """True if `name` is the standard error or the chance level of one of `names`."""
    return any(name.endswith(end) and name.removesuffix(end) in names for end in COMPANIONS)


@dataclass(frozen=True)
class ReadingInfo:
    """What a reading means: one line, its dims, unit, smallest and largest value, and chance level.

        described = {"score": ReadingInfo("attention to the previous token", ("layer", "head"), "fraction", 0, 1)}

    A dim that depends on the task is written `group|lag`. `chance` is what a model that has learned nothing scores: a
    number in words, or empty if there is none.
    """

    meaning: str
    dims: tuple[str, ...] = ()
    unit: str = ""
    low: float = -inf
    high: float = inf
    chance: str = ""

    @property
    def range(self) -> str:
        """The smallest and the largest value, in words."""
        if self.low > -inf and self.high < inf:
            return f"{self.low:g} to {self.high:g}"
        return f"at least {self.low:g}" if self.low > -inf else f"at most {self.high:g}" if self.high < inf else "any"


def described_reading(name: str, described: Mapping[str, ReadingInfo]) -> ReadingInfo | None:
    """Returns what `described` has under `name`. A standard error or a chance level follows from its reading."""
    if name in described:
        return described[name]
    of = described.get(name.removesuffix(ERROR)) if name.endswith(ERROR) else None
    if of is not None:
        return ReadingInfo(f"standard error of {name.removesuffix(ERROR)}", of.dims, of.unit, 0)
    of = described.get(name.removesuffix(CHANCE)) if name.endswith(CHANCE) else None
    if of is not None:
        return ReadingInfo(f"chance level of {name.removesuffix(CHANCE)}", of.dims, of.unit, of.low, of.high)
    return None


@dataclass(frozen=True)
class Reading:
    """`values` with one name per dimension. `labels` names the codes 0, 1, ... of a categorical reading."""

    name: str
    values: torch.Tensor | NDArray[Any] | float
    dims: tuple[str, ...] = ()
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    def array(self) -> NDArray[np.float64]:
        """Returns the values as float64, with one axis per dim."""
        import numpy as np

        values = self.values
        if hasattr(values, "detach"):
            values = values.detach().to("cpu", dtype=_float64()).numpy()
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != len(self.dims):
            raise ValueError(f"reading {self.name!r} has shape {array.shape} but dims {self.dims}")
        for dim, labels in self.coords.items():
            if dim not in self.dims or len(labels) != array.shape[self.dims.index(dim)]:
                raise ValueError(f"reading {self.name!r} of shape {array.shape}: coords of {dim!r} do not fit")
            if len(set(labels)) < len(labels):
                raise ValueError(f"reading {self.name!r}: coords of {dim!r} name one place twice, {list(labels)}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"reading {self.name!r}: labels name two codes alike, {list(self.labels)}")
        return array

    def scalars(self) -> dict[str, float]:
        """Returns each number under its own name, for tools without dims: `sparsity` -> `sparsity/layer 0/head 1`."""
        from itertools import product

        array = self.array()
        labels = [
            [f"{dim} {label}" for label in self.coords.get(dim, range(size))]
            for dim, size in zip(self.dims, array.shape, strict=True)
        ]
        names = ("/".join((self.name, *place)) for place in product(*labels))
        return dict(zip(names, array.ravel().tolist(), strict=True))


def _float64() -> torch.dtype:
    import torch

    return torch.float64
