"""The numbers behind `stages`: a curve as straight pieces, with no more bends than its noise allows.

A transition is where the rate of change rises and falls again. So what has to be found is the sign of the curvature:
a falling step bends down at its top corner and up at its bottom corner, a decay bends up only. A *corner* is a run of
bends of one sign. Corners that a curve without them explains as well are removed, until every one is needed.

Everywhere u [point] is the place on the axis, v [point] the value, s [point] the standard deviation of its noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import percentile_filter, uniform_filter1d
from scipy.optimize import nnls

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]

MOST_POINTS = 300  # more are averaged in blocks: the partition takes quadratic time
LEAST_NOISE = 1e-3  # of the range: smaller wiggles are not looked at
SLOWER = 0.3  # a plateau changes at less than this share of the rate of the transitions beside it
SHORTER = 0.4  # a transition takes less than this share of the distance between its neighbours
LEAST_POINTS = 3  # on a plateau, and in a move that an end of the curve cuts off
# Costs in units of chi square: what a piece, a slope and a corner must each explain to be there.
PIECE, SLOPE, CORNER, BEND = 5.0, 4.0, 4.0, 12.0
DECAY = 10.0  # chi square by which stages must explain a curve better than the best smooth decay


def noise(u: Array, v: Array) -> Array:
    """Standard deviation of the noise at each point, from how far points lie off the line through their neighbours.

    Mostly local, for the noise of a loss shrinks with the loss; partly global, for few points say little.
    """
    a = (u[2:] - u[1:-1]) / (u[2:] - u[:-2])
    off = np.abs(v[1:-1] - a * v[:-2] - (1 - a) * v[2:]) / np.sqrt(1 + a**2 + (1 - a) ** 2)
    off = np.pad(off, 1, mode="edge") / 0.6745  # the median of |normal|
    local = percentile_filter(off, 50, size=min(len(off), max(51, min(len(off) // 4, 101))), mode="mirror")
    return np.maximum(local**0.75 * np.median(off) ** 0.25, LEAST_NOISE)


def in_blocks(x: Array) -> Array:
    """Means over at most `MOST_POINTS` blocks of neighbouring points. x: [point]."""
    starts = np.linspace(0, len(x), min(len(x), MOST_POINTS) + 1).astype(int)
    return np.asarray(np.add.reduceat(x, starts[:-1]) / np.diff(starts))


@dataclass(frozen=True)
class Pieces:
    """A continuous curve of straight pieces between knots, fitted to points."""

    u: Array
    v: Array
    s: Array
    knots: Indices  # [knot], the first and the last point among them
    flat: Flags  # [knot - 1], the pieces that are held level
    heights: Array  # [knot]
    spread: Array  # [knot, knot], covariance of the heights

    @property
    def x(self) -> Array:
        return self.u[self.knots]

    @property
    def slopes(self) -> Array:
        return np.asarray(np.diff(self.heights) / np.diff(self.x))

    def __call__(self, u: Array) -> Array:
        return np.interp(u, self.x, self.heights)

    @property
    def misfit(self) -> Array:
        """Squared residuals in units of the noise, [point]."""
        return ((self.v - self(self.u)) / self.s) ** 2

    def corners(self) -> list[tuple[float, Indices]]:
        """Runs of inner knots that bend the same way: (sign of the bend, indices into the knots)."""
        bends = np.where(np.diff(self.slopes) >= 0, 1.0, -1.0)
        if len(bends) == 0:
            return []
        return [(bends[run[0]], run + 1) for run in np.split(np.arange(len(bends)), np.flatnonzero(np.diff(bends)) + 1)]


def fit(u: Array, v: Array, s: Array, least: float) -> Pieces:
    """The simplest curve of straight pieces that explains the points.

    Fitted twice: what a first curve leaves unexplained says more about the noise than neighbouring points do.
    `least`: of the noise.
    """
    first = _partition(u, v, s)
    excess = first.misfit * len(u) / max(len(u) - len(first.knots), 1)
    local = uniform_filter1d(excess, min(len(u), max(51, len(u) // 4)), mode="mirror").clip(0)  # a running sum rounds
    scale = np.sqrt(local**0.75 * np.mean(excess) ** 0.25)
    return _without_idle_corners(_without_weak_bends(_partition(u, v, np.maximum(s * scale, least))))


def moves(curve: Pieces, t: Array, min_drop: float, significance: float) -> Moves:
    """The transitions of a curve. t: [point], its plain steps."""
    spans = _separate(curve, _fastest(curve))
    found = _measure(curve, spans)
    # What is too small for the caller is left out last: only then is it known how big each is.
    while spans and (weakest := found.weakest(min(min_drop, 0.01), min(significance, 3.0))) is not None:
        del spans[weakest]
        found = _measure(curve, spans)
    # A fall from the first point on is the beginning of a decay, unless something follows it.
    only_falls = len(spans) == 1 and found.cut[0]
    stepwise = float(np.sum(curve.misfit)) + DECAY + 2 * len(curve.knots)
    if spans and (only_falls or decay_misfit(t, curve.v, curve.s) < stepwise):
        return _measure(curve, [])
    enough = found.strength(min_drop, significance) >= 1
    return found if enough.all() else _measure(curve, [span for span, keep in zip(spans, enough, strict=True) if keep])


def decay_misfit(t: Array, v: Array, s: Array) -> float:
    """Chi square of the best smooth decay: a curve that falls (or rises) ever more slowly, in the plain step t."""
    at = np.unique(np.linspace(1, len(t) - 1, min(len(t) - 1, 120)).astype(int))
    x = (t - t[0]) / (t[-1] - t[0])
    hinges = np.maximum(x[at] - x[:, None], 0.0) / x[at]
    constant = np.ones((len(t), 1))
    return min(_cone(sign * hinges, constant, v, s)[0] for sign in (1.0, -1.0))


def _cone(hinges: Array, free: Array, v: Array, s: Array) -> tuple[float, Array]:
    """Least squares with free coefficients of `free` [point, f] and nonnegative ones of `hinges` [point, h]."""
    q = np.linalg.qr(free / s[:, None])[0]
    columns, target = hinges / s[:, None], v / s
    columns, target = columns - q @ (q.T @ columns), target - q @ (q.T @ target)
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
    weights, distance = nnls(columns / norms, target, maxiter=30 * len(v))
    return float(distance**2), weights


def _partition(u: Array, v: Array, s: Array) -> Pieces:
    """Optimal partition into level or sloping lines: least chi square plus a cost for each piece and each slope."""
    n, w = len(u), s**-2
    sums = np.array([np.concatenate([[0.0], np.cumsum(w * x)]) for x in (u**0, u, v, u * u, u * v, v * v)])
    piece = PIECE + 2 * np.log(n)
    best, origin, level = np.zeros(n + 1), np.zeros(n + 1, dtype=int), np.zeros(n + 1, dtype=bool)
    start, end = np.tril_indices(n + 1, -1)[::-1]  # of all pieces: the points start..end-1
    w1, wu, wv, wuu, wuv, wvv = sums[:, end] - sums[:, start]
    flat = np.maximum(wvv - wv**2 / w1, 0.0)
    sloping = np.maximum(flat - (wuv - wu * wv / w1) ** 2 / np.maximum(wuu - wu**2 / w1, 1e-300), 0.0) + SLOPE
    costs, rows = np.minimum(flat, sloping) + piece, np.cumsum(np.arange(n + 1))
    for last in range(1, n + 1):
        total = best[:last] + costs[rows[last - 1] : rows[last]]
        origin[last] = int(np.argmin(total))
        best[last] = total[origin[last]]
    level[1:] = (flat <= sloping)[rows[:-1] + origin[1:]]
    knots: list[int] = []
    flags: list[bool] = []
    last = n
    while last > 0:  # backwards: each piece gives its two ends, and a joint to the piece after it
        first = int(origin[last])
        more = int(last - 1 > first)
        flags += [False] * bool(knots) + [bool(level[last])] * more
        knots += [last - 1] + [first] * more
        last = first
    return _spline(u, v, s, np.array(knots[::-1]), np.array(flags[::-1], dtype=bool))


def _spline(u: Array, v: Array, s: Array, knots: Indices, flat: Flags) -> Pieces:
    """Weighted least squares for the heights at the knots; level pieces share one height."""
    x = u[knots]
    left = np.clip(np.searchsorted(x, u, side="right") - 1, 0, len(x) - 2)
    share = (u - x[left]) / (x[left + 1] - x[left])
    unknown = np.concatenate([[0], np.cumsum(~flat)])  # [knot] -> its height among the unknowns
    design = np.zeros((len(u), unknown[-1] + 1))
    np.add.at(design, (np.arange(len(u)), unknown[left]), (1 - share) / s)
    np.add.at(design, (np.arange(len(u)), unknown[left + 1]), share / s)
    spread = np.linalg.inv(design.T @ design)
    heights = spread @ (design.T @ (v / s))
    return Pieces(u, v, s, knots, flat, heights[unknown], spread[np.ix_(unknown, unknown)])


def _without_weak_bends(p: Pieces) -> Pieces:
    """Remove the weakest corner while straightening it costs less than `BEND` (a Wald test)."""
    while len(p.knots) > 2:
        h, n = 1 / np.diff(p.x), len(p.knots) - 2
        bend = np.zeros((n, n + 2))
        rows = np.arange(n)
        bend[rows, rows], bend[rows, rows + 1], bend[rows, rows + 2] = h[:-1], -h[:-1] - h[1:], h[1:]
        bends, spread = bend @ p.heights, bend @ p.spread @ bend.T
        runs = [run - 1 for _, run in p.corners()]
        costs = [bends[r] @ np.linalg.pinv(spread[np.ix_(r, r)], hermitian=True) @ bends[r] for r in runs]
        weakest = int(np.argmin(costs))
        if costs[weakest] > BEND:
            break
        knots, flat = p.knots, p.flat
        for k in reversed(runs[weakest] + 1):  # the longer of the two pieces says whether the joint one is level
            longer = k - 1 if knots[k] - knots[k - 1] >= knots[k + 1] - knots[k] else k
            flat = np.concatenate([flat[: k - 1], flat[longer : longer + 1], flat[k + 1 :]])
            knots = np.delete(knots, k)
        p = _spline(p.u, p.v, p.s, knots, flat)
    return p


def _without_idle_corners(p: Pieces) -> Pieces:
    """Remove the least needed corner while a curve that bends only the other way fits nearly as well there.

    That other curve is free to bend at any point, so that a smooth arc is not mistaken for a row of steps.
    """
    fits: dict[tuple[int, int, float], tuple[float, Indices]] = {}
    for _ in range(len(p.knots)):
        corners, misfit = p.corners(), np.concatenate([[0.0], np.cumsum(p.misfit)])
        if not corners:
            break
        tests = []
        for i, (sign, _) in enumerate(corners):
            first = int(p.knots[corners[i - 1][1][0] - 1]) if i > 0 else 0
            last = int(p.knots[corners[i + 1][1][-1] + 1]) if i + 1 < len(corners) else len(p.u) - 1
            key = (first, last, -sign)
            if key not in fits:
                fits[key] = _arc(p, *key)
            tests.append((fits[key][0] - (misfit[last + 1] - misfit[first]), key))
        gain, key = min(tests)
        if gain > CORNER:
            break
        p = _with_knots(p, key[0], key[1], fits[key][1])
    return p


def _arc(p: Pieces, first: int, last: int, sign: float) -> tuple[float, Indices]:
    """Chi square and knots of the best fit to the points first..last that bends only one way."""
    n = last - first + 1
    if n < 3:
        return 0.0, np.empty(0, dtype=int)
    near = p.knots[(p.knots > first) & (p.knots < last)] - first
    at = np.unique(np.concatenate([np.linspace(1, n - 2, min(n - 2, 40)).astype(int), near]))
    x = (p.u[first : last + 1] - p.u[first]) / (p.u[last] - p.u[first])
    hinges = sign * np.maximum(x[:, None] - x[at], 0.0)
    chi2, weights = _cone(hinges, np.stack([x**0, x], axis=1), p.v[first : last + 1], p.s[first : last + 1])
    return chi2, at[weights > 1e-9 * weights.max(initial=1e-300)] + first


def _with_knots(p: Pieces, first: int, last: int, inner: Indices) -> Pieces:
    """Refit with the knots between the points first and last replaced."""
    knots = np.unique(np.concatenate([p.knots[p.knots <= first], inner, p.knots[p.knots >= last]]))
    level = {(a, b) for a, b, flat in zip(p.knots[:-1], p.knots[1:], p.flat, strict=True) if flat}
    flat = np.array([pair in level for pair in pairwise(knots)], dtype=bool)
    return _spline(p.u, p.v, p.s, knots, flat)


Move = tuple[int, int]  # the first and the last straight piece of a change


def _fastest(curve: Pieces) -> list[Move]:
    """The pieces at which the rate of change is greatest: between two corners, or between a corner and an end."""
    signs = [sign for sign, _ in curve.corners()]
    if not signs:
        return []
    pieces = [0] + [int(run[-1]) for _, run in curve.corners()]
    before = [-signs[0], *signs]  # of the corner before each piece: a fall begins by bending down
    return [(i, i) for i, sign in zip(pieces, before, strict=True) if sign * curve.slopes[i] > 0]


def _separate(curve: Pieces, moves: list[Move]) -> list[Move]:
    """Join the moves that no plateau separates, the most unlike first.

    Of two in opposite directions the lesser is not a move: it is the other's overshoot, or a plateau's slope.
    """
    x, slopes, moves = curve.x, curve.slopes, list(moves)

    def rate(move: Move) -> float:
        return float(max(slopes[move[0] : move[1] + 1], key=abs))

    def plateau_between(a: Move, b: Move) -> bool:
        between = np.arange(a[1] + 1, b[0])
        flat = between[np.abs(slopes[between]) < SLOWER * min(abs(rate(a)), abs(rate(b)))]
        points = np.sum(curve.knots[flat + 1] - curve.knots[flat] + 1)
        longer = max(x[a[1] + 1] - x[a[0]], x[b[1] + 1] - x[b[0]])
        long = np.sum(x[flat + 1] - x[flat]) >= longer
        return bool(points >= LEAST_POINTS and (rate(a) * rate(b) > 0 or long))

    def size(move: Move) -> float:
        """Of the whole monotone stretch around the move."""
        same = slopes * np.sign(rate(move)) > 0
        first, last = move
        while first > 0 and same[first - 1]:
            first -= 1
        while last + 1 < len(slopes) and same[last + 1]:
            last += 1
        return float(abs(curve.heights[last + 1] - curve.heights[first]))

    while pairs := [(a, b) for a, b in pairwise(moves) if not plateau_between(a, b)]:
        likeness = [min(abs(rate(a) / rate(b)), abs(rate(b) / rate(a))) for a, b in pairs]
        a, b = pairs[int(np.argmin(likeness))]
        if rate(a) * rate(b) < 0:
            moves.remove(a if size(a) < size(b) else b)
        elif min(likeness) < SLOWER:
            moves.remove(a if abs(rate(a)) < abs(rate(b)) else b)
        else:
            i = moves.index(a)
            moves[i : i + 2] = [(a[0], b[1])]
    return moves


@dataclass(frozen=True)
class Moves:
    """Moves with the levels between them."""

    levels: Array  # [move + 1]
    errors: Array  # [move + 1], standard errors of the levels
    drifts: Array  # [move + 1], how much the plateaus themselves fall or rise
    starts: Array  # [move], where 10 % of the drop is done, as a place on the axis; or the curve's beginning
    ats: Array  # [move], the middle of the shortest stretch that does half of it
    ends: Array  # [move], where 90 % is done; or the curve's end
    directions: Array  # [move], sign of the drop of the straight pieces themselves
    points: NDArray[np.intp]  # [move], how many it has
    cut: tuple[bool, bool]  # does the curve begin, does it end, within a move?

    @property
    def drops(self) -> Array:
        return -np.diff(self.levels)

    @property
    def cut_off(self) -> Flags:
        """Of each move: does an end of the curve cut it off?"""
        flags = np.zeros(len(self.ats), dtype=bool)
        flags[:1] |= self.cut[0]
        flags[-1:] |= self.cut[1]
        return flags

    @property
    def shares(self) -> Array:
        """Of the distance between a move's neighbours, what it takes itself."""
        around = np.concatenate([[0.0], self.ats, [1.0]])
        return np.asarray((self.ends - self.starts) / np.maximum(around[2:] - around[:-2], 1e-12))

    def strength(self, min_drop: float, significance: float) -> Array:
        """Drops in units of the least that counts, [move]."""
        least = np.maximum(significance * np.hypot(self.errors[1:], self.errors[:-1]), min_drop)
        return np.asarray(np.abs(self.drops) / np.maximum(least, 1e-12))

    def weakest(self, min_drop: float, significance: float) -> int | None:
        """The move that is the least of one, if there is any that is none."""
        drift = np.maximum(self.drifts[1:], self.drifts[:-1])
        score = np.minimum(self.strength(min_drop, significance), np.abs(self.drops) / np.maximum(drift, 1e-12))
        score = np.where(self.shares > SHORTER, np.minimum(score, 0.9 - 0.4 * self.shares), score)
        score[self.directions * self.drops <= 0] = 0.0
        score[self._overshoots()] = 0.0
        score[(self.points < 2) & self.cut_off] = 0.0
        return int(np.argmin(score)) if score.min() <= 1 else None

    def _overshoots(self) -> list[int]:
        """Moves that take back less than a third of a neighbour's drop, soon: within four times the time that took."""
        size, width = np.abs(self.drops), self.ends - self.starts
        soon = self.starts[1:] - self.ends[:-1] < 4 * np.where(size[1:] > size[:-1], width[1:], width[:-1])
        back = self.drops[1:] * self.drops[:-1] < 0
        lesser = np.where(size[1:] < size[:-1], np.arange(1, len(size)), np.arange(len(size) - 1))
        small = 3 * np.minimum(size[1:], size[:-1]) < np.maximum(size[1:], size[:-1])
        return [int(i) for i in lesser[soon & back & small]]


def _measure(curve: Pieces, moves: list[Move]) -> Moves:
    """Levels, times and widths of the moves."""
    x, h = curve.x, curve.heights
    cut = (bool(moves) and moves[0][0] == 0, bool(moves) and moves[-1][1] == len(x) - 2)
    middles = np.array([0.0, *((x[a] + x[b + 1]) / 2 for a, b in moves), 1.0])
    levels = np.array([np.median(curve(np.linspace(a, b, 201))) for a, b in pairwise(middles)])
    levels[0], levels[-1] = (h[0] if cut[0] else levels[0]), (h[-1] if cut[1] else levels[-1])
    errors, drifts = np.zeros(len(levels)), np.zeros(len(levels))
    for _ in range(2):  # the levels say where the plateaus begin and end, and the plateaus say the levels
        places = np.array(
            [_progress(curve, *middles[i : i + 3], *levels[i : i + 2]) for i in range(len(moves))]
        ).reshape(-1, 3)
        places[:1, 0] *= not cut[0]
        places[-1:, 2] = 1.0 if cut[1] else places[-1:, 2]
        spans = zip([0.0, *places[:, 2]], [*places[:, 0], 1.0], strict=True)
        for i, (start, end) in enumerate(spans):
            on = (curve.u >= start) & (curve.u <= end)
            if (i == 0 and cut[0]) or (i == len(moves) and cut[1]) or not on.any():
                errors[i] = curve.s[np.argmin(np.abs(curve.u - (start + end) / 2))]
                continue
            low, high = np.quantile(curve(np.linspace(start, end, 101)), [0.25, 0.75])
            drifts[i] = 2 * (high - low)  # of a straight line, all of it; of a tail left by the move before, nothing
            weight = curve.s[on] ** -2
            levels[i], errors[i] = np.average(curve.v[on], weights=weight), np.sum(weight) ** -0.5
    directions = np.array([np.sign(h[a] - h[b + 1]) for a, b in moves])
    inside = (curve.u >= places[:, :1]) & (curve.u <= places[:, 2:])  # [move, point]
    points = np.sum(inside, axis=1)
    return Moves(levels, errors, drifts, places[:, 0], places[:, 1], places[:, 2], directions, points, cut)


def _progress(
    curve: Pieces, first: float, middle: float, last: float, before: float, after: float
) -> tuple[float, float, float]:
    """Places where a move between two levels is done by 10 %, steepest, and done by 90 %."""
    u = np.unique(np.concatenate([np.linspace(first, last, 201), curve.x[(curve.x > first) & (curve.x < last)]]))
    if before == after:
        return middle, middle, middle
    done = (before - curve(u)) / (before - after)
    halves = np.flatnonzero((done[:-1] < 0.5) & (done[1:] >= 0.5))
    if len(halves) == 0:
        return middle, middle, middle
    half = halves[np.argmin(np.abs(u[halves] - middle))]
    # What counts is the last time before the half, and the first time after it.
    done = np.concatenate([np.minimum.accumulate(done[half::-1])[::-1], np.maximum.accumulate(done[half + 1 :])])
    shares = np.linspace(0.1, 0.9, 81)
    when = np.interp(shares, done, u)
    lengths, middles = when[40:] - when[:41], (when[40:] + when[:41]) / 2
    steepest = np.mean(middles[lengths <= 1.01 * lengths.min()])  # on a straight ramp many are the shortest
    return float(when[0]), float(steepest), float(when[-1])
