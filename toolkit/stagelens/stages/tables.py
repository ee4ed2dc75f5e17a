"""The numbers of a timeline as tables, one for each series, that stages of the whole model are found in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stagelens.stages.pieces import Array

if TYPE_CHECKING:
    from stagelens.timelines import Timeline

MOST_POINTS = 1000  # steps; of more, uniformly many are taken
MEASURED = 0.5  # of the steps: a number that was measured less often is left out
CONSTANT = 1e-6  # of its largest value: a number that changes less is constant, or rounded to float32


@dataclass(frozen=True)
class Table:
    """One series: `values` [point, number], and a name for each number, such as `loss` or `probe/reading[head=1]`."""

    series: str
    names: tuple[str, ...]
    values: Array


def tables_of(timeline: Timeline) -> tuple[NDArray[Any], list[Table]]:
    """Returns the steps [point] and the tables of all series of numbers.

    Series of labels, standard errors and chance levels, and numbers that are constant, infinite or seldom measured, are
    left out. Gaps are filled by straight lines.
    """
    from stagelens.timelines import element_names, is_companion

    n = len(timeline.steps)
    points = np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(int)) if n else np.arange(0)
    steps, found = timeline.steps[points], []
    for series in timeline:
        column = timeline.column(series)
        if column.labels or is_companion(series, timeline) or not column.size:
            continue
        values = timeline.series(series).reshape(n, -1)[points]
        names = element_names(column)
        used = [number for number in range(values.shape[1]) if _is_usable(values[:, number])]
        if used:
            filled = np.stack([_filled(steps, values[:, number]) for number in used], axis=1)
            found.append(Table(series, tuple(names[number] for number in used), filled))
    return steps, found


def _is_usable(values: Array) -> bool:
    there = values[~np.isnan(values)]
    if len(there) < max(MEASURED * len(values), 4) or not np.isfinite(there).all():
        return False
    return bool(np.ptp(there) > CONSTANT * np.abs(there).max())


def _filled(steps: NDArray[Any], values: Array) -> Array:
    there = ~np.isnan(values)
    return np.asarray(np.interp(steps, steps[there], values[there]))
