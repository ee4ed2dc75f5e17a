"""Decides which moves between the candidate plateaus of a curve are transitions.

A move counts if it is large enough, begins anew after the plateau before it, and is over before the next one begins.
The least convincing plateau or move is removed first; then everything is measured again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from stagelens.stages.pieces import LEAST_NOISE, Array, Fit, Indices, standard_error
from stagelens.stages.plateaus import Span, candidates

WANDER = 3.0  # times the wander of the plateaus next to it: a smaller move is part of that wander
SMALL = 0.04  # of the drop next to it: a smaller move belongs to its neighbour
SHAPE = 0.1  # of the smaller drop: the error of each point because no move has a simple shape
APART = 3.0  # chi square: the evidence that a plateau needs if the moves around it are far apart
CLOSE = 10.0  # chi square: what it needs if they may be one move with a shoulder, or if it is shorter than one of them
LONGEST = 0.12  # of the distance between their neighbours: moves that are closer may be one
UNEQUAL = 0.1  # of both drops: if the smaller one has less, they may be one
NEAR = 4.0  # standard errors: points at which the fitted curve is further from the plateau do not count for its level
AROUND = 2  # durations of a move: how far beyond it the evidence is read
LEAST_AROUND = 10  # points: at least so far
BLOCKS = 80  # means of the points, at most, to which that curve is fitted
BENDS = 40  # points, at most, at which that curve slows down


@dataclass(frozen=True)
class Moves:
    """Moves with the plateaus between them."""

    found: Fit
    spans: tuple[Span, ...]  # [move + 1], plateaus; a single point at an end that lies within a move
    cut: tuple[bool, bool]  # does the curve begin, does it end, within a move?

    @cached_property
    def levels(self) -> Array:
        """The mean of each plateau's points, without those at which the fitted curve is still off the plateau."""
        fit, curve = self.found, self.found.curve
        levels = np.empty(len(self.spans))
        for i, (a, b) in enumerate(self.spans):
            off = np.abs(curve[a:b] - np.median(curve[a:b]))
            near = off <= max(LEAST_NOISE, NEAR * self.errors[i], off.min())
            levels[i] = np.average(fit.v[a:b][near], weights=fit.long_run[a:b][near] ** -2.0)
        for i in (0, -1):
            if self.cut[i]:
                levels[i] = curve[i]
        return levels

    @cached_property
    def errors(self) -> Array:
        return np.array([standard_error(self.found.wander, self.found.long_run, a, b) for a, b in self.spans])

    @cached_property
    def wander(self) -> Array:
        """The mean distance of the fitted curve from the middle of each plateau, [plateau]: slow wander, not noise."""
        curves = (self.found.curve[a:b] for a, b in self.spans)
        return np.array([np.mean(np.abs(curve - np.median(curve))) for curve in curves])

    @cached_property
    def drops(self) -> Array:
        return -np.diff(self.levels)

    @cached_property
    def starts(self) -> Array:
        """Where the plateaus before the moves end, on the axis."""
        return np.array([self.found.u[min(a[1] - 1, b[0])] for a, b in pairwise(self.spans)])

    @cached_property
    def ends(self) -> Array:
        return np.array([self.found.u[b[0]] for _, b in pairwise(self.spans)])

    @cached_property
    def halves(self) -> list[int]:
        """The points at which each move is half done."""
        levels, curve, halves = self.levels, self.found.curve, []
        for i, (before, after) in enumerate(pairwise(self.spans)):
            first = min(before[1] - 1, after[0])
            done = (levels[i] - curve[first : after[0] + 1]) / (levels[i] - levels[i + 1])
            halves.append(first + int(np.argmax(done >= 0.5)))
        return halves

    def weakest(self, min_drop: float, significance: float) -> int | None:
        """The move that is too small, compared with the noise, the range or a neighbour; None if none is."""
        size = np.abs(self.drops)
        if len(size) == 0:
            return None
        least = np.maximum(min_drop, significance * np.hypot(self.errors[1:], self.errors[:-1]))
        least = np.maximum(least, WANDER * np.maximum(self.wander[1:], self.wander[:-1]))
        least[1:] = np.maximum(least[1:], SMALL * size[:-1])
        least[:-1] = np.maximum(least[:-1], SMALL * size[1:])
        score = size / np.maximum(least, 1e-12)
        return int(np.argmin(score)) if score.min() < 1 else None

    def without_move(self, i: int) -> Moves:
        """The plateaus on the two sides of move i become one."""
        (start, _), (_, end) = self.spans[i], self.spans[i + 1]
        cut = (self.cut[0] and i > 0, self.cut[1] and i < len(self.spans) - 2)
        return Moves(self.found, (*self.spans[:i], (start, end), *self.spans[i + 2 :]), cut)

    def without_plateau(self, k: int) -> Moves:
        """The moves on the two sides of plateau k become one. Without the first, the curve begins within a move."""
        if k > 0:
            return Moves(self.found, self.spans[:k] + self.spans[k + 1 :], self.cut)
        return Moves(self.found, ((0, 1), *self.spans[1:]), (True, self.cut[1]))


def moves(found: Fit, t: Array, min_drop: float, significance: float) -> Moves:
    """The transitions of a curve. t: [point], its plain steps."""
    n = len(t)
    whole = Moves(found, ((0, n),), (False, False))
    plateaus, (begins, ends) = candidates(found, min_drop, significance)
    if not plateaus:
        return whole
    left = Moves(found, (*[(0, 1)] * begins, *plateaus, *[(n - 1, n)] * ends), (begins, ends))
    known: dict[tuple[object, ...], float] = {}
    while len(left.spans) > 1:
        if (weakest := left.weakest(min_drop, significance)) is not None:
            left = left.without_move(weakest)
        elif (doubtful := _doubtful(left, t, known)) is not None:
            left = left.without_plateau(doubtful)
        else:
            break
    # A fall from the first point on is the beginning of a decay. Something must follow it.
    return whole if left.cut[0] and len(left.spans) == 2 else left


def _doubtful(left: Moves, t: Array, known: dict[tuple[object, ...], float]) -> int | None:
    """Returns the shortest plateau that the curve can be explained without; None if all are needed.

    `known` caches the evidence for a plateau between its neighbours.
    """
    drops, u, doubtful = left.drops, left.found.u, []
    for k in range(len(drops)):
        if (k == 0 and left.cut[0]) or (k > 0 and drops[k - 1] * drops[k] <= 0):
            continue
        key = (k == 0, left.spans[max(k - 1, 0) : k + 2])
        if key not in known:
            known[key] = min(_begins(left, k, t), _is_over(left, k - 1) if k > 0 else np.inf)
        if known[key] < (CLOSE if k > 0 and _may_be_one(left, k) else APART):
            doubtful.append(k)
    return min(doubtful, key=lambda k: u[left.spans[k][1] - 1] - u[left.spans[k][0]], default=None)


def _may_be_one(left: Moves, k: int) -> bool:
    """True if the moves around plateau k are so close, or so unequal, that a single move would look alike.

    A fall from the first point on may be a decay, whose end looks like a small move.
    """
    u, (a, b), sizes = left.found.u, left.spans[k], np.abs(left.drops[k - 1 : k + 1])
    at = np.concatenate([[0.0], u[left.halves], [1.0]])  # [move + 2]; move k is at[k + 1]
    shoulder = u[b - 1] - u[a] < np.max((left.ends - left.starts)[k - 1 : k + 1])
    close = at[k + 1] - at[k] <= LONGEST * (at[k + 2] - at[k - 1])
    return bool(shoulder or close or sizes.min() <= UNEQUAL * sizes.sum() or (k == 1 and left.cut[0]))


def _begins(left: Moves, k: int, t: Array) -> float:
    """What move k explains that a curve which slows down does not: from the move before it on, or from the start."""
    (_, before), (after, last), drops = left.spans[k], left.spans[k + 1], left.drops
    first, x = (left.halves[k - 1], left.found.u) if k > 0 else (0, t)
    points = np.arange(first, min(last, after + max(AROUND * (after - first), LEAST_AROUND)))
    size = np.abs(drops[max(k - 1, 0) : k + 1]).min()
    return _gain(left.found, x, points, _done(points, before - 1, after), np.sign(drops[k]), size)


def _is_over(left: Moves, k: int) -> float:
    """What move k explains that a curve which accelerates into the next move does not."""
    (first, before), (after, _), drops = left.spans[k], left.spans[k + 1], left.drops
    last = left.halves[k + 1]
    points = np.arange(max(first, before - max(AROUND * (last - before), LEAST_AROUND)), last + 1)[::-1]
    size = np.abs(drops[k : k + 2]).min()
    return _gain(left.found, left.found.u, points, 1 - _done(points, before - 1, after), -np.sign(drops[k]), size)


def _done(points: Indices, start: int, end: int) -> Array:
    return np.clip((points - start) / max(end - start, 1), 0.0, 1.0)


def _gain(found: Fit, x: Array, points: Indices, done: Array, sign: float, size: float) -> float:
    """What a step and a corner explain, in chi square, that the best curve which slows down along the points does not.

    From the corner on the curve falls faster: a move that is not over at the last point has no end, and so is no step.

    x: [point], the axis; done: [point], from 0 to 1 along the step; size: the drop whose shape is uncertain.
    """
    if len(points) < 4:
        return 0.0
    v, s, x = found.v[points], np.hypot(found.long_run[points], SHAPE * size), np.abs(x[points] - x[points[0]])
    if len(points) > BLOCKS:
        starts = np.linspace(0, len(points), BLOCKS, endpoint=False).astype(int)
        count = np.diff(starts, append=len(points))
        x, v, s, done = (np.add.reduceat(y, starts) / count for y in (x, v, s, done))
        s = s / np.sqrt(count)
    at = np.unique(np.linspace(1, len(x) - 1, min(len(x) - 1, BENDS)).astype(int))
    bends = sign * np.maximum(x[at] - x[:, None], 0.0) / x[at]
    corner = x[max(int(np.count_nonzero(done == 0)) - 1, 0)]
    begins = sign * np.stack([1 - done, np.minimum(corner - x, 0.0) / x[-1]], axis=1)
    return _misfit(bends, v, s) - _misfit(np.hstack([bends, begins]), v, s)


def _misfit(columns: Array, v: Array, s: Array) -> float:
    """Chi square of the best constant plus columns [point, column] with no negative coefficient."""
    from scipy.optimize import nnls

    one = s**-1.0 / np.linalg.norm(1 / s)
    columns, target = columns / s[:, None], v / s
    columns, target = columns - np.outer(one, one @ columns), target - one * (one @ target)
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
    return float(nnls(columns / norms, target, maxiter=30 * len(v))[1] ** 2)
