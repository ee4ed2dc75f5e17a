"""The heat map of a run: all readings over training, sorted by when they move, under a ribbon of joint stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from stagelens.base import StagelensError
from stagelens.figures.drawing import fit_x_axis, title_of, x_label
from stagelens.figures.style import COLOURS, grid, headline
from stagelens.stages import tables_of

if TYPE_CHECKING:
    from stagelens.runs import Run
    from stagelens.stages import JointStages

Floats = NDArray[np.float64]

WIDTH = 6.3  # inches, of the map
ROW, LOW, HIGH = 0.16, 1.2, 9.0  # inches: a row with its own name, and the least and greatest height of the map
NAMED = 45  # rows: of more, only the groups are named
MOST_ROWS, MOST_OF_SERIES = 200, 8  # of more readings, as many of each series as fit, and some at least
LEAST_WAY = 0.2  # of its range: a reading that ends closer to where it began comes back
LETTER = 0.062  # inches, the width of a letter of a name


@dataclass(frozen=True)
class Row:
    """One number of the timeline: `values` [step] from 0 to 1, flipped if it falls; `moved`: when half is done."""

    series: str
    name: str
    values: Floats
    moved: float


def heat_map_figure(run: Run) -> Figure | None:
    """Draws all readings over training, each from its lowest to its highest value, sorted by when they move."""
    joint = joint_stages_of(run)
    steps, rows = _rows(run)
    if joint is None or len(rows) < 2 or len(steps) < 4:
        return None
    total, rows = len(rows), _sorted(rows)
    names = _names(rows)
    height = float(np.clip(ROW * len(rows), LOW, HIGH))
    left = 0.25 + LETTER * max(len(name) for _, _, name in names)
    figure, axes = grid((1, 1), panel=(WIDTH, height), gap=(0, 0), margin=(left, 0.15, 0.95, 0.5))
    axis = axes[0, 0]
    edges = _edges(steps)
    axis.pcolormesh(
        edges, np.arange(len(rows) + 1), np.stack([row.values for row in rows]), cmap="viridis", rasterized=True
    )
    axis.set_ylim(len(rows), 0)
    fit_x_axis(axis, run)
    axis.set_xlim(max(edges[0], axis.get_xlim()[0]), edges[-1])
    _name_rows(axis, names)
    axis.set_xlabel(x_label(run))
    _ribbon(axis, joint, height)
    shown = f"{len(rows)} of {total} readings" if total > len(rows) else f"{len(rows)} readings"
    headline(figure, f"{title_of(run)}: {shown}, from lowest (dark) to highest (light); those that fall are flipped")
    return figure


def joint_stages_of(run: Run) -> JointStages | None:
    """Returns the stages of the whole model; None if the run is too short."""
    try:
        return run.joint_stages()
    except StagelensError:
        return None


def _rows(run: Run) -> tuple[NDArray[Any], list[Row]]:
    steps, tables = tables_of(run.timeline)
    rows = []
    for table in tables:
        low, extent = table.values.min(axis=0), np.ptp(table.values, axis=0)
        scaled = ((table.values - low) / extent).T
        scaled = np.where(_falls(scaled)[:, None], 1 - scaled, scaled)
        rows += [Row(table.series, name, v, _moved(steps, v)) for name, v in zip(table.names, scaled, strict=True)]
    return steps, rows


def _falls(values: Floats) -> NDArray[np.bool_]:
    """Returns whether each row of `values` [row, step] ends lower than it began."""
    few = max(values.shape[1] // 20, 1)
    return np.asarray(np.median(values[:, -few:], axis=1) < np.median(values[:, :few], axis=1))


def _moved(steps: NDArray[Any], values: Floats) -> float:
    """Returns the step at which half of the way from the first to the last values is done.

    A reading that comes back has no such way. Then half of all that it moves counts.
    """
    few = max(len(values) // 20, 1)
    first, last = np.median(values[:few]), np.median(values[-few:])
    done = (values - first) / (last - first) if last - first > LEAST_WAY else np.cumsum(np.abs(np.gradient(values)))
    half = np.flatnonzero(done >= 0.5 * (1.0 if last - first > LEAST_WAY else done[-1]))
    return float(steps[half[0]])


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows by series, the series that moves first on top; within a series by when they move.

    Of a series of many numbers, some that move at different times are taken.
    """
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.series)]
    most = max(MOST_ROWS // len(groups), MOST_OF_SERIES)
    groups = [_spread(group, most) for group in groups]
    groups.sort(key=lambda group: float(np.median([row.moved for row in group])))
    return [row for group in groups for row in group]


def _spread(group: Sequence[Row], most: int) -> list[Row]:
    group = sorted(group, key=lambda row: row.moved)
    chosen = np.linspace(0, len(group) - 1, min(len(group), most)).round().astype(int)
    return [group[i] for i in chosen.tolist()]


def _names(rows: Sequence[Row]) -> list[tuple[int, int, str]]:
    """Returns (first row, one after the last, name): of every row, or of every series if there are many rows."""
    if len(rows) <= NAMED:
        return [(i, i + 1, row.name) for i, row in enumerate(rows)]
    found, start = [], 0
    for series, group in groupby(rows, key=lambda row: row.series):
        count = len(list(group))
        found.append((start, start + count, f"{series} ({count})" if count > 1 else series))
        start += count
    return found


def _name_rows(axis: Axes, names: Sequence[tuple[int, int, str]]) -> None:
    """Writes the names left of the map, apart from each other, with a line from each to the middle of its rows."""
    from stagelens.figures.labels import size_in_points, spread

    total = axis.get_ylim()[0]
    height = size_in_points(axis)[1]
    middles = [(start + end) / 2 / total for start, end, _ in names]
    size = float(np.clip(0.8 * height / len(names), 3.5, 7))
    places = spread(middles, min(1.15 * size / height, 1.0 / len(names)))
    axis.set_yticks([])
    for (_, end, name), middle, place in zip(names, middles, places, strict=True):
        line: Any = {"arrowstyle": "-", "color": "0.6", "lw": 0.4, "shrinkA": 0, "shrinkB": 0, "relpos": (1, 0.5)}
        where: Any = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "xytext": (-12, (middle - place) * height),
        }
        axis.annotate(name, (0.0, 1 - middle), ha="right", va="center", fontsize=size, arrowprops=line, **where)
        if end < total:
            axis.axhline(end, color="white", lw=0.4)


def _ribbon(axis: Axes, joint: JointStages, height: float) -> None:
    """Draws the joint stages above the map: transitions in colour, numbered; thin lines mark them in the map."""
    strip = axis.inset_axes((0.0, 1.0 + 0.05 / height, 1.0, 0.16 / height), sharex=axis)
    strip.set_yticks([])
    strip.tick_params(bottom=False, labelbottom=False)
    for stage in joint:
        strip.axvspan(stage.start, stage.end, color="0.92" if stage.kind == "plateau" else COLOURS[0], lw=0)
    for stage in joint.transitions:
        axis.axvline(stage.at, color="white", lw=0.8, ls=(0, (4, 2)))
    middles = [float((axis.transData + axis.transAxes.inverted()).transform((s.at, 0))[0]) for s in joint.transitions]
    for place, label in _labels(middles, [stage.name for stage in joint.transitions]):
        strip.text(place, 1.2, label, transform=strip.transAxes, ha="center", va="bottom", fontsize=7)


def _labels(middles: Sequence[float], names: Sequence[str]) -> list[tuple[float, str]]:
    """Returns where each transition is labelled, as a fraction of the width, and how.

    The numbers are moved apart. A name is written only where the labels next to it leave room for it.
    """
    from stagelens.figures.labels import spread

    letter = LETTER / WIDTH
    places = [float(place) for place in spread(middles, 2 * letter)]
    labels, taken = [], 0.0  # up to where labels are written
    for i, (place, name) in enumerate(zip(places, names, strict=True)):
        long = f"{i + 1}: {name}"
        after = places[i + 1] - letter if i + 1 < len(places) else 1 + letter
        room = 2 * min(place - taken, after - place)
        label = long if name and len(long) * letter <= room else str(i + 1)
        labels.append((place, label))
        taken = place + len(label) * letter / 2
    return labels


def _edges(steps: NDArray[Any]) -> Floats:
    """Returns the borders of the columns, [step + 1]: halfway between two steps."""
    steps = np.asarray(steps, dtype=np.float64)
    middle = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[steps[0]], middle, [steps[-1]]])
