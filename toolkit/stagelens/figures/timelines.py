"""Figures of a run's timeline: the loss with stages and predictions, heads over groups, and every probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stagelens.figures.drawing import (
    MOST_IN_LEGEND,
    draw_predictions,
    draw_series,
    fit_x_axis,
    predictions_of,
    shade_phases,
    shade_stages,
    title_of,
    x_label,
)
from stagelens.figures.labels import legend_beside, size_in_points
from stagelens.figures.style import COLOURS, DASHES, grid, headline, make_room
from stagelens.timelines import chance_levels, is_companion

if TYPE_CHECKING:
    from stagelens.runs import Run

MASS = "head_specialization/mass"
UNITS = {"kl_to_references/kl": "KL to reference, nats"}
MOST_LINES = 24  # a reading with more lines is unreadable in a small panel
MOST_IN_SMALL_LEGEND = 4
MOST_ROWS = 2  # of a small legend
SMALL_HANDLE, SMALL_LETTER = 23.0, 3.9  # points that an entry and each of its letters take there
WIDE_TITLE = 44  # letters over a small panel


def loss_figure(run: Run) -> Figure | None:
    """Draws the metric with stages and predictions; below it excess, KL to the references, other predicted series."""
    predictions = predictions_of(run)
    wanted = [run.manifest.metric, "loss", "excess", "kl_to_references/kl", *(p.series for p in predictions)]
    panels = [name for name in dict.fromkeys(wanted) if name in run.timeline]
    if not panels:
        return None
    figure, axes = grid((len(panels), 1), panel=(6.3, 1.7), gap=(0, 0.18), margin=(0.85, 0.15, 0.65, 0.5), sharex=True)
    axes = axes[:, 0]
    for axis, name in zip(axes, panels, strict=True):
        draw_series(axis, run, name, legend=False)
        if name == "loss" and "train_loss" in run.timeline:
            axis.lines[-1].set_label("evaluation batch")
            axis.plot(*run.timeline.scalar("train_loss"), color="0.72", lw=0.8, label="training batch", zorder=1)
    fit_x_axis(axes[0], run)
    room = 0.0
    for axis, name in zip(axes, panels, strict=True):
        draw_predictions(axis, run, name)
        shade_stages(axis, run, labels=axis is axes[0])
        levels = [p.name for p in predictions if p.kind == "level" and p.series == name]
        room = max(room, legend_beside(axis, levels))
        axis.set_ylabel(UNITS.get(name, name.replace("/", "/\n")))
    axes[-1].set_xlabel(x_label(run))
    figure.align_ylabels(axes)
    make_room(figure, room)
    theory = " over theory" if predictions else ""
    headline(figure, f"{title_of(run)}: {panels[0]}{theory}, with its stages (grey: transitions)")
    return figure


def specialization_figure(run: Run) -> Figure | None:
    """Draws each head's attention mass on the groups (or lags) over training, one panel per head, one row per layer."""
    if MASS not in run.timeline:
        return None
    column, values = run.timeline.column(MASS), run.timeline.series(MASS)  # [step, layer, head, group]
    n_layers, n_heads, n_groups = values.shape[1:]
    shape, margin = (n_layers, n_heads), (0.65, 1.35, 0.6, 0.5)
    figure, axes = grid(shape, panel=(2.1, 1.75), gap=(0.45, 0.35), margin=margin, sharex=True, sharey=True)
    layers = column.coordinate("layer")
    missing: Any = np.isnan(values).all(axis=(0, 3))  # [layer, head]: a layer may have fewer heads than another
    for layer, head in np.ndindex(n_layers, n_heads):
        axis = axes[layer, head]
        if missing[layer, head]:
            axis.set_axis_off()
            continue
        shade_phases(axis, run, layers[layer])
        _draw_masses(axis, run.timeline.steps, values[:, layer, head], column.coordinate(column.dims[-1]))
        axis.set_title(f"head {head}" if n_layers == 1 else f"layer {layers[layer]} head {head}")
        axis.set_ylim(0, 1)
        axis.margins(x=0.01)
        axis.xaxis.set_major_locator(MaxNLocator(4))
    for axis in axes[:, 0]:
        axis.set_ylabel("attention mass")
    for head in range(n_heads):
        lowest = axes[np.flatnonzero(~missing[:, head])[-1], head]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel(x_label(run))
    if n_groups <= MOST_IN_LEGEND:
        _legend_with_phases(figure, axes[0, 0], run, column.dims[-1])
    headline(figure, f"{title_of(run)}: what each head attends to")
    return figure


def probes_figure(run: Run) -> Figure | None:
    """Draws one small panel per reading of every probe; its lines are heads, layers or the elements of other dims."""
    alone = [name for name in run.timeline if not is_companion(name, run.timeline)]
    names = [name for name in alone if "/" in name and name != MASS and _lines(run, name) <= MOST_LINES]
    if not names:
        return None
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = grid((rows, columns), panel=(2.75, 1.45), gap=(0.75, 0.75), margin=(0.8, 0.3, 0.75, 0.5))
    axes = axes.ravel()
    for axis, name in zip(axes, names, strict=False):
        draw_series(axis, run, name, legend=False)
        _draw_chance(axis, run, name)
        axis.tick_params(labelsize=7)
        fit_x_axis(axis, run)
        _head_panel(axis, name, run.timeline.column(name).dims, run.timeline.series(name).shape[1:])
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    for axis in axes[max(0, len(names) - columns) : len(names)]:
        axis.set_xlabel(x_label(run))
    headline(figure, f"{title_of(run)}: what the probes read")
    return figure


def _draw_chance(axis: Axes, run: Run, name: str) -> None:
    """Draws a thin dotted line at each chance level of `name`."""
    for level in chance_levels(run.timeline, name).T:
        axis.plot(run.timeline.steps, level, color="0.5", lw=0.7, ls=":", label="_chance", zorder=1)


def _head_panel(axis: Axes, name: str, dims: Sequence[str], sizes: Sequence[int]) -> None:
    """Writes the name of a small panel and, below it, a legend of a few lines, else the dims of the lines."""
    handles, labels = axis.get_legend_handles_labels()
    along = [dim for dim, size in zip(dims, sizes, strict=True) if size > 1]
    columns = max(1, int(size_in_points(axis)[0] // (SMALL_HANDLE + SMALL_LETTER * max(map(len, labels), default=0))))
    rows = -(-len(labels) // columns)
    few = bool(along) and 0 < len(labels) <= MOST_IN_SMALL_LEGEND and rows <= MOST_ROWS
    if few:
        place: Any = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderaxespad": 0.1, "frameon": False}
        widths: Any = {
            "handlelength": 1.9,
            "handletextpad": 0.4,
            "columnspacing": 0.9,
            "fontsize": 6.5,
            "borderpad": 0.1,
        }
        axis.legend(handles, labels, ncols=-(-len(labels) // rows), **place, **widths)
    title = name if few or not along else f"{name}, by {' and '.join(along)}"
    if len(title) > WIDE_TITLE:
        title = title.replace(", by ", ",\nby ")
    axis.set_title(title, loc="left", fontsize=8, pad=3 + 11 * rows if few else 4)


def _draw_masses(axis: Axes, steps: Any, masses: Any, names: Sequence[Any]) -> None:
    if len(names) > MOST_IN_LEGEND:  # lags: too many for lines
        axis.stackplot(steps, masses.T, colors=matplotlib.colormaps["viridis"](np.linspace(0, 1, len(names))))
        return
    for index, name in enumerate(names):
        rest = name == "rest"
        colour, dash = ("0.55", ":") if rest else (COLOURS[index % len(COLOURS)], DASHES[index % 3])
        axis.plot(steps, masses[:, index], color=colour, ls=dash, label=str(name))


def _legend_with_phases(figure: Figure, axis: Axes, run: Run, title: str) -> None:
    """Draws a legend of the groups and, below them, the greys of the phases that occur."""
    from matplotlib.patches import Patch

    from stagelens.figures.drawing import GREYS

    handles, labels = axis.get_legend_handles_labels()
    order = list(dict.fromkeys(phase["phase"] for phase in run.phases))
    for index, phase in enumerate(order):
        handles.append(Patch(facecolor=GREYS[min(index, len(GREYS) - 1)], edgecolor="0.7", lw=0.5))
        labels.append(phase)
    figure.legend(handles, labels, loc="upper right", title=title, alignment="left")


def _lines(run: Run, name: str) -> int:
    return run.timeline.column(name).size
