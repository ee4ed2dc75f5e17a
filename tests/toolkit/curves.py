"""Curves with known stages, and smooth decays without any: the truth that `detect_stages` is held against.

A staircase is drawn on an axis u in [0, 1], which is either the step or its logarithm:

    value(u) = level - sum_i drop_i S((u - c_i) / w_i) - drift(u) + noise

with random centres, widths, drops and directions. A curve whose truth cannot be seen even by somebody who knows where
to look is redrawn, by one rule, applied to the drawn points: each drop exceeds three standard errors of the plateaus
beside it, and a hundredth of the curve's range; each plateau has three points or more, and is three standard errors
flatter than a ramp in its place; a fall that the curve's beginning or end cuts off shows three points or more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RISE_10_90 = 2 * np.log(9.0)  # of the logistic function, in units of its width


@dataclass(frozen=True)
class Curve:
    steps: Array  # [point]
    values: Array  # [point]
    times: Array  # [transition], the true steepest points, in steps
    drops: Array  # [transition]
    logarithmic: bool  # the axis on which the curve was drawn
    traits: frozenset[str]
    margin: float = np.inf  # the least drop, in standard errors of the plateaus beside it

    def position(self, steps: Array | list[float]) -> Array:
        """Steps as places on the curve's own axis, from 0 to 1."""
        t = np.maximum(np.asarray(steps, dtype=float), self.steps[self.steps > 0][0])
        grid = np.maximum(self.steps, self.steps[self.steps > 0][0])
        if self.logarithmic:
            t, grid = np.log(t), np.log(grid)
        return np.asarray((t - grid[0]) / (grid[-1] - grid[0]))

    def errors(self, found: list[float]) -> Array:
        """Error of each transition's time, as a share of the distance between its neighbours (or the curve's ends)."""
        truth = self.position(self.times)
        around = np.concatenate([[0.0], truth, [1.0]])
        return np.asarray(np.abs(self.position(found) - truth) / (around[2:] - around[:-2]))


def staircase(rng: np.random.Generator) -> Curve:
    """A curve of 0 to 7 transitions with a random mix of everything that real ones show."""
    while (curve := _draw(rng)) is None:
        pass
    return curve


def _draw(rng: np.random.Generator) -> Curve | None:
    traits = {name for name, share in _TRAITS.items() if rng.random() < share}
    count = int(rng.integers(0, 8))
    traits -= {"unfinished", "overshoot", "falls from the start", "unequal drops"} if count == 0 else set()
    centres, widths = _places(rng, count, "unequal plateaus" in traits)
    drops = _drops(rng, count, traits)

    logarithmic = "log" in traits or "mixed" in traits
    u, steps = _axis(rng, traits, centres, widths)
    asymmetric = rng.random(count) < 0.25
    rise = [_rise((u - c) / w, bool(a)) for c, w, a in zip(centres, widths, asymmetric, strict=True)]
    if "falls from the start" in traits:
        rise[0] = 1 - np.exp(-(u - u[0]) / (2 * widths[0]))
        centres[0] = u[0]

    if "overshoot" in traits:  # goes too far, and comes back
        i = int(rng.integers(count))
        late = np.maximum(u - centres[i], 0.0) / widths[i]
        rise[i] = rise[i] * (1 + rng.uniform(0.1, 0.4) * np.exp(-late / rng.uniform(4, 10)))

    values = rng.normal() - sum((d * r for d, r in zip(drops, rise, strict=True)), np.zeros_like(u))
    if "sloping" in traits:
        values = values - _drift(rng, u, centres, drops)
    if "unfinished" in traits:
        before = centres[-2] if count > 1 else 0.0
        keep = u <= max(centres[-1] + widths[-1] * rng.uniform(0.0, 3.0), before)
        u, steps, values = u[keep], steps[keep], values[keep]
    if len(u) < 30:
        return None

    seen = drops.copy()
    if "unfinished" in traits:  # only what has fallen so far can be seen
        seen[-1] *= _rise((u[-1:] - centres[-1]) / widths[-1], bool(asymmetric[-1]))[0]
        if np.sum(_rise((u - centres[-1]) / widths[-1], bool(asymmetric[-1])) > 0.1) < 3:
            return None
    if "falls from the start" in traits and np.sum(rise[0] < 0.9) < 3:
        return None
    extent = float(np.ptp(values)) or 1.0
    sigma = 0.0 if "clean" in traits else extent * float(np.exp(rng.uniform(np.log(0.01), np.log(0.05))))
    if "noise grows with level" in traits:
        sigma = sigma * (0.3 + 1.2 * (values - values.min()) / extent)
    noisy = values + sigma * rng.normal(size=len(u))
    margin = _margin(u, noisy, centres, widths, seen, np.broadcast_to(sigma, u.shape), traits)
    if margin < 3 or np.any(np.abs(seen) < 0.01 * extent):
        return None

    times = np.interp(centres, u, np.log(np.maximum(steps, steps[steps > 0][0])) if logarithmic else steps)
    times = np.exp(times) if logarithmic else times
    if count == 1 and "falls from the start" in traits:  # that is a smooth decay
        times, drops = times[:0], drops[:0]
    scale, shift = np.exp(rng.uniform(-5, 5)), rng.normal() * 10
    return Curve(steps, shift + scale * noisy, times, scale * drops, logarithmic, frozenset(traits), margin)


_TRAITS = {
    "log": 0.35,
    "mixed": 0.25,
    "dense": 0.3,
    "unequal drops": 0.4,
    "unequal plateaus": 0.3,
    "sloping": 0.35,
    "overshoot": 0.15,
    "rising": 0.25,
    "both directions": 0.1,
    "unfinished": 0.15,
    "falls from the start": 0.15,
    "clean": 0.1,
    "noise grows with level": 0.15,
}


def _places(rng: np.random.Generator, count: int, unequal: bool) -> tuple[Array, Array]:
    """Centres of the transitions in (0, 1), and their widths."""
    ratio = 100.0 if unequal else 5.0
    gaps = np.exp(rng.uniform(0, np.log(ratio), count + 1))
    if unequal and rng.random() < 0.5:
        gaps = np.sort(gaps)  # saddle to saddle: each plateau is longer than the one before
    centres = np.cumsum(gaps)[:-1] / gaps.sum()
    room = np.minimum(gaps[:-1], gaps[1:]) / gaps.sum()
    share = np.exp(
        rng.uniform(np.log(0.03), np.log(0.4), count)
    )  # of the nearer neighbour's distance: the 10-90 % rise
    return centres, share * room / RISE_10_90


def _drops(rng: np.random.Generator, count: int, traits: set[str]) -> Array:
    drops = np.exp(rng.uniform(0, np.log(20.0 if "unequal drops" in traits else 3.0), count))
    if "rising" in traits:
        drops = -drops
    if "both directions" in traits:
        drops = drops * rng.choice([-1.0, 1.0], count)
    return np.asarray(drops / max(np.abs(drops).sum(), 1.0))


def _axis(rng: np.random.Generator, traits: set[str], centres: Array, widths: Array) -> tuple[Array, Array]:
    """Places u in [0, 1] on the curve's axis, and the steps that they stand for."""
    points = int(np.exp(rng.uniform(np.log(60), np.log(400))))
    last = 10.0 ** rng.uniform(3.5, 5.5)
    u = np.linspace(0, 1, points)
    if "mixed" in traits and "log" not in traits:
        even = np.log(np.linspace(0, last, points // 3 + 1)[1:]) / np.log(last)
        u = np.concatenate([np.linspace(0, 1, points - len(even)), even])
    if "dense" in traits:
        u = np.concatenate([u, *(c + w * np.linspace(-4, 4, 12) for c, w in zip(centres, widths, strict=True))])
    u = np.unique(u[(u >= 0) & (u <= 1)])
    u = u[np.concatenate([[True], np.diff(u) > 1e-6])]
    return u, last**u if {"log", "mixed"} & traits else u * last


def _rise(x: Array, asymmetric: bool) -> Array:
    """From 0 to 1 with the greatest rate at x = 0: the logistic function, or Gompertz' with its longer tail."""
    x = np.clip(x, -50, 50)
    return np.exp(-np.exp(-x)) if asymmetric else 1 / (1 + np.exp(-x))


def _drift(rng: np.random.Generator, u: Array, centres: Array, drops: Array) -> Array:
    """Each plateau slopes by up to a tenth of the smaller drop beside it, in the direction of that drop."""
    edges = np.concatenate([[0.0], centres, [1.0]])
    sizes = np.concatenate([drops[:1], drops, drops[-1:]]) if len(drops) else np.array([0.1, 0.1])
    smaller = np.where(np.abs(sizes[1:]) < np.abs(sizes[:-1]), sizes[1:], sizes[:-1])
    heights = np.concatenate([[0.0], np.cumsum(smaller * rng.uniform(0, 0.1, len(smaller)))])
    return np.asarray(np.interp(u, edges, heights))


def _margin(u: Array, v: Array, centres: Array, widths: Array, drops: Array, sigma: Array, traits: set[str]) -> float:
    """How clearly the least visible drop or plateau stands out, in standard errors; 0 when a plateau has < 3 points.

    Measured on the points of the plateaus, as by somebody who knows where they are. A drop is held against the
    standard error of the levels beside it. A plateau between two drops in one direction is held against the ramp that
    would join them without it: by how many standard errors of its slope it is flatter.
    """
    half = widths * RISE_10_90 / 2
    plateaus = [
        np.flatnonzero((u >= start) & (u <= end))
        for start, end in zip([-np.inf, *(centres + half)], [*(centres - half), np.inf], strict=True)
    ]
    # What begins with a fall has no first plateau, what is unfinished has no last one: a point stands for it.
    if "falls from the start" in traits:
        plateaus[0] = np.array([0])
    if "unfinished" in traits:
        plateaus[-1] = np.array([len(u) - 1])
    inner = plateaus[("falls from the start" in traits) : len(plateaus) - ("unfinished" in traits)]
    if min(map(len, inner), default=3) < 3:
        return 0.0
    errors = np.array([np.sqrt(np.mean(sigma[on] ** 2) / len(on)) + 1e-12 for on in plateaus])
    levels = np.array([np.mean(v[on]) for on in plateaus])
    seen = -np.diff(levels) * np.sign(drops) / np.hypot(errors[1:], errors[:-1])
    flatter = [
        (min(abs(drops[i]), abs(drops[i + 1])) / (centres[i + 1] - centres[i]) + np.sign(drops[i]) * slope)
        * np.std(u[on])
        / errors[i + 1]
        for i, on in enumerate(plateaus[1:-1])
        if drops[i] * drops[i + 1] > 0
        for slope in [np.polyfit(u[on] - u[on].mean(), v[on], 1)[0]]
    ]
    return float(min([*seen, *flatter, np.inf]))


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
