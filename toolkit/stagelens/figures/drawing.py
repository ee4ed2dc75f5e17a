"""What the figures of a timeline are drawn from: series, stages, phases and predictions on an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from stagelens.errors import StagelensError
from stagelens.events import places
from stagelens.figures.style import THEORY, line_style

if TYPE_CHECKING:
    from stagelens.prediction import Prediction
    from stagelens.runs import Run

MOST_IN_LEGEND = 8
SMALL: Any = {"fontsize": 7, "color": "0.25"}
GREYS = ("1.0", "0.94", "0.88", "0.82")


def title_of(run: Run) -> str:
    return f"{run.manifest.task}, seed {run.manifest.seed}"


def x_label(run: Run) -> str:
    return "time" if run.manifest.kind == "flow" else "training step"


def stages_of(run: Run) -> Sequence[Any]:
    """The stages of the run's metric; none where it is too short or has no such series."""
    try:
        found: Sequence[Any] = run.stages()
        return found
    except StagelensError:
        return ()


def predictions_of(run: Run) -> Sequence[Prediction]:
    """What theory says about the run; nothing where its plugin is not installed any more."""
    try:
        return run.experiment.predictions()
    except StagelensError:
        return ()


def fit_x_axis(axis: Axes, run: Run) -> None:
    """Puts the x axis on the scale on which the run's stages were found, from its first step to its last."""
    steps = run.timeline.steps
    positive = steps[steps > 0]
    if getattr(stages_of(run), "axis", "linear") == "log" and len(positive) > 1:
        axis.set_xscale("log")
        axis.set_xlim(positive[0], positive[-1] * 1.03)
    else:
        axis.margins(x=0.01)


def draw_series(axis: Axes, run: Run, name: str, legend: bool = True) -> None:
    """A series over steps; one line for each place along its dims, told apart by colour and dash."""
    column, values = run.timeline.column(name), run.timeline.series(name)
    flat = values.reshape(len(values), -1)
    labels = places(column)
    for index, label in enumerate(labels):
        there = ~np.isnan(flat[:, index])  # not every series is measured at every step; the line goes on between
        style = "steps-post" if column.labels else "default"
        look = line_style(index)
        axis.plot(run.timeline.steps[there], flat[there, index], label=label or name, drawstyle=style, **look)
    if column.labels and len(column.labels) <= MOST_IN_LEGEND:
        axis.set_yticks(range(len(column.labels)), column.labels)
        axis.set_ylim(-0.3, len(column.labels) - 0.7)
    if legend and 1 < len(labels) <= MOST_IN_LEGEND:
        axis.legend()


def shade_stages(axis: Axes, run: Run, labels: bool = False) -> None:
    """Transitions of the run's metric as grey bands, their steepest points as thin lines, with names above."""
    shown = [stage for stage in stages_of(run) if stage.kind == "transition"]
    for stage in shown:
        axis.axvspan(stage.start, stage.end, color="0.93", lw=0, zorder=0)
        axis.axvline(stage.at, color="0.6", lw=0.7, zorder=0.5)
    if labels:
        name_above(axis, [(stage.at, stage.name) for stage in shown if stage.name])


def name_above(axis: Axes, names: Sequence[tuple[float, str]]) -> None:
    """Names above the axis at their places; a name that would run into the one before goes a line higher."""
    ends: list[float] = []  # where each line of names is occupied up to
    for place, name in sorted(names):
        width = 0.0095 * len(name) + 0.01  # of the axis, at this font size on the widths that are used
        left = _across(axis, place) - width / 2
        line = next((i for i, end in enumerate(ends) if left > end), len(ends))
        ends[line:] = [left + width, *ends[line + 1 :]]
        axis.annotate(
            name,
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2 + 8 * line),
            textcoords="offset points",
            ha="center",
            va="bottom",
            annotation_clip=False,
            **SMALL,
        )


def shade_phases(axis: Axes, run: Run, layer: Any) -> None:
    """The phases of head specialization of one layer as greys, the later the darker."""
    order = list(dict.fromkeys(phase["phase"] for phase in run.phases))
    for phase in run.phases:
        if phase["layer"] == layer:
            grey = GREYS[min(order.index(phase["phase"]), len(GREYS) - 1)]
            axis.axvspan(phase["start"], phase["end"], color=grey, lw=0, zorder=0)


def draw_predictions(axis: Axes, run: Run, name: str) -> None:
    """Theory over the series `name`: levels as dashed lines across, times as dashed lines up, curves dashed black."""
    shown = [prediction for prediction in predictions_of(run) if prediction.series == name]
    steps = run.timeline.steps.astype(np.float64)
    curves = [prediction.name for prediction in shown if prediction.kind == "curve"]
    for prediction in shown:
        if callable(prediction.expected):
            low, high = prediction.window or (-np.inf, np.inf)
            inside = steps[(steps >= low) & (steps <= high)]
            first = prediction.name == curves[0]
            label = f"theory: {prediction.name}" if len(curves) == 1 else "theory" if first else None
            axis.plot(inside, prediction.expected(inside), label=label, zorder=3, **THEORY)
        elif prediction.kind == "level":
            axis.axhline(prediction.expected, zorder=1, **THEORY | {"lw": 0.8})
        else:
            axis.axvline(prediction.expected, zorder=1, **THEORY | {"lw": 0.8})
    _name_levels(axis, [(float(p.expected), p.name) for p in shown if p.kind == "level" and not callable(p.expected)])
    _name_times(axis, [(float(p.expected), p.name) for p in shown if p.kind == "time" and not callable(p.expected)])


def _name_levels(axis: Axes, names: Sequence[tuple[float, str]]) -> None:
    """Names of levels right of the axis; levels that are too near each other share a line."""
    low, high = axis.get_ylim()
    merged: list[tuple[float, str]] = []
    for level, name in sorted(names):
        if merged and level - merged[-1][0] < 0.055 * (high - low):
            merged[-1] = (merged[-1][0], f"{merged[-1][1]}, {name}")
        else:
            merged.append((level, name))
    for level, name in merged:
        place: Any = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points"}
        axis.annotate(name, (1.0, level), va="center", ha="left", annotation_clip=False, **place, **SMALL)


def _name_times(axis: Axes, names: Sequence[tuple[float, str]]) -> None:
    """Names of times along their lines, at the foot of the axis; one that is too near the one before stands higher."""
    before, foot = -1.0, 0.0
    for time, name in sorted(names):
        across = _across(axis, time)
        foot = foot + 0.07 * len(name) if across - before < 0.025 and foot < 0.5 else 0.0
        before = across
        place: Any = {"xycoords": ("data", "axes fraction"), "xytext": (2, 3), "textcoords": "offset points"}
        axis.annotate(name, (time, foot), rotation=90, ha="left", va="bottom", annotation_clip=True, **place, **SMALL)


def _across(axis: Axes, x: float) -> float:
    """Where `x` lies along the axis, from 0 (left) to 1 (right), on whatever scale it has."""
    along: float = axis.transAxes.inverted().transform(axis.transData.transform((x, 1.0)))[0]
    return along
