"""Ticks of log axes that are drawn in little time: powers of ten as plain text, and all minor ticks as one line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterSciNotation, NullFormatter, NullLocator

POWER = re.compile(r"\$\\mathdefault\{(-?10)\^\{(-?\d+)\}\}\$")
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Powers(LogFormatterSciNotation):
    """Formats the powers of ten of a log axis as `10²`. To parse them as mathematics takes longer than to draw them."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Returns the text of the tick at `x`."""
        text = str(super().__call__(x, pos))
        power = POWER.fullmatch(text)
        return power[1] + power[2].translate(RAISED) if power else text


def simplify_ticks(figure: Figure) -> None:
    """Gives the log axes of a figure plain labels, and draws the minor ticks of each as one line.

    The limits of the axes must be final. For matplotlib each minor tick is five artists, which takes longer than all
    lines of a small panel. The minor ticks of an axis on which some of them have labels stay as they are.
    """
    logs = [(axes, axis) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if axis.get_scale() == "log"]
    for _, axis in logs:
        if type(axis.get_major_formatter()) is LogFormatterSciNotation:
            axis.set_major_formatter(Powers())
    unnamed = [(axes, axis, at) for axes, axis in logs if len(at := _unnamed(axis))]
    for axes, axis, at in unnamed:  # axes that share an axis share its locators, so these change last
        if axes.get_visible() and axes.axison and axis.get_visible():
            axes.add_artist(_marks(axis, at))
        axis.set_minor_locator(NullLocator())


def _unnamed(axis: Any) -> Any:
    """Returns where the minor ticks of the axis are, inside of its limits; none if some of them have labels."""
    at = axis.get_minorticklocs()
    if not isinstance(axis.get_minor_formatter(), NullFormatter):
        axis.get_minor_formatter().set_locs(at)
        if any(axis.get_minor_formatter().format_ticks(at)):
            return np.empty(0)
    low, high = sorted(axis.get_view_interval())
    return at[(at >= low) & (at <= high)]


def _marks(axis: Any, at: Any) -> Line2D:
    """Returns one line of marks at the positions `at`, which look like the minor ticks of the axis."""
    here = np.zeros(len(at))
    marks = Line2D(*((at, here) if axis.axis_name == "x" else (here, at)))
    marks.update_from(axis.get_minor_ticks(1)[0].tick1line)
    marks.set(clip_on=False, zorder=axis.get_zorder())
    return marks
