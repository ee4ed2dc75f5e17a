"""When a curve reaches a level."""

from __future__ import annotations

from typing import Any

import numpy as np


def first_crossing(
    steps: Any,
    values: Any,
    level: float,
    *,
    rising: bool | None = None,
    after: float = -np.inf,
    lasting: bool = False,
) -> float | None:
    """Returns the first step at which a curve reaches `level`, or None if it never does.

        >>> first_crossing([0, 10, 20], [4.0, 2.0, 0.0], level=1.0)
        15.0
        >>> first_crossing([0, 10, 20], [4.0, 2.0, 0.0], level=-1.0) is None
        True

    Between two points of the curve the crossing is interpolated along a straight line.

    Args:
        steps: steps or times, [point], increasing.
        values: the curve, [point]. A nan is ignored. Next to one, and at an infinity, the crossing is the point itself.
        level: a value equal to `level` has reached it.
        rising: True if the curve rises to the level, False if it falls to it. None takes the side of the first value.
        after: only crossings at this step or later count. If the curve is beyond the level at `after` already, the
            crossing is its first point from there on.
        lasting: True returns the step after which the curve stays beyond the level to its end.
    """
    steps, values = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    beyond = values - level if _rises(values, level, rising) else level - values  # [point], nan where unknown
    candidates = np.flatnonzero((beyond >= 0) & (steps >= after))
    short = np.flatnonzero(beyond < 0)
    if lasting and len(short):
        candidates = candidates[candidates > short[-1]]
    if not len(candidates):
        return None
    at = int(candidates[0])
    before = beyond[at - 1] if at else np.nan
    if not (np.isfinite(before) and before < 0 and np.isfinite(beyond[at])):
        return float(steps[at])
    part = before / (before - beyond[at])
    return max(after, float(steps[at - 1] + part * (steps[at] - steps[at - 1])))


def _rises(values: Any, level: float, rising: bool | None) -> bool:
    """Returns `rising`, or if it is None whether the first value that is not nan lies below `level`."""
    if rising is not None:
        return rising
    known = values[~np.isnan(values)]
    return bool(len(known) and known[0] < level)
