"""Draws series, stages, phases and predictions on an axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from stagelens.base import StagelensError, noting
from stagelens.figures.heads import OTHERS, Look, looks, most_changing, same_together
from stagelens.figures.labels import name_above, name_beside, name_times
from stagelens.figures.style import LEVEL, THEORY, TIME
from stagelens.timelines import ERROR, chance_levels, companion, lines_of

if TYPE_CHECKING:
    from stagelens.experiments import Prediction
    from stagelens.runs import Run
    from stagelens.timelines import Lines

MOST_IN_LEGEND = 8
WIDEST_LABEL = 30  # letters of a legend's line
ROUNDING = 1e-5  # fraction of a series' size; a series that varies by less is constant
NUMBERED = re.compile(r"\b(Eqs?\.|Fig\.|Theorem|phase) ")
GREYS = ("1.0", "0.94", "0.88", "0.82")


def title_of(run: Run) -> str:
    """Returns `task, seed 0`, the headline of a run's figures; the name of a run without a seed."""
    return run.name if run.seed is None else f"{run.manifest.task}, seed {run.seed}"


def x_label(run: Run) -> str:
    """Returns the label of the x axis: training step, or time of a flow."""
    return "time" if run.manifest.kind == "flow" else "training step"


def stages_of(run: Run) -> Sequence[Any]:
    """Returns the stages of the run's metric; none if it is too short or missing."""
    try:
        found: Sequence[Any] = run.stages()
        return found
    except StagelensError:
        return ()


def predictions_of(run: Run) -> Sequence[Prediction]:
    """Returns the predictions about the run; none if its plugin is not installed.

    A prediction that cannot be drawn is left out, and noted in `run.noted`.
    """
    if run not in _drawable:
        experiment = run.known_experiment
        found: list[Prediction] = []
        if experiment is not None:
            with noting(run.noted, "predictions()", experiment, experiment.predictions):
                found = list(experiment.predictions())
        _drawable[run] = [prediction for prediction in found if _can_be_drawn(prediction, run)]
    return _drawable[run]


_drawable: WeakKeyDictionary[Run, list[Prediction]] = WeakKeyDictionary()  # predicted curves may take long to compute


def _can_be_drawn(prediction: Prediction, run: Run) -> bool:
    """True if a predicted curve can be computed at the run's steps, or if a level or time is a number.

    The name of its series must be right, too.
    """
    experiment = run.experiment
    with noting(run.noted, f"prediction {prediction.name!r}", experiment, experiment.predictions):
        prediction.series_in(run.timeline)
        if callable(prediction.expected):
            theory_curve(prediction, run.timeline.steps)
        else:
            float(prediction.expected)
        return True
    return False


def theory_curve(prediction: Prediction, steps: Any) -> NDArray[np.float64]:
    """Returns the predicted curve at `steps` [step]; nan outside of the prediction's window."""
    assert callable(prediction.expected)
    steps = np.asarray(steps, dtype=np.float64)
    low, high = prediction.window or (-np.inf, np.inf)
    inside = (steps >= low) & (steps <= high)
    curve = np.full(len(steps), np.nan)
    curve[inside] = prediction.expected(steps[inside])
    return curve


def fit_x_axis(axis: Axes, run: Run) -> None:
    """Sets the x axis to the scale on which the run's stages were found, from the first step to the last."""
    steps = run.timeline.steps
    positive = steps[steps > 0]
    if getattr(stages_of(run), "axis", "linear") == "log" and len(positive) > 1:
        axis.set_xscale("log")
        axis.set_xlim(positive[0], positive[-1] * 1.03)
        axis.xaxis.set_minor_formatter(NullFormatter())
        if positive[-1] < 20 * positive[0]:  # powers of ten alone would name one place
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:g}")
    else:
        axis.margins(x=0.01)
        axis.xaxis.set_major_locator(MaxNLocator(5))


def looks_of(lines: Lines) -> list[tuple[Look, Any]]:
    """Returns the look and the values [step] of each line that was measured; a layer may lack a head of another.

    Of more than eight lines that are neither heads nor layers, the seven that change most have a colour of their own.
    Reference predictors whose curves are the same share an entry of the legend.
    """
    column, values = lines.column, lines.values.T  # [line, step]
    layers = column.coordinate("layer") if "layer" in column.dims else ()
    every = looks(column.dims, column.shape, lines.labels, layers)
    if len(every) > MOST_IN_LEGEND and len(layers) < 2 and not set(column.dims) <= {"layer", "head"}:
        every = most_changing(values, lines.labels)
    elif column.dims == ("reference",):
        every = same_together(values, every)
    return [(look, line) for look, line in zip(every, values, strict=True) if not np.isnan(line).all()]


def draw_series(axis: Axes, run: Run, name: str, legend: bool = True, most: float = np.inf) -> str:
    """Draws a series over the steps, one line for each of its numbers, with its own colour and dash.

    Its standard error is a band around each line, its chance level a thin dotted line. A series of more than `most`
    numbers is averaged over layers, heads and positions; returns what was averaged.
    """
    steps, lines = run.timeline.steps, lines_of(run.timeline, name, most)
    column, style = lines.column, "steps-post" if lines.column.labels else "default"
    error = None if lines.rule else companion(run.timeline, name, ERROR)
    errors = None if error is None else error.reshape(len(steps), -1)[:, ~np.isnan(lines.values).all(axis=0)]
    entries: set[str] = set()
    numbered = sorted(enumerate(looks_of(lines)), key=lambda one: one[1][0].entry.endswith(OTHERS))  # they come last
    for index, (look, values) in numbered:
        there = np.isfinite(values) | np.isinf(values)  # the line connects the steps at which the series was measured
        label = f"_{look.entry}" if look.entry in entries else look.entry or name
        axis.plot(steps[there], values[there], label=label, drawstyle=style, **look.style)
        draw_band(axis, steps, values, None if errors is None else errors[:, index], look.style["color"])
        entries.add(look.entry)
    for level in chance_levels(run.timeline, name).T:
        axis.plot(steps, level, color="0.5", lw=0.7, ls=":", label="_chance", zorder=1)
    if column.labels and len(column.labels) <= MOST_IN_LEGEND:
        axis.set_yticks(range(len(column.labels)), column.labels)
        axis.set_ylim(-0.3, len(column.labels) - 0.7)
    else:
        keep_rounding_out(axis, lines.values)
    if legend and 1 < len(entries) <= MOST_IN_LEGEND:
        axis.legend()
    return lines.rule


def draw_band(axis: Axes, steps: Any, values: Any, error: Any, colour: str) -> None:
    """Draws the standard error `error` of `values`, both [step], as a band around the line; none if it is None."""
    if error is not None and np.isfinite(error).any():
        there = np.isfinite(values) & np.isfinite(error)
        low, high = (values - error)[there], (values + error)[there]
        axis.fill_between(steps[there], low, high, color=colour, alpha=0.2, lw=0, zorder=1.2)


def shade_stages(axis: Axes, run: Run, labels: bool = False) -> int:
    """Draws the transitions of the run's metric as grey bands, with thin lines at their steepest points.

    With `labels` it writes their names above the axis. Returns the number of lines that the names take.
    """
    shown = [stage for stage in stages_of(run) if stage.kind == "transition"]
    for stage in shown:
        axis.axvspan(stage.start, stage.end, color="0.93", lw=0, zorder=0)
        axis.axvline(stage.at, color="0.6", lw=0.7, zorder=0.5)
    return name_above(axis, [(stage.at, stage.name) for stage in shown if stage.name]) if labels else 0


def shade_phases(axis: Axes, run: Run, layer: Any) -> None:
    """Shades the phases of head specialization of one layer; later ones are darker."""
    order = list(dict.fromkeys(phase["phase"] for phase in run.phases))
    for phase in run.phases:
        if phase["layer"] == layer:
            grey = GREYS[min(order.index(phase["phase"]), len(GREYS) - 1)]
            axis.axvspan(phase["start"], phase["end"], color=grey, lw=0, zorder=0)


def draw_predictions(axis: Axes, run: Run, name: str) -> None:
    """Draws the predictions about the series `name`: levels and curves dashed, times as dotted vertical lines.

    The legend gives the equations they come from. Levels are named next to the axis, times at its foot.
    """
    shown = [prediction for prediction in predictions_of(run) if prediction.series_in(run.timeline) == name]
    steps = run.timeline.steps
    levels = draw_levels(axis, [prediction for prediction in shown if prediction.kind == "level"])
    for kind, look in (("time", TIME), ("curve", THEORY)):
        alike = [prediction for prediction in shown if prediction.kind == kind]
        for prediction in alike:
            label = theory_label(alike) if prediction is alike[0] else None
            if callable(prediction.expected):
                axis.plot(steps, theory_curve(prediction, steps), label=label, zorder=3, **look)
            else:
                axis.axvline(prediction.expected, label=label, zorder=1, **look)
    name_beside(axis, levels)
    name_times(axis, [(float(p.expected), p.name) for p in shown if p.kind == "time" and not callable(p.expected)])


def levels_of(run: Run) -> list[Prediction]:
    """Returns the levels that theory predicts for the run, of all series, in the order of `predictions()`."""
    return [prediction for prediction in predictions_of(run) if prediction.kind == "level"]


def draw_levels(axis: Axes, levels: Sequence[Prediction], label: str | None = None) -> list[tuple[float, str]]:
    """Draws predicted levels as dashed lines across the axis. Returns (level, name) of each, as `name_beside` takes it.

        name_beside(axis, draw_levels(axis, levels_of(run)))

    `label` is the one entry of all levels in the legend; None: what `theory_label` says, "": no entry.
    """
    found = [(float(level.expected), level.name) for level in levels if not callable(level.expected)]
    for index, (height, _) in enumerate(found):
        entry = theory_label(levels) if label is None else label or None
        axis.axhline(height, label=None if index else entry, zorder=1, **LEVEL)
    return found


def theory_label(alike: Sequence[Prediction]) -> str:
    """Returns the legend entry of predictions of one kind, with the equations that they come from."""
    what = alike[0].name if len(alike) == 1 else f"{alike[0].kind}s"
    sources = ", ".join(dict.fromkeys(prediction.reference for prediction in alike))
    whole = NUMBERED.sub("\\1\u00a0", f"theory: {what} ({sources})")  # `Eq. 7` and `w = 0` stay in one line
    whole = whole.replace(" = ", "\u00a0=\u00a0")
    return fill(whole, WIDEST_LABEL).replace("\u00a0", " ")


def keep_rounding_out(axis: Axes, values: Any) -> None:
    """Includes zero and twice the value in the y axis if the series is constant up to rounding errors."""
    finite = values[np.isfinite(values)]
    size = float(np.abs(finite).max(initial=0.0))
    if len(finite) and float(np.ptp(finite)) <= ROUNDING * size:
        step = float(axis.dataLim.x0)
        axis.update_datalim([(step, 0.0), (step, 2 * float(finite.mean()) or 1.0)], updatex=False)
        axis.autoscale_view(scalex=False)
