"""Which readings move in a transition of the whole model: by how much, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagelens.stages.pieces import Array, Indices
from stagelens.stages.together import Together

LEAST_WANDER = 0.02  # of its range: a reading wanders by this much, however smooth it is
SHORTEST = 0.1  # of the points: a plateau's level and wander are read from this many at least


@dataclass(frozen=True)
class Levels:
    """`levels` [plateau, number] of all numbers, and the `wander` [number] around them: their standard deviation."""

    spans: tuple[tuple[int, int], ...]  # [plateau], the first point and the one after the last
    levels: Array
    wander: Array

    @property
    def strengths(self) -> Array:
        """How far each number moves from plateau to plateau in units of its wander, [transition, number]."""
        return np.asarray(np.abs(np.diff(self.levels, axis=0)) / self.wander)


def levels_of(u: Array, values: Array, groups: Sequence[Together]) -> Levels:
    """Returns the levels of `values` [point, number] on the plateaus between `groups`; u [point] is the axis."""
    n, least = len(u), max(3, int(SHORTEST * len(u)))
    starts = [0, *(int(np.searchsorted(u, group.end)) for group in groups)]
    ends = [*(int(np.searchsorted(u, group.start, "right")) for group in groups), n]
    spans = tuple(_at_least(start, end, least, n) for start, end in zip(starts, ends, strict=True))
    levels = np.array([np.median(values[a:b], axis=0) for a, b in spans])
    residuals = np.concatenate([values[a:b] - level for (a, b), level in zip(spans, levels, strict=True)])
    wander = np.sqrt(np.mean(residuals**2, axis=0))
    return Levels(spans, levels, np.maximum(wander, LEAST_WANDER * np.ptp(values, axis=0)))


def noise_range(numbers: int, points: int) -> float:
    """Returns the range that noise of standard deviation 1 covers in so many numbers and points.

    The universal threshold of Donoho and Johnstone (1994), sqrt(2 log n), on either side.
    """
    return float(2 * np.sqrt(2 * np.log(max(numbers * points, 2))))


def half_done(u: Array, values: Array, found: Levels, transition: int, number: int) -> float:
    """Returns the position on the axis at which a number has done half of its move.

    Isotonic regression, the best fit that never goes back, removes the noise.
    """
    from scipy.optimize import isotonic_regression

    before, after = found.spans[transition], found.spans[transition + 1]
    inside = slice((before[0] + before[1]) // 2, max((after[0] + after[1] + 1) // 2, (before[0] + before[1]) // 2 + 2))
    first, last = found.levels[transition, number], found.levels[transition + 1, number]
    done = isotonic_regression((values[inside, number] - first) / (last - first)).x
    points: Indices = np.flatnonzero(done >= 0.5)
    own = u[inside]
    if not len(points) or points[0] == 0:
        return float(own[0 if len(points) else -1])
    i = int(points[0])
    return float(np.interp(0.5, done[i - 1 : i + 1], own[i - 1 : i + 1]))


def _at_least(start: int, end: int, least: int, n: int) -> tuple[int, int]:
    """Returns the span, made as long as `least` around its middle if it is shorter."""
    least = min(least, n)
    if end - start >= least:
        return start, end
    start = int(np.clip((start + end - least) // 2, 0, n - least))
    return start, start + least
