"""The figure of every reading of every probe, one small panel each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens.figures.drawing import MOST_IN_LEGEND, draw_series, fit_x_axis, looks_of, title_of, x_label
from stagelens.figures.style import grid, headline, width_of
from stagelens.timelines import is_companion, lines_of

if TYPE_CHECKING:
    from stagelens.runs import Run

MASS = "head_specialization/mass"  # has a figure of its own
MOST_LINES = 24  # of one panel; a reading with more is averaged, unless its lines are heads
MOST_HEADS = 192  # heads share the colours of their layers
PANEL, GAP = (2.35, 1.4), 0.8  # inches
MARGIN = 0.62  # inches left of each panel
SMALL: Any = {"fontsize": 5.6, "handlelength": 1.7, "handletextpad": 0.4, "labelspacing": 0.12, "borderpad": 0.0}
HANDLE = 22.0  # points that the line of an entry takes


def probes_figure(run: Run) -> Figure | None:
    """Draws one small panel per reading of every probe; its lines are heads, layers or the elements of other dims.

    Bands are standard errors, thin dotted lines are chance levels.
    """
    names = [name for name in run.timeline if "/" in name and name != MASS and not is_companion(name, run.timeline)]
    names = [name for name in names if _is_drawable(run, name)]
    if not names:
        return None
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    beside = [max(_legend_width(run, name) for name in names[column::columns]) for column in range(columns)]
    left = [max(_ticks_width(run, name) for name in names[column::columns]) for column in range(columns)]
    gap = max([0.1, *(legend + ticks for legend, ticks in zip(beside, left[1:], strict=False))])
    margin = (left[0], max(beside[-1], 0.2), 0.75, 0.5)
    figure, grid_axes = grid((rows, columns), panel=PANEL, gap=(gap, GAP), margin=margin)
    axes = grid_axes.ravel()
    for axis, name in zip(axes, names, strict=False):
        rule = draw_series(axis, run, name, legend=False, most=_most(run, name))
        axis.tick_params(labelsize=7)
        axis.yaxis.get_offset_text().set_fontsize(7)
        fit_x_axis(axis, run)
        _legend(axis)
        _write_title(axis, name, rule)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    for axis in axes[max(0, len(names) - columns) : len(names)]:
        axis.set_xlabel(x_label(run))
    headline(
        figure, f"{title_of(run)}: what the probes read (bands: standard errors, thin dotted lines: chance levels)"
    )
    return figure


def _is_drawable(run: Run, name: str) -> bool:
    """True if the reading, averaged over layers and heads if it must be, has few enough lines for a panel."""
    return len(lines_of(run.timeline, name, _most(run, name)).labels) <= max(_most(run, name), MOST_LINES)


def _most(run: Run, name: str) -> int:
    return MOST_HEADS if set(run.timeline.column(name).dims) <= {"layer", "head"} else MOST_LINES


def _ticks_width(run: Run, name: str) -> float:
    """Returns the width of the tick labels of a panel in inches; those of a series of labels are words."""
    labels = run.timeline.column(name).labels
    words = labels if len(labels) <= MOST_IN_LEGEND else ()
    return max([MARGIN, *((width_of(word, 7) + 14) / 72 for word in words)])


def _legend_width(run: Run, name: str) -> float:
    """Returns the width of the legend of a panel in inches."""
    entries = {look.entry for look, _ in looks_of(lines_of(run.timeline, name, _most(run, name)))}
    if len(entries) < 2:
        return 0.0
    return (HANDLE + 6 + max(width_of(entry, SMALL["fontsize"]) for entry in entries)) / 72


def _legend(axis: Axes) -> None:
    """Draws the legend right of the panel; none for a single line."""
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) > 1:
        place: Any = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.02), "borderaxespad": 0.0, "frameon": False}
        axis.legend(handles, labels, **place, **SMALL)


def _write_title(axis: Axes, name: str, rule: str) -> None:
    """Writes the name of the reading above its panel, in two lines if it is wider, and what was averaged."""
    title = f"{name} ({rule})" if rule else name
    if width_of(title, 8) > 72 * PANEL[0]:
        title = f"{name}\n({rule})" if rule else name.replace("/", "/\n", 1)
    ticks = axis.yaxis.get_major_formatter()
    ticks.format_ticks(list(axis.get_yticks()))
    height = None if ticks.get_offset() else 1.0  # None: matplotlib measures what is above the panel
    axis.set_title(title, loc="left", fontsize=8, pad=4, y=height)
