"""Measures how often the 95% confidence interval of a power-law fit covers the true exponent.

Run with `python -m benchmarks.coverage`. Every design is drawn 3000 times and fitted with `sl.fit_law`. The script
exits with 1 if the interval covers the exponent in fewer than 93% or more than 97% of the draws. Points with different
numbers of seeds have only the lower bar: their errors are those of HC3, which covers more if the precise points decide.
Designs without a bar are reported only: their noise differs between points, while a t interval assumes equal noise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from benchmarks.measure import Row, report
from numpy.typing import NDArray

import stagelens as sl

LAWS = 3000  # of each design: coverage has a standard error of 0.4%
TRUTH = 1.5  # the exponent of every column
AT_LEAST, AT_MOST = 93, 97  # percent


@dataclass(frozen=True)
class Design:
    """A grid, the number of seeds of each point, and the noise of log values: of a seed, and shared by a point."""

    name: str
    columns: NDArray[np.float64]  # [point, column]
    seeds: Sequence[int]  # of each point
    seed_noise: float = 0.2
    point_noise: float = 0.0
    growth: float = 1.0  # noise at the last point, in units of that at the first
    judged: bool = True
    names: tuple[str, ...] = field(default=("x", "y"))

    @property
    def bars(self) -> tuple[int | None, int | None]:
        """Returns the highest and the lowest coverage that is accepted, in percent."""
        if not self.judged:
            return None, None
        return (AT_MOST if len(set(self.seeds)) == 1 else None), AT_LEAST

    def coverage(self, laws: int = LAWS) -> list[float]:
        """Returns the percentage of `laws` simulated fits whose interval covers the true exponent, for each column."""
        generator = np.random.default_rng(0)
        points = len(self.columns)
        rows = np.repeat(np.arange(points), self.seeds)
        seeds = [seed for count in self.seeds for seed in range(count)]
        columns = dict(zip(self.names, self.columns[rows].T, strict=False))
        size = np.geomspace(1, self.growth, points)[rows]
        covered = np.zeros(len(columns))
        for _ in range(laws):
            deviation = self.point_noise * generator.standard_normal(points)
            noise = deviation[rows] + self.seed_noise * generator.standard_normal(len(rows))
            values = np.prod(self.columns[rows], axis=1) ** TRUTH * np.exp(size * noise)
            fitted = sl.fit_law(columns, values, seeds=seeds).exponents.values()
            covered += [exponent.low <= TRUTH <= exponent.high for exponent in fitted]
        return (100 * covered / laws).tolist()


def line(points: int) -> NDArray[np.float64]:
    return np.geomspace(1, 64, points)[:, None]


def designs() -> Iterator[Design]:
    """Returns the designs: numbers of points and seeds, scatter of points, uneven seeds, one or two columns."""
    plane = np.array(list(product([1.0, 2.0, 4.0, 8.0], [1.0, 3.0, 9.0])))
    for points, seeds in product((5, 7, 10), (1, 2, 3, 5)):
        yield Design(f"{points} points, {_seeds(seeds)}", line(points), [seeds] * points)
    for seeds in (1, 2, 5):
        scatter = {"seed_noise": 0.05, "point_noise": 0.3}
        yield Design(f"10 points that scatter more than their {_seeds(seeds)}", line(10), [seeds] * 10, **scatter)
        yield Design(f"two columns, 12 points, {_seeds(seeds)}", plane, [seeds] * 12)
    yield Design("10 points, the first has a second seed", line(10), [2, *[1] * 9])
    yield Design("10 points, the middle one has a second seed", line(10), [*[1] * 5, 2, *[1] * 4])
    yield Design("5 points, the last has a second seed", line(5), [1, 1, 1, 1, 2])
    yield Design("two columns, 12 points, one has a second seed", plane, [2, *[1] * 11])
    yield Design("two columns, 6 points, 2 seeds", plane[[0, 2, 4, 7, 9, 11]], [2] * 6)
    for points, seeds in ((6, 5), (8, 10), (10, 5)):
        name = f"{points} points, {seeds} seeds in the middle, 1 at the ends"
        yield Design(name, line(points), [1, *[seeds] * (points - 2), 1])
    yield Design("10 points, 5 seeds, 1 at the first", line(10), [1, *[5] * 9])
    yield Design("10 points, 5 seeds, 4, 2 and 1 at the last", line(10), [*[5] * 7, 4, 2, 1])
    yield Design("6 points, 1 seed in the middle, 10 at the ends", line(6), [10, 1, 1, 1, 1, 10])
    scattered = {"seed_noise": 0.05, "point_noise": 0.3}
    yield Design("10 points that scatter, 5 seeds, 1 at the ends", line(10), [1, *[5] * 8, 1], **scattered)
    yield Design("two columns, 12 points, 5 seeds, 1 at the end of y", plane, [5, 5, 1] * 4)
    for growth in (2, 4, 10):
        name = f"10 points, noise {growth} times larger at the last than at the first"
        yield Design(name, line(10), [2] * 10, growth=growth, judged=False)


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def main() -> int:
    rows = []
    for design in designs():
        for name, found in zip(design.names, design.coverage(), strict=False):
            what = f"{design.name}, {name}" if design.columns.shape[1] > 1 else design.name
            rows.append(Row(what, found, *design.bars, "%"))
    return report(__file__, rows, note=f"percent of {LAWS} simulated laws")


if __name__ == "__main__":
    sys.exit(main())
