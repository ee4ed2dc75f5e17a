"""The figures of a sweep: the metric over the grid, the power-law fit, and its residuals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from stagelens.figures.palette import COLOURS
from stagelens.figures.style import THEORY, line_style, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stagelens.sweeps import Law, Sweep

MOST_LINES = 8  # combinations of the other keys that are drawn apart
MOST_TICKS = 5
MARKERS = "osD^vP*X"
CENSORED: Any = {"marker": 10, "mfc": "none", "mec": "0.35", "ls": "none", "ms": 8}  # a caret: the value is larger


def write_sweep_figures(swept: Sweep, folder: Path) -> None:
    """Draws the figures of a sweep into `folder` as png and svg, and removes those of an earlier fit."""
    for old in folder.glob("*.*"):
        old.unlink()
    if not any(row[swept.measures[0]] is not None for row in swept.done):
        return
    with styled():
        figures = {"measure": measure_figure(swept)}
        if swept.law is not None:
            figures |= {"law": law_figure(swept, swept.law), "residuals": residual_figure(swept, swept.law)}
    for name, figure in figures.items():
        save(figure, *(folder / f"{name}{ending}" for ending in (".png", ".svg")))


def measure_figure(swept: Sweep) -> Figure:
    """Draws the first metric over the first key: a line for each combination of the others, a dot for each seed."""
    measure, (first, *others) = swept.measures[0], swept.plan.grid.keys
    rows = [row for row in swept.done if row[measure] is not None]
    figure = Figure(figsize=(5.4, 3.4))
    axis = figure.add_subplot()
    groups = list(dict.fromkeys(tuple(row[key] for key in others) for row in rows))
    for number, group in enumerate(groups[:MOST_LINES]):
        mine = [row for row in rows if tuple(row[key] for key in others) == group]
        label = ", ".join(f"{key}={value}" for key, value in zip(others, group, strict=True))
        _draw_group(axis, mine, first, measure, line_style(number), label)
    if len(groups) > MOST_LINES:
        axis.set_title(f"the first {MOST_LINES} of {len(groups)} combinations of {', '.join(others)}", loc="left")
    if _numeric(rows, first):
        _log_if_wide(axis, "x", [row[first] for row in rows])
    _log_if_wide(axis, "y", [row[measure] for row in rows])
    axis.set(xlabel=first, ylabel=measure)
    if any(row["censored"] for row in rows):
        axis.plot([], [], label="never reached (censored)", **CENSORED)
    if axis.get_legend_handles_labels()[1]:
        axis.legend()
    return figure


def law_figure(swept: Sweep, law: Law) -> Figure:
    """Draws a panel for each exponent: the metric, divided by the powers of the other columns, over its own column."""
    figure = Figure(figsize=(1.0 + 2.9 * len(law.exponents), 3.1))
    axes = figure.subplots(1, len(law.exponents), squeeze=False)[0]
    values, censored, columns = _measured(swept)
    for number, (axis, (name, exponent)) in enumerate(zip(axes, law.exponents.items(), strict=True)):
        rest = {key: columns[key] for key in columns if key != name}
        others = np.prod([x ** law.exponents[key].value for key, x in rest.items()], axis=0) if rest else 1.0
        own, left = columns[name], values / others
        colour = COLOURS[number % len(COLOURS)]
        axis.plot(own[~censored], left[~censored], "o", ms=4, color=colour, alpha=0.7)
        axis.plot(own[censored], np.broadcast_to(left, own.shape)[censored], **CENSORED)
        ends = np.array([own.min(), own.max()])
        axis.plot(ends, law.constant * ends**exponent.value, **THEORY)
        axis.set(xscale="log", yscale="log", xlabel=name)
        _ticks_at(axis, np.unique(own))
        powers = "".join(f" / {key}^{law.exponents[key].value:.2f}" for key in rest)
        axis.set_ylabel(f"{swept.measures[0]}{powers}")
        axis.set_title(f"{name}^{exponent}", loc="left")
    left_out = f", {law.censored} censored (carets)" if law.censored else ""
    figure.suptitle(
        f"{swept.plan.kind.id}: {law.points} points{left_out}, {_quality(law)}", x=0.01, ha="left", fontsize=10
    )
    return figure


def residual_figure(swept: Sweep, law: Law) -> Figure:
    """Draws log(measured / fit) over the fitted value, coloured by the first column."""
    _, censored, columns = _measured(swept)
    fitted = law.predict(columns)
    figure = Figure(figsize=(5.0, 3.0))
    axis = figure.add_subplot()
    name, first = next(iter(columns.items()))
    for number, value in enumerate(kinds := np.unique(first)):
        here = (first == value) & ~censored
        style: Any = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        label = f"{name} = {value:g}" if len(kinds) <= MOST_LINES else None
        axis.plot(fitted[here], law.residuals[here], ls="none", ms=4.5, label=label, **style)
    axis.axhline(0, **THEORY)
    axis.set(xscale="log", xlabel=f"{swept.measures[0]}, fitted", ylabel="log (measured / fitted)")
    axis.set_title(f"{swept.plan.kind.id}: residuals of the power-law fit, {_quality(law)}", loc="left")
    if len(kinds) <= MOST_LINES:
        axis.legend()
    return figure


def _quality(law: Law) -> str:
    return "no R2 (a saturated fit)" if law.problem else f"R2 = {law.r2:.4f}"


def _measured(swept: Sweep) -> tuple[Any, Any, dict[str, Any]]:
    """Returns values [point], censored [point] and the columns of the fit, over the grid points with a value."""
    rows = swept.measured
    values = np.array([row[swept.measures[0]] for row in rows])
    censored = np.array([row["censored"] for row in rows])
    return values, censored, {key: np.array(column) for key, column in swept.columns.items()}


def _draw_group(axis: Axes, rows: Sequence[dict[str, Any]], key: str, measure: str, look: Any, label: str) -> None:
    """Draws the seeds as dots, censored ones as carets; the line of means has a gap if a seed is censored."""
    places = list(dict.fromkeys(row[key] for row in rows))
    if _numeric(rows, key):
        places.sort()
    dots: Any = {"marker": "o", "ms": 3, "ls": "none", "color": look["color"]}
    for censored, marker in ((False, dots), (True, CENSORED | {"mec": look["color"]})):
        some = [row for row in rows if row["censored"] is censored]
        axis.plot([_place(row, key) for row in some], [row[measure] for row in some], **marker)
    here = [[row[measure] if not row["censored"] else np.nan for row in rows if row[key] == place] for place in places]
    means = [float(np.mean(values)) for values in here]
    axis.plot([_place({key: place}, key) for place in places], means, label=label or None, **look)


def _place(row: dict[str, Any], key: str) -> Any:
    return row[key] if _is_number(row[key]) else str(row[key])


def _numeric(rows: Sequence[dict[str, Any]], key: str) -> bool:
    return all(_is_number(row[key]) for row in rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ticks_at(axis: Axes, values: Any) -> None:
    """Sets the ticks of a log x axis to the points, if they are few; labels of minor ticks would overlap."""
    axis.xaxis.set_minor_formatter(NullFormatter())
    if len(values) <= MOST_TICKS:
        axis.set_xticks(values, [f"{value:g}" for value in values])


def _log_if_wide(axis: Axes, which: str, values: Sequence[float]) -> None:
    """Uses a log scale if the values span more than a factor of four."""
    if min(values) > 0 and max(values) > 4 * min(values):
        axis.set(**{f"{which}scale": "log"})
