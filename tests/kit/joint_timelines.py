"""Timelines of many readings whose joint transitions are known.

A family is one quantity that is measured several times, for example by several heads. Its copies differ in scale, sign,
noise and, slightly, in time. It changes in some of the joint transitions. Readings of pure noise and smooth decays
change in none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import stagelens as sl
from kit.hard_curves import noise
from kit.written_runs import timeline

Array = NDArray[np.float64]
LAG = 0.006  # of the axis: the standard deviation of a copy's own time


@dataclass(frozen=True)
class Known:
    """A timeline, its joint transitions as positions `times` on the axis, and the families that move in each."""

    timeline: sl.Timeline
    u: Array  # [point]
    times: Array  # [transition]
    moves: NDArray[np.bool_]  # [family, transition]


def staged(rng: np.random.Generator, noises: int = 6, decays: int = 1) -> Known:
    """One to four transitions, 2 to 7 families of 1 to 12 copies. A drop has 8 to 16 noise widths."""
    count, families = int(rng.integers(1, 5)), int(rng.integers(2, 8))
    gaps = np.exp(rng.uniform(0, np.log(3), count + 1))
    gaps /= gaps.sum()
    times = np.cumsum(gaps)[:-1]
    moves = rng.random((families, count)) < 0.5
    moves[rng.integers(families, size=count), np.arange(count)] = True
    u, steps = axis(rng)
    lengths = np.exp(rng.uniform(np.log(0.03), np.log(0.3), (families, count))) * np.minimum(gaps[:-1], gaps[1:])
    series = {}
    for family in range(families):
        sizes = rng.uniform(8, 16, count) * rng.choice([1, 1, 1, 1, -1], count) * moves[family]
        copies, rho = int(rng.choice([1, 1, 2, 4, 12])), float(rng.choice([0, 0.5, 0.8]))
        values = [copy(rng, u, times, sizes, lengths[family], rho) for _ in range(copies)]
        series[f"family {family}"] = (np.stack(values, axis=1), ("head",))
    series |= {f"noise {i}": noise(rng, len(u), float(rng.choice([0, 0.5, 0.8]))) for i in range(noises)}
    series |= {f"decay {i}": 100 * np.exp(-rng.uniform(3, 8) * u) + noise(rng, len(u), 0.5) for i in range(decays)}
    return Known(timeline(steps, series), u, times, moves)


def axis(rng: np.random.Generator) -> tuple[Array, Array]:
    """Positions from 0 to 1 and their steps, 80 to 300 of them: uniform, or log-spaced."""
    u = np.linspace(0, 1, int(rng.integers(80, 300)))
    return u, 10_000**u if rng.random() < 0.5 else 1000 * u


def copy(rng: np.random.Generator, u: Array, times: Array, sizes: Array, lengths: Array, rho: float) -> Array:
    values = noise(rng, len(u), rho)
    for at, size, length in zip(times + rng.normal(0, LAG, len(times)), sizes, lengths, strict=True):
        values += size / (1 + np.exp(np.clip(-2 * np.log(9) * (u - at) / length, -700, 700)))
    return np.asarray(10 ** rng.uniform(-3, 3) * rng.choice([-1, 1]) * values + rng.normal())


def noise_alone(rng: np.random.Generator, readings: int, rho: float) -> sl.Timeline:
    u, steps = axis(rng)
    return timeline(steps, {f"noise {i}": noise(rng, len(u), rho) for i in range(readings)})


def agrees(found: Array, known: Known) -> bool:
    """True if there are as many transitions and each is within 5% of the distance to its nearer neighbour, and .01."""
    gaps = np.diff(np.concatenate([[0.0], known.times, [1.0]]))
    near = 0.05 * np.minimum(gaps[:-1], gaps[1:]) + 0.01
    return len(found) == len(known.times) and bool(np.all(np.abs(np.sort(found) - known.times) <= near))
