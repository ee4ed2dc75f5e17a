"""Hard curves with known transitions: autocorrelated noise, decays, bumps, and rounding.

Every function takes a random generator and returns a `Curve`. `TUNING`, `HOLD_OUT` and `INTERVALS` are the first words
of three sets of random seeds. The constants of the detector are chosen on the first, and numbers are reported on the
others: on `INTERVALS`, how often confidence intervals contain the truth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kit.curves import Curve, decay

Array = NDArray[np.float64]
TUNING, HOLD_OUT, INTERVALS = 11, 54, 21
NONE = np.empty(0)


def noise(rng: np.random.Generator, points: int, rho: float) -> Array:
    """First-order autocorrelated noise with standard deviation 1, [point]."""
    x = rng.normal(size=points) * np.sqrt(1 - rho**2)
    x[0] = rng.normal()
    for i in range(1, points):
        x[i] += rho * x[i - 1]
    return x


def _steps(rng: np.random.Generator, points: int) -> tuple[Array, Array, bool]:
    """Positions in [0, 1], their steps, and whether the steps are log-spaced."""
    u, last = np.linspace(0, 1, points), 10.0 ** rng.uniform(3, 5)
    logarithmic = bool(rng.random() < 0.5)
    return u, last**u if logarithmic else last * u, logarithmic


def _points(rng: np.random.Generator, fewest: int = 100, most: int = 1000) -> int:
    return int(np.exp(rng.uniform(np.log(fewest), np.log(most))))


def flat(rng: np.random.Generator, rho: float) -> Curve:
    """A constant in noise."""
    u, steps, logarithmic = _steps(rng, _points(rng))
    return Curve(steps, 1 + 0.1 * noise(rng, len(u), rho), NONE, NONE, logarithmic, frozenset({f"rho {rho}"}))


def averaged(rng: np.random.Generator) -> Curve:
    """A moving average of flat white noise: exponential, or over a window of 5 to 40 points."""
    u, steps, logarithmic = _steps(rng, _points(rng, 200))
    if rng.random() < 0.5:
        values = noise(rng, len(u), 1 - 1 / rng.uniform(3, 20))
    else:
        window = int(rng.integers(5, 41))
        values = np.convolve(rng.normal(size=len(u) + window - 1), np.ones(window) / window, "valid")
    return Curve(steps, 1 + 0.1 * values, NONE, NONE, logarithmic, frozenset({"averaged"}))


def drops(rng: np.random.Generator, rho: float | None = None) -> Curve:
    """One to five drops of 8 to 16 noise widths, all down or all up, with plateaus of 15 points or more between them.

    A drop takes 3 to 30% of the distance to its nearer neighbour, from 10% to 90%.
    """
    count = int(rng.integers(1, 6))
    rho = float(rng.choice([0, 0.3, 0.6, 0.8, 0.9])) if rho is None else rho
    gaps = np.exp(rng.uniform(0, np.log(4), count + 1))
    gaps /= gaps.sum()
    u, steps, logarithmic = _steps(rng, _points(rng, max(150, int(20 / gaps.min())), 1500))
    centres, sizes = np.cumsum(gaps)[:-1], rng.uniform(8, 16, count)
    lengths = np.exp(rng.uniform(np.log(0.03), np.log(0.3), count)) * np.minimum(gaps[:-1], gaps[1:])
    values, ats, shapes = noise(rng, len(u), rho), [], []
    for at, size, length in zip(centres, sizes, lengths, strict=True):
        shape = str(rng.choice(["logistic", "exponential"]))
        x = (u - at) / length
        if shape == "logistic":
            values -= size / (1 + np.exp(np.clip(-2 * np.log(9) * x, -700, 700)))
        else:
            values += size * np.expm1(-np.log(9) * np.maximum(x, 0))
        # The steepest half of an exponential drop takes log(2) of its time constant, which is length / log(9).
        ats.append(at if shape == "logistic" else at + np.log(2) / 2 * length / np.log(9))
        shapes.append(shape)
    sign = float(rng.choice([-1.0, 1.0]))
    times = np.interp(ats, u, np.log(steps) if logarithmic else steps)
    return Curve(
        steps,
        sign * values,
        np.exp(times) if logarithmic else times,
        sign * sizes,
        logarithmic,
        frozenset({f"rho {rho}", *shapes}),
    )


def noisy_decay(rng: np.random.Generator) -> Curve:
    """A smooth decay in white or autocorrelated noise of 0.3 to 5% of its range."""
    curve = decay(rng)
    rho = float(rng.choice([0, 0.5, 0.8]))
    size = np.exp(rng.uniform(np.log(0.003), np.log(0.05)))
    return Curve(
        curve.steps,
        curve.values + size * noise(rng, len(curve.steps), rho),
        NONE,
        NONE,
        curve.logarithmic,
        curve.traits | {f"rho {rho}"},
    )


def bump(rng: np.random.Generator) -> Curve:
    """Returns a plateau in noise with a bump of 8 to 1,000 noise widths.

    A bump of one or two points is no transition. A bump of five to sixty points is two transitions.
    """
    u, steps, logarithmic = _steps(rng, _points(rng))
    width = int(rng.integers(1, 3)) if rng.random() < 0.4 else int(np.exp(rng.uniform(np.log(5), np.log(60))))
    rho, size = float(rng.choice([0, 0.5])), np.exp(rng.uniform(np.log(8), np.log(1000)))
    width = min(width, len(u) // 4)
    start = int(rng.integers(len(u) // 8, len(u) - width - len(u) // 8))
    sign = float(rng.choice([-1.0, 1.0]))
    values = noise(rng, len(u), rho)
    values[start : start + width] += sign * size
    edges = np.array([start, start + width])
    times = (steps[edges - 1] + steps[edges]) / 2 if width >= 3 else NONE
    drop = np.array([-sign * size, sign * size]) if width >= 3 else NONE
    return Curve(steps, values, times, drop, logarithmic, frozenset({f"width {width}", f"rho {rho}"}))


def rounded(rng: np.random.Generator) -> Curve:
    """A constant whose last digits jitter, in float32 or in bfloat16."""
    u, steps, logarithmic = _steps(rng, _points(rng))
    unit = float(rng.choice([2.0**-23, 2.0**-8]))
    level = float(np.exp(rng.uniform(np.log(1e-3), np.log(10))))
    wander = noise(rng, len(u), float(rng.choice([0, 0.9]))) * rng.uniform(0.3, 2)
    unit *= 2.0 ** np.floor(np.log2(level))
    values = np.round((level + unit * wander) / unit) * unit
    return Curve(steps, values, NONE, NONE, logarithmic, frozenset({f"unit {unit}"}))


FAMILIES: dict[str, Callable[[np.random.Generator], Curve]] = {
    "flat, white": lambda rng: flat(rng, 0.0),
    "flat, 0.5": lambda rng: flat(rng, 0.5),
    "flat, 0.8": lambda rng: flat(rng, 0.8),
    "flat, 0.95": lambda rng: flat(rng, 0.95),
    "moving averages": averaged,
    "drops": drops,
    "decays": noisy_decay,
    "bumps": bump,
    "rounded constants": rounded,
}


def family(name: str, seeds: int, count: int) -> list[Curve]:
    """Returns `count` curves of a family from one of the sets of seeds."""
    place = list(FAMILIES).index(name)
    return [FAMILIES[name](np.random.default_rng([seeds, place, i])) for i in range(count)]
