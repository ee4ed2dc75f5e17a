"""The numbers behind `stages`: a curve as plateaus and ramps, and the transitions between its plateaus.

Everywhere u [point] is the place on the axis, v [point] the value, s [point] the standard deviation of its noise, and
count [point] how many of the caller's points it is the mean of.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stagelens.stages.filters import running_maximum, running_mean, running_median
from stagelens.stages.one_or_two_moves import second_gain

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]
Span = tuple[int, int]  # the first point, and the one after the last

MOST_POINTS = 300  # more are averaged in blocks: the partition takes quadratic time
LEAST_NOISE = 3e-3  # of the range: smaller wiggles are not looked at
LEAST_POINTS = 3  # on a plateau
DRIFT = 0.015  # of the range: what a plateau falls or rises by, when nothing else is known
SLOPING = 0.25  # of the steps beside it: what a plateau falls or rises by at most
SHORTER = 0.2  # of the distance between its neighbours: what a transition takes at most when it is in doubt
# In units of chi square: the cost of a piece, of a ramp, of a ramp as long as the curve; what a second move must
# explain that one move does not; what it, and all stages together, must that a curve which only slows down does not.
PIECE, RAMP, LONG, SECOND, STEP, DECAY = 3.0, 9.0, 100.0, 9.0, 1.0, 10.0
SURE = 50.0  # a step that explains so much is one


def noise(u: Array, v: Array) -> Array:
    """Standard deviation of the noise at each point, from how far points lie off the line through their neighbours.

    Mostly local, for the noise of a loss shrinks with the loss; partly global, for few points say little.
    """
    a = (u[2:] - u[1:-1]) / (u[2:] - u[:-2])
    off = np.abs(v[1:-1] - a * v[:-2] - (1 - a) * v[2:]) / np.sqrt(1 + a**2 + (1 - a) ** 2)
    off = np.pad(off, 1, mode="edge") / 0.6745  # the median of |normal|
    local = running_median(off, min(len(off), max(51, min(len(off) // 4, 101))))
    return np.maximum(local**0.75 * np.median(off) ** 0.25, LEAST_NOISE)


def blocks(v: Array, s: Array) -> Indices:
    """First points of at most `MOST_POINTS` blocks, half of them even and half where neighbouring means differ most."""
    n, even = len(v), MOST_POINTS // 2
    if n <= MOST_POINTS:
        return np.arange(n)
    total, jump, width = np.append(0.0, np.cumsum(v)), np.zeros(n), 1
    while width < 4 * n / even:
        at = np.arange(width, n - width)
        score = np.abs(total[at + width] + total[at - width] - 2 * total[at]) / s[at] / np.sqrt(2 * width)
        top = score == running_maximum(score, 2 * width + 1)
        jump[at[top]] = np.maximum(jump[at[top]], score[top])
        width *= 2
    return np.union1d(np.linspace(0, n, even, endpoint=False).astype(int), np.argsort(jump)[even - MOST_POINTS :])


def means(x: Array, starts: Indices) -> Array:
    """Over blocks of neighbouring points. x: [point] -> [block]."""
    return np.asarray(np.add.reduceat(x, starts) / np.diff(starts, append=len(x)))


@dataclass(frozen=True)
class Pieces:
    """Lines fitted to points, one after the other: plateaus, and the ramps between them."""

    u: Array
    v: Array
    s: Array
    count: Array
    starts: Indices  # [piece], its first point
    level: Flags  # [piece], is it a plateau?
    fitted: Array  # [point]

    def __call__(self, u: Array) -> Array:
        return np.interp(u, self.u, self.fitted)

    @property
    def misfit(self) -> Array:
        """Squared residuals in units of the noise, [point]."""
        return ((self.v - self.fitted) / self.s) ** 2

    def plateaus(self) -> list[Span]:
        spans = zip(self.starts.tolist(), [*self.starts[1:].tolist(), len(self.u)], self.level, strict=True)
        return [(a, b) for a, b, level in spans if level and np.sum(self.count[a:b]) >= LEAST_POINTS]


def fit(u: Array, v: Array, s: Array, count: Array) -> Pieces:
    """The best lines, fitted twice: what the first leave over says more about the noise than neighbours do."""
    first = _partition(u, v, s, count)
    excess = first.misfit * len(u) / max(len(u) - 2 * len(first.starts), 1)
    local = running_mean(excess, min(len(u), max(51, len(u) // 4))).clip(0)  # a running sum rounds
    scale = np.sqrt(local**0.75 * np.mean(excess) ** 0.25)
    return _partition(u, v, np.maximum(s * scale, LEAST_NOISE * count**-0.5), count)


def _partition(u: Array, v: Array, s: Array, count: Array) -> Pieces:
    """Optimal partition into plateaus and ramps: least chi square plus a cost for each (dynamic programming)."""
    n, w = len(u), s**-2
    sums = np.array([np.append(0.0, np.cumsum(w * x)) for x in (u**0, u, v, u * u, u * v, v * v)])
    start, end = np.tril_indices(n + 1, -1)[::-1]  # of all pieces: the points start..end-1
    w1, wu, wv, wuu, wuv, wvv = sums[:, end] - sums[:, start]
    length = u[end - 1] - u[start]
    flat = np.maximum(wvv - wv**2 / w1, 0.0)
    along = np.maximum(wuu - wu**2 / w1, 1e-300)
    across = np.where(end - start > 1, wuv - wu * wv / w1, 0.0)
    held = along + (length / DRIFT) ** 2  # a plateau's slope is held near zero, a ramp's is free
    plateau = np.maximum(flat - across**2 / held, 0.0)
    ramp = np.maximum(flat - across**2 / along, 0.0) + RAMP + LONG * length
    costs, rows = np.minimum(plateau, ramp) + PIECE + 2 * np.log(n), np.cumsum(np.arange(n + 1))
    best, origin = np.zeros(n + 1), np.zeros(n + 1, dtype=int)
    for last in range(1, n + 1):
        total = best[:last] + costs[rows[last - 1] : rows[last]]
        origin[last] = int(np.argmin(total))
        best[last] = total[origin[last]]
    ends = [n]
    while origin[ends[-1]] > 0:
        ends.append(int(origin[ends[-1]]))
    chosen = np.array([rows[last - 1] + origin[last] for last in reversed(ends)])

    level, sizes = (plateau <= ramp)[chosen], (end - start)[chosen]
    slopes = (across / np.where(plateau <= ramp, held, along))[chosen]
    centres, heights = (wu / w1)[chosen], (wv / w1)[chosen]
    fitted = np.repeat(heights, sizes) + np.repeat(slopes, sizes) * (u - np.repeat(centres, sizes))
    # A ramp that hardly moves, compared with the steps before and after it, is a sloping plateau.
    steps = np.abs(np.diff(heights))
    beside = np.minimum(np.append(np.inf, steps), np.append(steps, np.inf))
    level |= np.abs(slopes) * length[chosen] < SLOPING * beside
    return Pieces(u, v, s, count, start[chosen], level, fitted)


def moves(curve: Pieces, t: Array, min_drop: float, significance: float) -> Moves:
    """The transitions of a curve. t: [point], its plain steps."""
    whole = [(0, len(t))]
    stepwise = float(np.sum(curve.misfit)) + DECAY + 4 * len(curve.starts)
    is_decay = decay_misfit(t, curve.v, curve.s) < stepwise
    plateaus = whole if is_decay else curve.plateaus() or whole
    found = _measure(curve, plateaus)
    known: dict[tuple[Span, ...], float] = {}
    while len(found.ats):
        # What is too small for the caller is left out last: only then is it known how big each is.
        least = min(min_drop, 0.01), min(significance, 3.0)
        if (weakest := found.weakest(*least, overshoots=False)) is not None:
            plateaus = _joined(plateaus, weakest - found.cut[0], len(t))
        elif (tail := _tail(curve, plateaus, found, known)) is not None:
            plateaus = plateaus[:tail] + plateaus[tail + 1 :] or whole
        elif (weakest := found.weakest(*least)) is not None:
            plateaus = _joined(plateaus, weakest - found.cut[0], len(t))
        else:
            break
        found = _measure(curve, plateaus)
    if len(found.ats) == 1 and found.cut[0]:  # a fall from the first point on, and nothing that follows it: a decay
        plateaus = whole
        found = _measure(curve, plateaus)
    while (weakest := found.weakest(min_drop, significance)) is not None:
        plateaus = _joined(plateaus, weakest - found.cut[0], len(t))
        found = _measure(curve, plateaus)
    return found


def _joined(plateaus: list[Span], i: int, n: int) -> list[Span]:
    """Without the transition after plateau i: the plateaus beside it become one."""
    first = plateaus[i][0] if i >= 0 else 0
    last = plateaus[i + 1][1] if i + 1 < len(plateaus) else n
    return [*plateaus[: max(i, 0)], (first, last), *plateaus[i + 2 :]]


def _tail(curve: Pieces, plateaus: list[Span], found: Moves, known: dict[tuple[Span, ...], float]) -> int | None:
    """The plateau that is the least of one, if any is none: if the moves beside it are but one.

    Two moves in one direction may be one: the second step the tail of the first, or the first the head of the second.
    `known` keeps what has been found of a plateau and its neighbours.
    """
    n, gains = len(curve.u), {}
    for k in range(1 - found.cut[0], len(plateaus) - 1 + found.cut[1]):
        i = k - 1 + found.cut[0]  # the move before plateau k
        pair = np.abs(found.drops[i : i + 2])
        around = np.concatenate([[0.0], found.ats[:i], found.ats[i + 2 :], [1.0]])
        far = found.ats[i + 1] - found.ats[i] > SHORTER * (around[i + 1] - around[i])
        begins = i == 0 and found.cut[0]  # a fall from the start may be slow
        if found.drops[i] * found.drops[i + 1] <= 0 or (far and not begins and pair.min() > 0.1 * pair.sum()):
            continue
        before = plateaus[k - 1] if k > 0 else (0, 1)
        after = plateaus[k + 1] if k + 1 < len(plateaus) else (n - 1, n)
        spans = before, plateaus[k], after
        if spans not in known:
            known[spans] = _worth(curve, spans, found, i, SHORTER * (around[i + 1] - around[i]))
        gains[k] = known[spans]
    least = min(gains, key=lambda k: gains[k], default=None)
    return least if least is not None and gains[least] < 1 else None


def _worth(curve: Pieces, spans: tuple[Span, Span, Span], found: Moves, i: int, longest: float) -> float:
    """What the plateau between moves i and i + 1 explains, of what it has to: by two tests, the lesser counts.

    `longest`: what both moves take at most if they are one.
    """
    before, (first, last), after = spans
    drops = found.drops[i : i + 2]
    drift = 0.1 * float(np.abs(drops).sum())
    tail = np.arange(max(first - 1, 0), after[1])
    head = np.arange(before[0], min(last + 1, len(curve.u)))[::-1]
    bend = min(
        _gain(curve, tail, sum(after) // 2, found.done(i + 1, curve.u[tail]), drift),
        _gain(curve, head, sum(before) // 2, 1 - found.done(i, curve.u[head]), drift),
    )
    if not STEP <= bend < SURE:  # the second test takes longer
        return bend / STEP
    second = second_gain(curve.u, curve.v, curve.s, list(spans), found.ats[i : i + 2], drops, longest)
    return min(bend / STEP, second / SECOND)


def _gain(curve: Pieces, points: Indices, until: int, done: Array, drift: float) -> float:
    """What a step explains (in chi square) that the best curve which slows down through the points does not.

    `until`: the point at which that curve has come to its plateau, which slopes by about `drift`. done: [point], from
    0 to 1 along the step.
    """
    x = np.abs(curve.u[points] - curve.u[points[0]]) / abs(curve.u[points[-1]] - curve.u[points[0]])
    n = max(abs(until - int(points[0])), 1)
    at = np.unique((1 + (n - 1) * np.linspace(0, 1, min(n, 60)) ** (1 if n < 60 else 2)).astype(int))  # most bend early
    sign = np.sign(curve.fitted[points[0]] - curve.fitted[points[-1]])
    bends = sign * np.maximum(np.append(x[at], 1.0) - x[:, None], 0.0)
    bends[:, -1] = sign * (1 - done)
    # One more point, the last, holds the slope of the plateau near zero.
    free = np.stack([np.append(x**0, 0.0), np.append(x, 1.0)], axis=1)
    bends, v, s = np.pad(bends, ((0, 1), (0, 0))), np.append(curve.v[points], 0.0), np.append(curve.s[points], drift)
    return _cone(bends[:, :-1], free, v, s) - _cone(bends, free, v, s)


def decay_misfit(t: Array, v: Array, s: Array) -> float:
    """Chi square of the best smooth decay: a curve that falls (or rises) ever more slowly, in the plain step t."""
    at = np.unique(np.linspace(1, len(t) - 1, min(len(t) - 1, 120)).astype(int))
    x = (t - t[0]) / (t[-1] - t[0])
    hinges = np.maximum(x[at] - x[:, None], 0.0) / x[at]
    constant = np.ones((len(t), 1))
    return min(_cone(sign * hinges, constant, v, s) for sign in (1.0, -1.0))


def _cone(bends: Array, free: Array, v: Array, s: Array) -> float:
    """Chi square of the best sum of `free` [point, f] and, with no negative coefficient, of `bends` [point, b]."""
    from scipy.optimize import nnls

    q = np.linalg.qr(free / s[:, None])[0]
    columns, target = bends / s[:, None], v / s
    columns, target = columns - q @ (q.T @ columns), target - q @ (q.T @ target)
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
    return float(nnls(columns / norms, target, maxiter=30 * len(v))[1] ** 2)


@dataclass(frozen=True)
class Moves:
    """Moves with the levels between them."""

    levels: Array  # [move + 1]
    errors: Array  # [move + 1], standard errors of the levels
    starts: Array  # [move], where 10 % of the drop is done, as a place on the axis; or the curve's beginning
    ats: Array  # [move], the middle of the shortest stretch that does half of it
    ends: Array  # [move], where 90 % is done; or the curve's end
    points: Array  # [move], how many it has
    cut: tuple[bool, bool]  # does the curve begin, does it end, within a move?

    @property
    def drops(self) -> Array:
        return -np.diff(self.levels)

    @property
    def shares(self) -> Array:
        """Of the distance between a move's neighbours, what it takes itself."""
        around = np.concatenate([[0.0], self.ats, [1.0]])
        return np.asarray((self.ends - self.starts) / np.maximum(around[2:] - around[:-2], 1e-12))

    def done(self, i: int, u: Array) -> Array:
        """How far move i has come at the places u, from 0 to 1."""
        return np.asarray(np.clip((u - self.starts[i]) / max(self.ends[i] - self.starts[i], 1e-9), 0.0, 1.0))

    def weakest(self, min_drop: float, significance: float, overshoots: bool = True) -> int | None:
        """The move that is the least of one, if there is any that is none; with `overshoots`, such a one is none."""
        if len(self.ats) == 0:
            return None
        least = np.maximum(significance * np.hypot(self.errors[1:], self.errors[:-1]), min_drop)
        score = np.abs(self.drops) / np.maximum(least, 1e-12)
        score[self._overshoots() if overshoots else []] = 0.0
        score[:1] *= not (self.cut[0] and self.points[0] < 2)
        score[-1:] *= not (self.cut[1] and self.points[-1] < 2)
        return int(np.argmin(score)) if score.min() <= 1 else None

    def _overshoots(self) -> list[int]:
        """Moves that take back less than a third of a neighbour's drop, soon: within six times the time that took."""
        size, width = np.abs(self.drops), self.ends - self.starts
        soon = self.starts[1:] - self.ends[:-1] < 6 * np.where(size[1:] > size[:-1], width[1:], width[:-1])
        back = self.drops[1:] * self.drops[:-1] < 0
        lesser = np.where(size[1:] < size[:-1], np.arange(1, len(size)), np.arange(len(size) - 1))
        small = 3 * np.minimum(size[1:], size[:-1]) < np.maximum(size[1:], size[:-1])
        return [int(i) for i in lesser[soon & back & small]]


def _measure(curve: Pieces, plateaus: list[Span]) -> Moves:
    """Levels, times and widths of the moves between plateaus."""
    n, w = len(curve.u), curve.s**-2
    cut = (plateaus[0][0] > 0, plateaus[-1][1] < n)
    spans = [(0, 1)] * cut[0] + plateaus + [(n - 1, n)] * cut[1]
    levels = np.array([np.average(curve.v[a:b], weights=w[a:b]) for a, b in spans])
    errors = np.array([np.sum(w[a:b]) ** -0.5 for a, b in spans])
    for i, (a, b) in ((0, (0, plateaus[0][0])), (-1, (plateaus[-1][1], n))):
        if cut[i]:  # where there is no plateau, the line that is cut off says how far it came
            levels[i], errors[i] = curve.fitted[i], min(errors[i], 2 * np.sum(w[a:b]) ** -0.5)
    middles = [(curve.u[a] + curve.u[b - 1]) / 2 for a, b in spans]
    between = [(curve.u[a[1] - 1] + curve.u[b[0]]) / 2 for a, b in pairwise(spans)]
    places = np.array(
        [_progress(curve, middles[i], x, middles[i + 1], levels[i], levels[i + 1]) for i, x in enumerate(between)]
    ).reshape(-1, 3)
    places[:1, 0] *= not cut[0]
    places[-1:, 2] = 1.0 if cut[1] else places[-1:, 2]
    inside = (curve.u >= places[:, :1]) & (curve.u <= places[:, 2:])  # [move, point]
    points = np.sum(inside * curve.count, axis=1)
    return Moves(levels, errors, places[:, 0], places[:, 1], places[:, 2], points, cut)


def _progress(
    curve: Pieces, first: float, middle: float, last: float, before: float, after: float
) -> tuple[float, float, float]:
    """Places where a move between two levels is done by 10 %, steepest, and done by 90 %."""
    u = np.union1d(np.linspace(first, last, 201), curve.u[(curve.u > first) & (curve.u < last)])
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
