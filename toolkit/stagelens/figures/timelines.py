"""Figures of a run's timeline: the loss with stages and predictions, and the heads over the groups of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from stagelens.figures.drawing import (
    GREYS,
    MOST_IN_LEGEND,
    draw_band,
    draw_predictions,
    draw_series,
    fit_x_axis,
    predictions_of,
    shade_phases,
    shade_stages,
    title_of,
    x_label,
)
from stagelens.figures.labels import fit_left, legend_beside
from stagelens.figures.style import COLOURS, DASHES, grid, headline, make_room, width_of
from stagelens.timelines import ERROR, NO_GROUP, companion

if TYPE_CHECKING:
    from stagelens.runs import Run

MASS = "head_specialization/mass"
OTHERS = "others"
UNITS = {"kl_to_references/kl": "KL to reference, nats"}


def loss_figure(run: Run) -> Figure | None:
    """Draws the metric with stages and predictions; below it excess, KL to the references, other predicted series."""
    predictions = predictions_of(run)
    predicted = [prediction.series_in(run.timeline) for prediction in predictions]
    wanted = [run.manifest.metric, "loss", "excess", "kl_to_references/kl", *predicted]
    panels = [name for name in dict.fromkeys(wanted) if name in run.timeline]
    if not panels:
        return None
    figure, axes = grid((len(panels), 1), panel=(6.3, 1.7), gap=(0, 0.18), margin=(0.85, 0.15, 0.65, 0.5), sharex=True)
    axes = axes[:, 0]
    for axis, name in zip(axes, panels, strict=True):
        draw_series(axis, run, name, legend=False)
        if name == "loss" and "train_loss" in run.timeline:
            _draw_training_loss(axis, run)
    fit_x_axis(axes[0], run)
    room = 0.0
    for axis, name in zip(axes, panels, strict=True):
        draw_predictions(axis, run, name)
        shade_stages(axis, run, labels=axis is axes[0])
        levels = [p.name for p, about in zip(predictions, predicted, strict=True) if (p.kind, about) == ("level", name)]
        room = max(room, legend_beside(axis, levels))
        axis.set_ylabel(UNITS.get(name, name.replace("/", "/\n")))
    axes[-1].set_xlabel(x_label(run))
    figure.align_ylabels(axes)
    make_room(figure, room)
    fit_left(figure, axes)
    theory = " over theory" if predictions else ""
    headline(figure, f"{title_of(run)}: {panels[0]}{theory}, with its stages (grey: transitions)")
    return figure


def _draw_training_loss(axis: Axes, run: Run) -> None:
    """Draws the loss in training as a thin line, unless it coincides with the loss, as of an exact loss."""
    steps, values = run.timeline.scalar("train_loss")
    if np.allclose(values, np.interp(steps, *run.timeline.scalar("loss")), rtol=1e-4, atol=0):
        return
    what = "" if run.manifest.kind == "flow" else " batch"
    axis.lines[-1].set_label(f"evaluation{what}")
    axis.plot(steps, values, color="0.72", lw=0.8, label=f"training{what}", zorder=1)


def specialization_figure(run: Run) -> Figure | None:
    """Draws each head's attention mass on the groups (or lags) over training, one panel per head, one row per layer."""
    if MASS not in run.timeline:
        return None
    column, mass = run.timeline.column(MASS), run.timeline.series(MASS)  # [step, layer, head, group]
    error = companion(run.timeline, MASS, ERROR)
    names, mass, error = _largest([str(name) for name in column.coordinate(column.dims[-1])], mass, error)
    n_layers, n_heads = mass.shape[1:3]
    shape, margin = (n_layers, n_heads), (0.65, 0.1, 0.6, 0.5)
    figure, axes = grid(shape, panel=(2.1, 1.75), gap=(0.45, 0.35), margin=margin, sharex=True, sharey=True)
    layers = column.coordinate("layer")
    missing: Any = np.isnan(mass).all(axis=(0, 3))  # [layer, head]: a layer may have fewer heads than another
    for layer, head in np.ndindex(n_layers, n_heads):
        axis = axes[layer, head]
        if missing[layer, head]:
            axis.set_axis_off()
            continue
        shade_phases(axis, run, layers[layer])
        errors = None if error is None else error[:, layer, head]
        _draw_masses(axis, run.timeline.steps, mass[:, layer, head], errors, names)
        axis.set_title(f"head {head}" if n_layers == 1 else f"layer {layers[layer]} head {head}")
        axis.set_ylim(-0.01, 1.02)  # a line at 0 or 1 is seen whole
        fit_x_axis(axis, run)
        if axis.get_xscale() == "linear":
            axis.xaxis.set_major_locator(MaxNLocator(4))
    for axis in axes[:, 0]:
        axis.set_ylabel("attention mass")
    for head in range(n_heads):
        lowest = axes[np.flatnonzero(~missing[:, head])[-1], head]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel(x_label(run))
    _legend_with_phases(figure, axes[0], run, column.dims[-1])
    headline(figure, f"{title_of(run)}: what each head attends to")
    return figure


def _largest(names: list[str], mass: Any, error: Any) -> tuple[list[str], Any, Any]:
    """Returns names, masses and errors [step, layer, head, group] of the groups to draw.

    Of more than eight groups or lags, these are the seven with the largest mass of any head, and the sum of the others.
    """
    if len(names) <= MOST_IN_LEGEND:
        return names, mass, error
    largest = np.sort(np.argsort(-np.nan_to_num(mass).max(axis=(0, 1, 2)), kind="stable")[: MOST_IN_LEGEND - 1])
    others = np.setdiff1d(np.arange(len(names)), largest)
    both = np.concatenate([mass[..., largest], mass[..., others].sum(-1, keepdims=True)], -1)
    return [*(names[index] for index in largest), OTHERS], both, None if error is None else error[..., largest]


def _draw_masses(axis: Axes, steps: Any, masses: Any, errors: Any, names: Sequence[str]) -> None:
    """Draws the mass of one head on each group, [step, group], with its standard error as a band."""
    for index, name in enumerate(names):
        colour, dash = ("0.55", ":") if name in (*NO_GROUP, OTHERS) else (COLOURS[index], DASHES[index % 3])
        axis.plot(steps, masses[:, index], color=colour, ls=dash, label=name)
        if errors is not None and index < errors.shape[1]:
            draw_band(axis, steps, masses[:, index], errors[:, index], colour)


def _legend_with_phases(figure: Figure, axes: Any, run: Run, title: str) -> None:
    """Draws a legend of the groups and, below them, the greys of the phases that occur, right of the first row."""
    handles, labels = axes[0].get_legend_handles_labels()
    order = list(dict.fromkeys(phase["phase"] for phase in run.phases))
    for index, phase in enumerate(order):
        handles.append(Patch(facecolor=GREYS[min(index, len(GREYS) - 1)], edgecolor="0.7", lw=0.5))
        labels.append(f"phase: {phase}")
    make_room(figure, (max(width_of(label, 8) for label in [*labels, title]) + 45) / 72)
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "bbox_transform": axes[-1].transAxes}
    figure.legend(handles, labels, title=title, alignment="left", borderaxespad=0.0, **place)
