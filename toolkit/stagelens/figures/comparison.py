"""The figure of a comparison: one panel per series, one line per seed group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from stagelens.base import UsageError
from stagelens.figures.labels import fit_left
from stagelens.figures.style import grid, line_style, styled

MARKS = "thin vertical lines: transitions"
MOST_PANELS = 60  # a figure with more is too tall to read

if TYPE_CHECKING:
    from stagelens.comparing import AlignedRuns, Curve
    from stagelens.timelines import SeriesCurve


def comparison_figure(comparison: AlignedRuns, logx: bool = False, logy: bool = False) -> Figure:
    """Draws the curves of `comparison`: the median as a line, the spread of the seeds as a band, each as a hairline.

    Thin vertical lines are the transitions. `logx` and `logy` ask for logarithmic axes; values up to 0 are not drawn.
    """
    from stagelens.comparing import SPREAD

    panels = len(comparison.series)
    if panels > MOST_PANELS:
        raise UsageError(
            f"{panels} curves are too many for one figure (at most {MOST_PANELS}): choose some with "
            f"--probe, as {comparison.series[-1].name}, or write an html file"
        )
    with styled():
        names = [group.name for group in comparison.groups]
        several = any(len(group.members) > 1 for group in comparison.groups)
        marked = comparison.align == "stage" or any(m.transitions for g in comparison.groups for m in g.members)
        lines = max(_axis_label(series, comparison).count("\n") for series in comparison.series)
        left = (1.35 if any(series.labels for series in comparison.series) else 0.95) + 0.14 * max(0, lines - 1)
        top = 0.2 + 0.18 * (len(names) + several + marked)
        figure, axes = grid((panels, 1), (6.3, 2.0), (0, 0.18), margin=(left, 0.15, top, 0.5), sharex=True)
        axes = axes[:, 0]
        curves = iter(comparison.curves)
        for axis, series in zip(axes, comparison.series, strict=True):
            for index, _ in enumerate(comparison.groups):
                _draw_curve(axis, next(curves), line_style(index))
            axis.set_ylabel(_axis_label(series, comparison), fontsize=8.5)
            if series.labels:
                axis.set_yticks(range(len(series.labels)), series.labels)
            elif logy:
                axis.set_yscale("log", nonpositive="mask")
            _mark_transitions(axis, comparison)
        axes[-1].set_xlabel(comparison.x_label)
        _fit_x_axis(axes[-1], comparison, logx)
        figure.align_ylabels(axes)
        if not logy:  # its ticks are powers of ten, which are narrow
            fit_left(figure, list(axes))
        note = f"line: median (transitions aligned), band: {SPREAD}, hairlines: the seeds" if several else None
        look: Any = {
            "loc": "upper left",
            "alignment": "left",
            "title_fontsize": 7.5,
            "bbox_to_anchor": (axes[0].get_position().x0 - 0.01, 1.0),
        }
        handles, labels = axes[0].get_legend_handles_labels()
        if marked:
            colour = "0.75" if comparison.align == "stage" else "0.4"
            handles, labels = [*handles, Line2D([], [], color=colour, lw=0.8)], [*labels, MARKS]
        figure.legend(handles, labels, title=note, **look)
        return figure


def _draw_curve(axis: Axes, curve: Curve, look: dict[str, Any]) -> None:
    style = "steps-post" if curve.series.labels else "default"
    axis.plot(curve.x, curve.middle, label=curve.group.name, drawstyle=style, **look)
    if len(curve.seeds) > 1 and not curve.series.labels:
        axis.fill_between(curve.x, curve.low, curve.high, color=look["color"], alpha=0.18, lw=0, zorder=1)
        for x, values in curve.seeds:
            axis.plot(x, values, color=look["color"], lw=0.5, alpha=0.6, zorder=1.5)


def _mark_transitions(axis: Axes, comparison: AlignedRuns) -> None:
    """Draws thin lines at the transitions: at the integers if aligned by stage, else those of each run."""
    if comparison.align == "stage":
        last = max(len(m.transitions) for group in comparison.groups for m in group.members)
        axis.xaxis.set_major_locator(MultipleLocator(1))
        for place in range(1, last + 1):
            axis.axvline(place, color="0.75", lw=0.8, zorder=0)
        return
    for index, group in enumerate(comparison.groups):
        for member in group.members:
            for place in member.place(np.array(member.transitions), comparison.align):
                axis.axvline(place, **line_style(index) | {"lw": 0.6, "alpha": 0.5, "zorder": 0})


def _fit_x_axis(axis: Axes, comparison: AlignedRuns, logx: bool) -> None:
    """Uses a log axis, from the first positive position, if `logx` or the stages of every run were found on one."""
    axis.margins(x=0.01)
    positive = [x for curve in comparison.curves for places, _ in curve.seeds for x in places if x > 0]
    if (logx or (comparison.is_log and comparison.align in ("step", "fraction"))) and positive:
        axis.set_xscale("log")
        axis.set_xlim(min(positive), max(positive) * 1.03)


def _axis_label(series: SeriesCurve, comparison: AlignedRuns) -> str:
    """Returns the name of the series and, below it, the chosen element, the rule of averaging, and the scale."""
    scale = "0..1 of each curve's range" if comparison.relative and not series.labels else ""
    itself = "a straight line: it is the axis" if comparison.align == series.name == "loss" else ""
    notes = [note for note in (series.rule, scale, itself) if note]
    element = series.name.removeprefix(series.source)
    return "\n".join([series.source, *([element] if element else []), *(f"({note})" for note in notes)])
