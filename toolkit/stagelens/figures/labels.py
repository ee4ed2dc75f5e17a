"""Places names and legends so that they overlap neither each other nor the lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from scipy.optimize import isotonic_regression

from stagelens.figures.style import make_room, width_of

SMALL: Any = {"fontsize": 7, "color": "0.25"}
LINE = 8.5  # points, the height of a line of small names
WIDE = 12.0  # points that a name along a line takes
LEADER = 10.0  # points from the axis to a name next to it
MOST_ENTRIES = 12  # of a legend next to a panel


def name_above(axis: Axes, names: Sequence[tuple[float, str]]) -> int:
    """Writes names above the axis at their positions; a name that would overlap another is a line higher.

    A name that would leave the figure is moved inwards. Returns the number of lines.
    """
    width, (before, behind) = size_in_points(axis)[0], _room_beside(axis)
    ends: list[float] = []  # where each line of names is occupied up to, in points
    for place, name in sorted(names):
        own = width_of(name) + 6
        wanted = _across(axis, place) * width - own / 2
        left = max(min(wanted, width + behind - own), -before)
        line = next((i for i, end in enumerate(ends) if left > end), len(ends))
        ends[line:] = [left + own, *ends[line + 1 :]]
        where: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        where["xytext"] = (left - wanted, 2 + 8 * line)
        axis.annotate(name, (place, 1.0), ha="center", va="bottom", annotation_clip=False, **where, **SMALL)
    return len(ends)


def name_beside(axis: Axes, names: Sequence[tuple[float, str]]) -> None:
    """Writes the names of levels right of the axis, each connected by a thin line, and moved apart if they overlap."""
    shown = [(up, name) for level, name in sorted(names) if -0.01 <= (up := _up(axis, level)) <= 1.01]
    height = size_in_points(axis)[1]
    places = spread([up for up, _ in shown], min(LINE / height, 1.1 / max(len(shown), 1)))
    for (up, name), place in zip(shown, places, strict=True):
        leader = {"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        where: Any = {"xycoords": "axes fraction", "xytext": (LEADER, (place - up) * height)}
        look: Any = {"textcoords": "offset points", "arrowprops": leader, "ha": "left", "va": "center"}
        axis.annotate(name, (1.0, up), annotation_clip=False, **where, **look, **SMALL)


def name_times(axis: Axes, names: Sequence[tuple[float, str]]) -> None:
    """Writes the names of times along their lines, as low as possible without overlapping a curve or another name.

    A name is right of its line, or left of it if only there it overlaps no curve. Lines that are nearer to each other
    than a name is wide share one text, with their names from left to right.
    """
    axis.get_xlim()  # brings the limits up to date
    width, height = size_in_points(axis)
    shown = [(x, time, name) for time, name in sorted(names) if 0 <= (x := _across(axis, time) * width) <= width]
    taken: list[tuple[float, float, float]] = []  # left edge, foot and top of each name, in points
    for group in _near_together(shown, height):
        words = ", ".join(name for *_, name in group)
        own = width_of(words) + 6
        found = []
        for (x, time, _), side in ((group[-1], 1), (group[0], -1)):
            left = x if side > 0 else x - WIDE
            near = [(low, high) for other, low, high in taken if abs(left - other) < WIDE]
            low = _lowest_gap(own, height, near + _curves_at(axis, left, left + WIDE)) if left >= 0 else None
            found += [] if low is None else [(left, low, time, side)]
        left, low, time, side = found[0] if found else (group[-1][0], 0.0, group[-1][1], 1)  # neither side has a gap
        taken.append((left, low, low + own))
        _write_upright(axis, words, time, low / height, side)


def _near_together(
    names: Sequence[tuple[float, float, str]], height: float
) -> Iterator[list[tuple[float, float, str]]]:
    """Yields names, (points, time, name), in groups whose lines are near each other and whose names fit `height`."""
    group: list[tuple[float, float, str]] = []
    for one in names:
        fits = width_of(", ".join(name for *_, name in [*group, one])) + 6 <= height
        if group and not (one[0] - group[-1][0] < WIDE and fits):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _write_upright(axis: Axes, words: str, time: float, foot: float, side: int) -> None:
    """Writes `words` along the vertical line at `time`, right (1) or left (-1) of it, from the height `foot` on."""
    where: Any = {"xycoords": ("data", "axes fraction"), "xytext": (2 * side, 3), "textcoords": "offset points"}
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85}
    look: Any = {"rotation": 90, "va": "bottom", "bbox": behind, "zorder": 1.5}  # below the curves
    axis.annotate(words, (time, foot), ha="left" if side > 0 else "right", **look, **where, **SMALL)


def _curves_at(axis: Axes, left: float, right: float) -> list[tuple[float, float]]:
    """Returns the minimum and maximum of each curve between `left` and `right`, in points from the axis' corner."""
    corner, scale = axis.get_window_extent().p0, 72 / axis.figure.dpi
    found = []
    for line in axis.get_lines():
        if line.get_transform() != axis.transData:  # a level or a time
            continue
        with np.errstate(all="ignore"):
            x, y = ((axis.transData.transform(line.get_xydata()) - corner) * scale).T
        drawn = np.isfinite(x) & np.isfinite(y)
        x, y = x[drawn], y[drawn]
        ends = np.interp([left, right], x, y, np.nan, np.nan) if len(x) else np.empty(0)
        heights = np.append(y[(x >= left) & (x <= right)], ends[np.isfinite(ends)])
        if len(heights):
            found.append((float(heights.min()) - 2, float(heights.max()) + 2))
    return found


def _lowest_gap(size: float, height: float, taken: Sequence[tuple[float, float]]) -> float | None:
    """Returns the lowest position at which `size` fits between the intervals `taken`, below `height`; None if none."""
    for foot in sorted([0.0, *(high for _, high in taken)]):
        free = all(high <= foot or low >= foot + size for low, high in taken)
        if 0 <= foot <= height - size and free:
            return foot
    return None


def legend_beside(axis: Axes, names: Sequence[str] = (), **options: Any) -> float:
    """Draws a legend right of the axis and of the `names` that are there; none for a single line.

    Returns the width of both in inches.
    """
    beside = (LEADER + max(map(width_of, names)) + 4) / 72 if names else 0.0
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) > MOST_ENTRIES:  # of many lines only those of theory are named
        of_theory = [number for number, label in enumerate(labels) if label.startswith("theory")][:MOST_ENTRIES]
        handles, labels = [handles[number] for number in of_theory], [labels[number] for number in of_theory]
    elif len(labels) == 1:
        labels = []
    if not labels:
        return beside
    moved = axis.transAxes + ScaledTranslation(beside + 0.1, 0, axis.figure.dpi_scale_trans)
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "bbox_transform": moved, "borderaxespad": 0.0}
    axis.legend(handles, labels, **place, **options)
    entry, title = max(width_of(label, 8) for label in labels), width_of(options.get("title") or "", 9)
    return beside + 0.1 + max(38 + entry, 8 + title) / 72


def legend_row(figure: Figure, *axes: Axes, **options: Any) -> None:
    """Draws the legends of `axes` as one row below the headline, for all panels of a figure of `grid`."""
    handles = [handle for axis in axes for handle in axis.get_legend_handles_labels()[0]]
    labels = [label for axis in axes for label in axis.get_legend_handles_labels()[1]]
    left = axes[0].get_position().x0
    place: Any = {"loc": "upper left", "bbox_to_anchor": (left, 1 - 0.31 / figure.get_figheight())}
    look: Any = {"ncols": len(labels), "borderaxespad": 0.0, "borderpad": 0.0, "columnspacing": 1.6, "frameon": False}
    figure.legend(handles, labels, **place, **look | options)


def spread(places: Sequence[float], least: float) -> Any:
    """Returns increasing positions, moved as little as possible (least squares) to be `least` apart, within 0..1."""
    steps = least * np.arange(len(places))
    if not len(places):
        return steps
    moved = isotonic_regression(np.asarray(places) - steps).x
    return np.clip(moved, min(0.0, 1 - steps[-1]), max(0.0, 1 - steps[-1])) + steps


def fit_left(figure: Figure, axes: Sequence[Axes]) -> None:
    """Widens a figure of `grid` or `stack` at its left until tick labels and aligned axis labels of `axes` fit in."""
    needed = (max(map(_ticks_width, axes)) + max(map(_label_width, axes))) / 72
    here = axes[0].get_position().x0 * figure.get_figwidth()
    if needed > here:
        make_room(figure, 0.0, left=needed - here)


def _ticks_width(axis: Axes) -> float:
    """Returns the width of the tick labels of the y axis, with their ticks, in points."""
    ticks = axis.yaxis.get_major_formatter().format_ticks(list(axis.get_yticks()))
    letters = axis.yaxis.get_ticklabels()[0].get_fontsize() if ticks else 0.0
    return max((width_of(tick, float(letters)) for tick in ticks), default=0.0) + 9


def _label_width(axis: Axes) -> float:
    """Returns the width of the label of the y axis, which is written upright, in points."""
    label = axis.get_ylabel()
    return (1.25 * float(axis.yaxis.label.get_fontsize()) * (1 + label.count("\n")) + 5) if label else 0.0


def size_in_points(axis: Axes) -> tuple[float, float]:
    """Width and height of the axis in points."""
    size = axis.get_window_extent()
    scale = 72 / axis.figure.dpi
    return float(size.width * scale), float(size.height * scale)


def _room_beside(axis: Axes) -> tuple[float, float]:
    """Returns how far the figure reaches beyond the axis at its left and right, in points."""
    here, scale = axis.get_window_extent(), 72 / axis.figure.dpi
    return float(here.x0 * scale), float((axis.figure.bbox.x1 - here.x1) * scale)


def _across(axis: Axes, x: float) -> float:
    """Where `x` lies along the axis, from 0 (left) to 1 (right), on whatever scale it has."""
    return float(axis.transAxes.inverted().transform(axis.transData.transform((x, 1.0)))[0])


def _up(axis: Axes, y: float) -> float:
    """How high `y` lies, from 0 (foot) to 1 (top)."""
    return float(axis.transAxes.inverted().transform(axis.transData.transform((axis.get_xlim()[1], y)))[1])
