"""A curve as straight pieces in autocorrelated noise.

Everywhere u [point] is the position on the axis, from 0 to 1, and v [point] the value in units of the curve's range.
The noise is a first-order autoregressive process. Its roughness, how far points lie off the line through their
neighbours, is read from the curve. Its autocorrelation rho is the one with which the curve takes the fewest bits. A
smooth curve has no roughness, so no rho can explain its moves as noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stagelens.stages.filters import running_maximum, running_median

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]

MOST_EDGES = 240  # the partition takes quadratic time in the points at which a piece may begin
LEAST_NOISE = 1e-3  # of the range: pieces need not follow a curve more closely
DRIFT = 0.015  # of the range: what a plateau falls or rises by
PIECE = 3.0  # chi square: what a piece costs besides 2 log n
RAMP = 12.0  # chi square: what the slope of a piece costs
SPIKE = 6.0  # noise widths: one or two points that deviate by more are replaced by the median
LOCAL = 0.75  # exponent: how much of the roughness is local; the rest is that of the whole curve
WINDOW = 51, 101  # points, at least and at most: the roughness around a point is read from a quarter of all
GRID: dict[float, tuple[float, ...]] = {
    0.0: (0.3,),
    0.5: (0.3, 0.7),
    0.9: (0.8, 0.95),
}  # autocorrelations, coarse: fine


@dataclass(frozen=True)
class Fit:
    """Straight pieces and the noise around them."""

    u: Array  # [point]
    v: Array  # [point], without spikes of one or two points
    rho: float
    wander: Array  # [point], standard deviation of the noise
    long_run: Array  # [point], that of white noise whose mean over many points varies as much
    knots: Indices  # [knot], the points at which pieces begin and end
    heights: Array  # [knot]
    errors: Array  # [knot], standard errors of the heights

    @cached_property
    def curve(self) -> Array:
        """The line through the knots, at each point."""
        return np.interp(self.u, self.u[self.knots], self.heights)


def fit(u: Array, v: Array) -> Fit:
    """Returns the straight pieces of a curve, and its noise with the autocorrelation that needs the fewest bits."""
    rough = roughness(u, v)
    middle = running_median(v, min(5, len(v) - 1 + len(v) % 2))
    v = np.where(np.abs(v - middle) > SPIKE * rough, middle, v)
    edges = np.append(_edges(v, rough), len(v))
    pieces = {rho: _partition(u, v, rough, rho, edges) for rho in GRID}
    near = GRID[min(pieces, key=lambda rho: pieces[rho].cost)]
    pieces |= {rho: _partition(u, v, rough, rho, edges) for rho in near}
    rho = min(pieces, key=lambda rho: pieces[rho].cost)
    innovation = rough * _innovation(rho) ** 0.5
    wander, long_run = innovation / (1 - rho**2) ** 0.5, innovation / (1 - rho)
    return Fit(u, v, rho, wander, long_run, *_knots(pieces[rho], wander, long_run))


def roughness(u: Array, v: Array) -> Array:
    """Standard deviation of the noise if it were white, [point]: from the line through each point's neighbours.

    It is mostly local, for the noise of a loss shrinks with the loss; and partly global, for few points say little.
    """
    a = (u[2:] - u[1:-1]) / (u[2:] - u[:-2])
    off = np.abs(v[1:-1] - a * v[:-2] - (1 - a) * v[2:]) / np.sqrt(1 + a**2 + (1 - a) ** 2)
    off = np.pad(off, 1, mode="edge") / 0.6745  # the median of |normal|
    local = running_median(off, min(len(off), max(WINDOW[0], min(len(off) // 4, WINDOW[1]))))
    return np.maximum(local**LOCAL * np.median(off) ** (1 - LOCAL), LEAST_NOISE)


def _innovation(rho: float) -> float:
    """Variance of what is new at each point, if the roughness is 1.

    The second differences of the process have the variance 2 (3 - rho) / (1 + rho) times that of its innovations, and
    6 times that of white noise.
    """
    return 3 * (1 + rho) / (3 - rho)


def _edges(v: Array, s: Array) -> Indices:
    """Points at which a piece may begin: half of them uniform, and half where neighbouring means differ most."""
    n, even = len(v), MOST_EDGES // 2
    if n <= MOST_EDGES:
        return np.arange(n)
    total, jump, width = np.append(0.0, np.cumsum(v)), np.zeros(n), 1
    while width < 4 * n / even:
        at = np.arange(width, n - width)
        score = np.abs(total[at + width] + total[at - width] - 2 * total[at]) / s[at] / np.sqrt(2 * width)
        top = score == running_maximum(score, 2 * width + 1)
        jump[at[top]] = np.maximum(jump[at[top]], score[top])
        width *= 2
    return np.union1d(np.linspace(0, n, even, endpoint=False).astype(int), np.argsort(jump)[even - MOST_EDGES :])


@dataclass(frozen=True)
class _Pieces:
    cost: float  # -2 log likelihood plus a cost for each piece
    starts: Indices  # [piece], the first point
    ends: Indices  # [piece], the one after the last
    first: Array  # [piece], the height at its first point
    last: Array  # [piece]
    level: Flags  # [piece], is its slope held near zero?


def _partition(u: Array, v: Array, s: Array, rho: float, edges: Indices) -> _Pieces:
    """Optimal partition into plateaus and ramps (dynamic programming), if the noise has the autocorrelation rho.

    Each piece is an independent process: its first point has the process' variance, the others are predicted.
    """
    n, m = len(u), len(edges) - 1
    columns = np.stack([1 / s, u / s, v / s])
    new = columns[:, 1:] - rho * columns[:, :-1]
    pairs = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
    sums = np.array([np.append([0.0, 0.0], np.cumsum(new[i] * new[j])) for i, j in pairs])
    begin = (1 - rho**2) * np.array([columns[i] * columns[j] for i, j in pairs])
    i, j = np.tril_indices(m + 1, -1)[::-1]
    start, end = edges[i], edges[j]
    w1, wu, wv, wuu, wuv, wvv = (sums[:, end] - sums[:, start + 1] + begin[:, start]) / _innovation(rho)

    flat = np.maximum(wvv - wv**2 / w1, 0.0)
    along = np.maximum(wuu - wu**2 / w1, 1e-300)
    across = np.where(end - start > 1, wuv - wu * wv / w1, 0.0)
    held = along + ((u[end - 1] - u[start]) / DRIFT) ** 2  # a plateau's slope is held near zero, a ramp's is free
    plateau = np.maximum(flat - across**2 / held, 0.0)
    ramp = np.maximum(flat - across**2 / along, 0.0) + RAMP
    costs = np.minimum(plateau, ramp) + PIECE + 2 * np.log(n) - np.log(1 - rho**2)
    best, origin, rows = np.zeros(m + 1), np.zeros(m + 1, dtype=int), np.cumsum(np.arange(m + 1))
    for stop in range(1, m + 1):
        total = best[:stop] + costs[rows[stop - 1] : rows[stop]]
        origin[stop] = int(np.argmin(total))
        best[stop] = total[origin[stop]]
    stops = [m]
    while origin[stops[-1]] > 0:
        stops.append(int(origin[stops[-1]]))
    chosen = np.array([rows[stop - 1] + origin[stop] for stop in reversed(stops)])

    start, end, level = start[chosen], end[chosen], (plateau <= ramp)[chosen]
    slope = across[chosen] / np.where(level, held[chosen], along[chosen])
    centre, height = (wu / w1)[chosen], (wv / w1)[chosen]
    cost = float(best[m] + n * np.log(_innovation(rho)))
    return _Pieces(
        cost, start, end, height + slope * (u[start] - centre), height + slope * (u[end - 1] - centre), level
    )


def _knots(pieces: _Pieces, wander: Array, long_run: Array) -> tuple[Indices, Array, Array]:
    """Knots, heights and standard errors. The end of a ramp goes no further than the plateau that follows it."""
    first, last = pieces.first.copy(), pieces.last.copy()
    for k in np.flatnonzero(~pieces.level):
        sign = np.sign(last[k] - first[k])
        if k > 0 and pieces.level[k - 1]:
            first[k] = sign * max(sign * first[k], min(sign * last[k - 1], sign * last[k]))
        if k + 1 < len(first) and pieces.level[k + 1]:
            last[k] = sign * min(sign * last[k], max(sign * first[k + 1], sign * first[k]))
    knots, heights, errors = [], [], []
    for a, b, x, y, level in zip(pieces.starts, pieces.ends, first, last, pieces.level, strict=True):
        error = standard_error(wander, long_run, a, b) * (1 if level else 2)
        for point, height in ((a, x), (b - 1, y))[: b - a]:
            knots.append(int(point))
            heights.append(float(height))
            errors.append(error)
    return np.array(knots), np.array(heights), np.array(errors)


def standard_error(wander: Array, long_run: Array, start: int, end: int) -> float:
    """Of the mean over the points start..end-1."""
    return float(min(np.sum(long_run[start:end] ** -2.0) ** -0.5, np.mean(wander[start:end])))
