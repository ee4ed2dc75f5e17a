"""One move or two? What two moves with a plateau between them explain that a single move does not.

As in `pieces`, u [point] is the position on the axis and v [point] the value; s [point] is its standard error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Points = tuple[Array, Array, Array]  # u, v, s

# Rises from 0 to 1, steepest at 0, of which 10 to 90 % take about `LENGTH`: alike at both ends, slow at the end, slow
# at the beginning, abrupt at the beginning, abrupt at the end, straight.
LENGTH = 3.0
RISES: tuple[Callable[[Array], Array], ...] = (
    lambda x: 1 / (1 + np.exp(-x)),
    lambda x: np.exp(-np.exp(-x)),
    lambda x: -np.expm1(-np.exp(x)),
    lambda x: np.maximum(-np.expm1(-x), 0.0),
    lambda x: np.exp(np.minimum(x, 0.0)),
    lambda x: np.clip(x / 4 + 0.5, 0.0, 1.0),
)
CENTRES, WIDTHS, FINER = 13, 7, 2  # a coarse grid, then finer ones around the best of it
LIKELY = 3  # shapes that are looked at more finely
MIDDLE, FLANK = 40, 10  # points within the moves, and on the plateau on either side


def second_gain(
    u: Array, v: Array, s: Array, spans: list[tuple[int, int]], ats: Array, drops: Array, longest: float
) -> float:
    """What the second of two moves explains, in chi square. spans: the plateaus before, between and after them.

    ats, drops: [2], where the moves are and how far they go. Two of them take less than half of the distance between
    them each, a single one at most `longest`.
    """
    (first, before), (start, end), (after, last) = spans
    gap, sizes = ats[1] - ats[0], np.abs(drops)
    middle = int(np.searchsorted(u, (u[start] + u[end - 1]) / 2)) + 1
    move = max(before - 2, first), min(after + 2, last)

    def misfit(start: int, end: int, around: tuple[float, float], longest: float, drift: float) -> float:
        points = _thinned(u, v, s, (start, end), (max(move[0], start), min(move[1], end)))
        return _misfit(points, around, longest, drift) if len(points[0]) > 2 else 0.0

    one = misfit(first, last, (ats[0] - gap / 2, ats[1] + gap / 2), longest, sizes.sum() / 10)
    two = [
        misfit(a, b, (at - 0.3 * gap, at + 0.3 * gap), 0.45 * gap, sizes.min() / 10)
        for a, b, at in ((first, middle, ats[0]), (middle, last, ats[1]))
    ]
    return one - sum(two)


def _thinned(u: Array, v: Array, s: Array, span: tuple[int, int], move: tuple[int, int]) -> Points:
    """The points of a span, those beside the move averaged in blocks that grow with the distance from it."""
    (first, last), (start, end) = span, move
    away = np.linspace(0, 1, FLANK) ** 2
    within = np.linspace(start, end, min(end - start, MIDDLE) + 1)
    starts = np.unique(np.concatenate([start - (start - first) * away, within, end + (last - end) * away]).astype(int))
    starts = starts[starts < last]
    w = s[:last] ** -2
    total = np.add.reduceat(w, starts)
    return np.add.reduceat(w * u[:last], starts) / total, np.add.reduceat(w * v[:last], starts) / total, total**-0.5


def _misfit(points: Points, around: tuple[float, float], longest: float, drift: float) -> float:
    """Chi square of the best single move with its centre `around` there; its plateaus slope by about `drift`."""
    u, v, s = points
    # One more point, the last, holds the slope of the plateaus near zero.
    free = np.stack([np.append(1 / s, 0.0), np.append((u - u[0]) / (u[-1] - u[0]) / s, 1 / drift)], axis=1)
    q = np.linalg.qr(free)[0]
    target = np.append(v / s, 0.0)
    target, q = target - q @ (q.T @ target), q[:-1]

    def gains(rise: Callable[[Array], Array], centres: Array, widths: Array) -> Array:
        """What a move explains, [centre, width]."""
        r = rise(np.clip((u - centres[:, None, None]) / widths[:, None], -40.0, 40.0)) / s
        norm = np.sum(r * r, axis=-1) - np.sum((r @ q) ** 2, axis=-1)
        return np.asarray((r @ target[:-1]) ** 2 / np.maximum(norm, 1e-9))

    centres, widths = np.linspace(*around, CENTRES), np.geomspace(longest / 40, longest, WIDTHS) / LENGTH
    coarse = [gains(rise, centres, widths) for rise in RISES]
    best = 0.0
    for shape in np.argsort([-gain.max() for gain in coarse])[:LIKELY]:
        gain, c, w = coarse[shape], centres, widths
        for finer in range(1, FINER + 1):
            best = max(best, float(gain.max()))
            i, j = np.unravel_index(np.argmax(gain), gain.shape)
            c = c[i] + (centres[1] - centres[0]) * np.linspace(-0.75, 0.75, 7) / 4 ** (finer - 1)
            w = w[j] * (widths[1] / widths[0]) ** (np.linspace(-0.75, 0.75, 7) / 4 ** (finer - 1))
            w = np.minimum(w, widths[-1])
            gain = gains(RISES[shape], c, w)
        best = max(best, float(gain.max()))
    return float(target @ target) - best
