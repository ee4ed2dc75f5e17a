"""When the moves of a curve start, are steepest and end: read from the curve's own points, not from fitted pieces.

As in `_changepoints`, u [point] is the place on the axis and v [point] the value.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stagelens.stages.changepoints import Array, Moves

FINENESS = 2000  # places at which the curve through the points of a move is evaluated, at least


def timed(found: Moves, u: Array, v: Array) -> Moves:
    """The same moves with `starts`, `ats` and `ends` read from all points u, v of the curve.

    Each move is looked for between the middles of the plateaus on its two sides. The beginning of a move that the
    curve's first point cuts, and the end of one that its last point cuts, stay there.
    """
    middles = (np.append(0.0, found.ends) + np.append(found.starts, 1.0)) / 2
    starts, ats, ends = found.starts.copy(), found.ats.copy(), found.ends.copy()
    for i, (before, after) in enumerate(zip(found.levels[:-1], found.levels[1:], strict=True)):
        inside = (u >= middles[i]) & (u <= middles[i + 1])
        places = crossings(u[inside], (before - v[inside]) / (before - after))
        if places is not None:
            starts[i], ats[i], ends[i] = places
    if found.cut[0] and len(starts):
        starts[0] = 0.0
    if found.cut[1] and len(ends):
        ends[-1] = 1.0
    return replace(found, starts=starts, ats=ats, ends=ends)


def crossings(u: Array, done: Array) -> tuple[float, float, float] | None:
    """Places where a move is 10 % done, steepest, and 90 % done; None if its points never get from 10 to 90 %.

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
    steepest = np.mean(middles[lengths <= 1.05 * lengths.min()])  # on a straight ramp many are the shortest
    return float(when[0]), float(steepest), float(when[-1])
