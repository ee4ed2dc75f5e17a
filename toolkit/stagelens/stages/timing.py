"""When the moves of a curve start, are steepest and end: read from the curve's own points, not from fitted pieces.

As in `pieces`, u [point] is the position on the axis and v [point] the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagelens.stages.intervals import time_margin
from stagelens.stages.moves import Moves
from stagelens.stages.pieces import Array

FINENESS = 2000  # positions at which the curve through the points of a move is evaluated, at least
SHORTEST = 1.05  # times the shortest stretch that does half of a move: the mean of all stretches up to it is its time


@dataclass(frozen=True)
class Time:
    """Positions of a move on the axis."""

    start: float  # 10% are done; or the curve's beginning, if it begins within the move
    at: float  # the steepest point
    end: float  # 90% are done; or the curve's end
    low: float  # 95% confidence interval of `at`
    high: float


def times(found: Moves, u: Array, v: Array) -> list[Time]:
    """When each move happens, read from all points u, v of the curve between the middles of its two plateaus."""
    result = []
    middles = [(a + b) // 2 for a, b in found.spans]
    for i, half in enumerate(found.halves):
        inside = slice(middles[i], middles[i + 1] + 1)
        done = (found.levels[i] - v[inside]) / (found.levels[i] - found.levels[i + 1])
        start, at, end = crossings(u[inside], done) or (found.starts[i], u[half], found.ends[i])
        start, end = (
            (0.0 if found.cut[0] and i == 0 else start),
            (1.0 if found.cut[1] and i == len(middles) - 2 else end),
        )
        noise = float(found.found.wander[half] / abs(found.drops[i]))
        spacing = (u[min(half + 1, len(u) - 1)] - u[max(half - 1, 0)]) / 2
        margin = time_margin(noise, end - start, float(spacing))
        result.append(Time(start, at, end, max(at - margin, 0.0), min(at + margin, 1.0)))
    return result


def crossings(u: Array, done: Array) -> tuple[float, float, float] | None:
    """Returns where a move is 10% done, steepest, and 90% done; None if its points never get from 10 to 90%.

    done [point]: the fraction of the move that is done, with noise. Isotonic regression, the best fit that never goes
    back, removes the noise. It leaves points without noise as they are, so nothing is smoothed away there.
    """
    from scipy.interpolate import Akima1DInterpolator
    from scipy.optimize import isotonic_regression

    if len(u) < 3:
        return None
    rising = isotonic_regression(done).x
    if rising[0] > 0.1 or rising[-1] < 0.9:
        return None
    first, last = np.searchsorted(rising, 0.1, "right") - 1, np.searchsorted(rising, 0.9)
    parts = int(np.ceil(FINENESS / (last - first)))
    fine = np.interp(np.linspace(first, last, parts * (last - first) + 1), np.arange(len(u)), u)
    curve = np.maximum.accumulate(Akima1DInterpolator(u, rising)(fine))
    when = np.interp(np.linspace(0.1, 0.9, 81), curve, fine)
    lengths, middles = when[40:] - when[:41], (when[40:] + when[:41]) / 2
    steepest = np.mean(middles[lengths <= SHORTEST * lengths.min()])  # on a straight ramp many are equally short
    return float(when[0]), float(steepest), float(when[-1])
