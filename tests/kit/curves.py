"""Curves with known stages, and smooth decays without any, to test `detect_stages`.

A staircase is drawn on an axis u in [0, 1], which is either the step or its logarithm:

    value(u) = level - sum_i drop_i R((u - c_i) / w_i) - drift(u) + noise

What is drawn: 1 to 8 stages; 200 to 2,000 points; noise of 1 to 5 % of the range; drops up to 20:1 and distances
between transitions up to 100:1 (both ratios drawn anew for each curve); four shapes R. By construction a transition
takes 3 to 30 % of the distance to its nearer neighbour. A plateau has five points or more, and slopes by at most a
tenth of the smaller drop next to it. One rule defines the true stages: a drop counts if it exceeds three standard
errors of the plateaus next to it. The weakest drop that does not is removed first, and its two plateaus are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Rises from 0 to 1, steepest at 0; and where they are done by 10 % and by 90 %.
SHAPES: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "logistic": (lambda x: 1 / (1 + np.exp(-np.clip(x, -50, 50))), -np.log(9), np.log(9)),
    "Gompertz": (lambda x: np.exp(-np.exp(-np.clip(x, -50, 50))), -np.log(np.log(10)), -np.log(-np.log(0.9))),
    "relaxation": (lambda x: 1 - np.exp(-np.clip(x, 0, 50)), -np.log(0.9), np.log(10)),
    "ramp": (lambda x: np.clip(x + 0.5, 0, 1), -0.4, 0.4),
}
TRAITS = {"log": 0.4, "mixed": 0.2, "sloping": 0.35, "overshoot": 0.15, "rising": 0.25, "unfinished": 0.15}
LONGEST, LEAST_POINTS, MOST_POINTS = 0.3, 5, 2000


@dataclass(frozen=True)
class Curve:
    steps: Array  # [point]
    values: Array  # [point]
    times: Array  # [transition], the true steepest points, in steps
    drops: Array  # [transition]
    logarithmic: bool  # the axis on which the curve was drawn
    traits: frozenset[str]
    margin: float = np.inf  # the least drop, in standard errors of the plateaus next to it

    def position(self, steps: Array | list[float]) -> Array:
        """Returns steps as positions on the curve's own axis, from 0 to 1."""
        t = np.maximum(np.asarray(steps, dtype=float), self.steps[self.steps > 0][0])
        grid = np.maximum(self.steps, self.steps[self.steps > 0][0])
        if self.logarithmic:
            t, grid = np.log(t), np.log(grid)
        return np.asarray((t - grid[0]) / (grid[-1] - grid[0]))

    def errors(self, found: list[float]) -> Array:
        """The error of each transition's time, as a fraction of the distance between its neighbours (or the ends)."""
        truth = self.position(self.times)
        around = np.concatenate([[0.0], truth, [1.0]])
        return np.asarray(np.abs(self.position(found) - truth) / (around[2:] - around[:-2]))


def staircase(rng: np.random.Generator, shape: str | None = None, fewest: int = 200) -> Curve:
    """Returns a curve of 0 to 7 transitions with a random mix of the properties of real curves."""
    count = int(rng.integers(0, 8))
    traits = {name for name, share in TRAITS.items() if rng.random() < share}
    traits -= set() if count else {"unfinished", "overshoot"}
    shape = shape or str(rng.choice(list(SHAPES)))
    rise, begin, finish = SHAPES[shape]

    gaps = _unequal(rng, 100.0, count + 1)
    gaps = (np.sort(gaps) if rng.random() < 0.2 else gaps) / gaps.sum()  # sorted: saddle to saddle
    centres = np.cumsum(gaps)[:-1]
    lengths = np.exp(rng.uniform(np.log(0.03), np.log(LONGEST), count)) * np.minimum(gaps[:-1], gaps[1:])
    widths = lengths / (finish - begin)
    starts, ends = centres + begin * widths, centres + finish * widths
    drops = _unequal(rng, 20.0, count) * (-1 if "rising" in traits else 1)

    u, steps = _axis(rng, traits, max(fewest, LEAST_POINTS / (gaps.min() * (1 - LONGEST))))
    done = [rise((u - c) / w) for c, w in zip(centres, widths, strict=True)]
    if "overshoot" in traits:  # overshoots, and comes back within a few times its length
        i = int(rng.integers(count))
        back = rng.uniform(1.0, 2.5) * lengths[i]
        done[i] = done[i] * (1 + rng.uniform(0.1, 0.3) * np.exp(-np.maximum(u - centres[i], 0.0) / back))
        ends[i] += min(2 * back, gaps[i + 1] / 2)
    values = -sum((d * r for d, r in zip(drops, done, strict=True)), np.zeros_like(u))
    if "sloping" in traits:
        values = values - _drift(rng, u, gaps, drops)
    if "unfinished" in traits:  # ends after the middle of the last transition, which five points show at least
        stop = rng.uniform(centres[-1], ends[-1])
        keep = max(int(np.searchsorted(u, stop)), int(np.searchsorted(u, centres[-1])) + LEAST_POINTS)
        u, steps, values = u[:keep], steps[:keep], values[:keep]
        starts, ends = np.append(starts[:-1], min(starts[-1], centres[-1])), np.append(ends[:-1], centres[-1])

    sigma = (float(np.ptp(values)) or 1.0) * float(np.exp(rng.uniform(np.log(0.01), np.log(0.05))))
    values = values + sigma * rng.normal(size=len(u))
    there, margin = _there(u, values, starts, ends, np.sign(drops), sigma)
    places = np.log(steps) if {"log", "mixed"} & traits else steps
    times = np.interp(centres[there], u, places)
    return Curve(
        steps=steps,
        values=values,
        times=np.exp(times) if {"log", "mixed"} & traits else times,
        drops=drops[there],
        logarithmic=bool({"log", "mixed"} & traits),
        traits=frozenset(traits | {shape}),
        margin=margin,
    )


def _unequal(rng: np.random.Generator, most: float, count: int) -> Array:
    """Sizes whose ratios are at most a random number up to `most`."""
    ratio = rng.uniform(0, np.log(most))
    return np.asarray(np.exp(rng.uniform(0, ratio, count)))


def _axis(rng: np.random.Generator, traits: set[str], fewest: float) -> tuple[Array, Array]:
    """Returns positions u in [0, 1] on the curve's axis, and their steps."""
    points = int(np.exp(rng.uniform(np.log(fewest), np.log(max(fewest, MOST_POINTS)))))
    last = 10.0 ** rng.uniform(3.5, 5.5)
    u = np.linspace(0, 1, points)
    if "mixed" in traits:  # uniform in the logarithm, and some uniform in the step
        u = np.union1d(u, np.log(np.linspace(0, last, points // 3 + 1)[1:]) / np.log(last))
        u = u[(u >= 0) & (u <= 1) & (np.diff(u, prepend=-1.0) > 1e-6)]
    return u, last**u if {"log", "mixed"} & traits else u * last


def _drift(rng: np.random.Generator, u: Array, gaps: Array, drops: Array) -> Array:
    """Adds a slope to each plateau: up to a tenth of the smaller drop next to it, in the direction of that drop."""
    sizes = np.concatenate([drops[:1], drops, drops[-1:]]) if len(drops) else np.ones(2)
    smaller = np.where(np.abs(sizes[1:]) < np.abs(sizes[:-1]), sizes[1:], sizes[:-1])
    heights = np.cumsum(smaller * rng.uniform(0, 0.1, len(smaller)))
    return np.asarray(np.interp(u, np.append(0.0, np.cumsum(gaps)), np.append(0.0, heights)))


def _there(
    u: Array, v: Array, starts: Array, ends: Array, signs: Array, sigma: float
) -> tuple[NDArray[np.intp], float]:
    """Returns which drops exceed three standard errors of their plateaus, and the smallest of these in such errors."""
    there = np.arange(len(starts))
    while len(there):
        edges = zip(np.append(-1.0, ends[there]), np.append(starts[there], 2.0), strict=True)
        plateaus = [v[(u >= start) & (u <= end)] for start, end in edges]
        levels = np.array([np.mean(plateau) for plateau in plateaus])
        errors = sigma * np.array([len(plateau) for plateau in plateaus]) ** -0.5
        margins = -np.diff(levels) * signs[there] / np.hypot(errors[1:], errors[:-1])
        if margins.min() > 3:
            return there, float(margins.min())
        there = np.delete(there, int(np.argmin(margins)))
    return there, np.inf


def decay(rng: np.random.Generator) -> Curve:
    """A smooth decay (or its mirror, a saturating rise), which has no stages: exponential, stretched or power law."""
    points = int(np.exp(rng.uniform(np.log(40), np.log(400))))
    last = 10.0 ** rng.uniform(3, 5.5)
    logarithmic = bool(rng.random() < 0.5)
    steps = np.geomspace(1, last, points) if logarithmic else np.linspace(0, last, points)
    if logarithmic and rng.random() < 0.3:
        steps = np.unique(np.concatenate([steps, np.linspace(0, last, points // 3)]))
    scale = last * 10.0 ** (rng.uniform(-4, 0) if logarithmic else rng.uniform(-1.5, 0.5))
    kind = str(rng.choice(["exponential", "stretched", "power law", "shifted power law"]))
    exponent = rng.uniform(0.2, 1.5)
    values = {
        "exponential": np.exp(-steps / scale),
        "stretched": np.exp(-((steps / scale) ** min(exponent, 0.9))),
        "power law": (steps + steps[1]) ** -exponent,
        "shifted power law": (1 + steps / scale) ** -exponent,
    }[kind]
    values = (values - values.min()) / np.ptp(values)
    noise = 0.0 if rng.random() < 0.3 else np.exp(rng.uniform(np.log(0.003), np.log(0.05)))
    values = rng.choice([-1.0, 1.0]) * values + noise * rng.normal(size=len(steps))
    none = np.empty(0)
    traits = {kind, "log" if logarithmic else "linear", "noisy" if noise else "clean"}
    return Curve(steps, values, none, none, logarithmic, frozenset(traits))
