"""Candidate plateaus of a curve: stretches that are flat compared with the moves on their two sides.

They are judged by slope alone, so no shape of the moves is assumed. A curve that slows down all the way (a decay) has
monotone slopes, and so no candidate before its fall.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from stagelens.stages.pieces import Array, Fit, Indices

Span = tuple[int, int]  # the first point, and the one after the last
LEAST_POINTS = 3  # on a plateau
CONTRAST = 0.45  # of the steepest slope on either side: a plateau is flatter
FLAT = 0.1  # of the steepest slope: the flatter part of a plateau, whose mean is its level
TURN = 0.15  # of the larger move next to it: a smaller move back is an overshoot of that move


def candidates(found: Fit, min_drop: float, significance: float) -> tuple[list[Span], list[bool]]:
    """Returns the candidate plateaus in order, and whether the curve begins, and ends, within a move."""
    u, knots, heights = found.u, found.knots, found.heights
    turns = _turns(heights, found.errors, min_drop, significance)
    spans: list[Span] = []
    cut = [False, False]
    for j, (a, b) in enumerate(pairwise(turns)):
        k, rise = _monotone(u, knots, heights, a, b)
        slopes = np.diff(rise) / np.diff(u[knots[k]])
        own = [(int(knots[k[x]]), int(knots[k[y + 1]]) + 1) for x, y in _valleys(slopes, np.diff(knots[k]))]
        if not (own and own[0][0] <= knots[a]):
            cut[0] |= j == 0
            own = own if j == 0 else [_summit(found, turns, j), *own]
        if not (own and own[-1][1] > knots[b]):
            cut[1] |= j == len(turns) - 2
            own = own if j == len(turns) - 2 else [*own, _summit(found, turns, j + 1)]
        if spans and own and spans[-1][1] >= own[0][0]:
            own[0] = spans.pop()[0], own[0][1]
        spans += own
    return spans, cut


def _turns(f: Array, errors: Array, min_drop: float, significance: float) -> list[int]:
    """Returns the knots at which the curve turns back, and its two ends. Too small moves are removed, least first."""
    signs = np.sign(np.diff(f))
    moving = np.flatnonzero(signs)
    turns = [0, *(int(j) for i, j in pairwise(moving) if signs[i] != signs[j]), len(f) - 1]
    while len(turns) > 2:
        size = np.abs(np.diff(f[turns]))
        least = np.maximum(min_drop, significance * np.hypot(errors[turns[1:]], errors[turns[:-1]]))
        beside = np.maximum(np.append(0, size[:-1]), np.append(size[1:], 0))
        score = size / np.maximum(least, TURN * beside)
        j = int(np.argmin(score))
        if score[j] >= 1:
            break
        del turns[max(j, 1) : min(j + 2, len(turns) - 1)]
    return turns


def _monotone(u: Array, knots: Indices, f: Array, a: int, b: int) -> tuple[Indices, Array]:
    """Returns the knots from turn a to turn b, and how far the curve has come at each.

    The gap between two pieces is not a plateau: it joins the flatter piece next to it.
    """
    k, sign = np.arange(a, b + 1), np.sign(f[b] - f[a])
    rise = np.clip(sign * f[k], sign * f[a], sign * f[b])
    rise = (np.maximum.accumulate(rise) + np.minimum.accumulate(rise[::-1])[::-1]) / 2
    while len(k) > 2:
        slopes = np.diff(rise) / np.diff(u[knots[k]])
        left, right = np.append(np.inf, slopes[:-1]), np.append(slopes[1:], np.inf)
        gaps = np.flatnonzero((np.diff(knots[k]) == 1) & (slopes <= left) & (slopes <= right))
        if len(gaps) == 0:
            break
        i = int(gaps[0])
        drop = i if i > 0 and left[i] <= right[i] else min(i + 1, len(k) - 2)
        k, rise = np.delete(k, drop), np.delete(rise, drop)
    return k, rise


def _valleys(slopes: Array, counts: Indices) -> list[tuple[int, int]]:
    """Returns the first and last element of each plateau of a monotone run.

    While a candidate is not flat enough, the least flat one goes.

    slopes: [element]; counts: [element], their points.
    """
    n = len(slopes)
    before, after = np.append(np.inf, slopes[:-1]), np.append(slopes[1:], np.inf)
    lows = [int(i) for i in np.flatnonzero((slopes < before) & (slopes <= after))] if n > 1 else []

    def around(j: int, most: float) -> tuple[float, int, int]:
        """How steep candidate j is compared with its neighbours; and the elements around it that are below `most`."""
        i, low, high = lows[j], (lows[j - 1] if j else -1), (lows[j + 1] if j + 1 < len(lows) else n)
        sides = np.max(slopes[low + 1 : i], initial=0.0), np.max(slopes[i + 1 : high], initial=0.0)
        left, right = (float(x) if x > slopes[i] else np.inf for x in sides)
        ratio = np.maximum(slopes / left, slopes / right)
        if left == right == np.inf:
            return np.inf, i, i
        return float(ratio[i]), *_grown(i, low, high, lambda k: bool(ratio[k] < most))

    def score(j: int) -> float:
        ratio, a, b = around(j, CONTRAST)
        return ratio if np.sum(counts[a : b + 1]) + 1 >= LEAST_POINTS else np.inf

    while lows:
        scores = [score(j) for j in range(len(lows))]
        if max(scores) <= CONTRAST:
            break
        del lows[int(np.argmax(scores))]
    spans = []
    for j in range(len(lows)):
        _, a, b = around(j, FLAT)
        if np.sum(counts[a : b + 1]) + 1 < LEAST_POINTS:
            _, a, b = around(j, CONTRAST)
        spans.append((a, b))
    return spans


def _summit(found: Fit, turns: list[int], j: int) -> Span:
    """Points around turn j, where the curve turns without a plateau."""
    f, curve, at = found.heights, found.curve, int(found.knots[turns[j]])
    least = min(abs(f[turns[j]] - f[turns[j - 1]]), abs(f[turns[j + 1]] - f[turns[j]]))
    a, b = _grown(at, -1, len(curve), lambda i: bool(abs(curve[i] - curve[at]) < FLAT * least))
    return a, b + 1


def _grown(i: int, low: int, high: int, inside: Callable[[int], bool]) -> tuple[int, int]:
    a = b = i
    while a - 1 > low and inside(a - 1):
        a -= 1
    while b + 1 < high and inside(b + 1):
        b += 1
    return a, b
