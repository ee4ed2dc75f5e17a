"""Log axes look as matplotlib draws them, with labels in plain text and minor ticks that are one line."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.markers import TICKDOWN
from matplotlib.ticker import LogFormatterSciNotation, NullFormatter

from stagelens.figures import styled
from stagelens.figures.ticks import Powers, simplify_ticks


def drawn(simplified: bool, low: float, high: float, shared: bool) -> np.ndarray:
    """The pixels of two panels with log axes, as matplotlib draws them or with simplified minor ticks."""
    with styled():
        figure = Figure(figsize=(4, 3))
        figure.set_layout_engine("none")
        for axes in figure.subplots(2, 1, sharex=shared):
            axes.plot([low, high], [1e-3, 1e3])
            axes.set(xscale="log", yscale="log", xlim=(low, high))
            axes.xaxis.set_major_formatter(Powers())
            axes.yaxis.set_major_formatter(Powers())
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", which="both", length=4)
        axes.tick_params(axis="y", which="minor", left=False)
        if simplified:
            simplify_ticks(figure)
            _, *marks = axes.lines
            assert [line.get_marker() for line in marks[:1]] == [TICKDOWN] and len(marks[0].get_xdata()) >= 10
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba()).astype(int)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("low", "high"), [(1, 1000), (1.7, 40), (3e-3, 2e2)])
def test_the_picture_is_that_of_matplotlib(low, high, shared):
    assert np.abs(drawn(True, low, high, shared) - drawn(False, low, high, shared)).max() <= 1


def test_a_minor_tick_with_a_label_stays():
    figure = Figure()
    axes = figure.subplots()
    axes.plot([2, 5], [1, 2])
    axes.set_xscale("log")
    expected = axes.xaxis.get_minorticklocs()
    simplify_ticks(figure)
    FigureCanvasAgg(figure).draw()
    assert axes.xaxis.get_minorticklocs() == pytest.approx(expected) and len(axes.lines) == 1
    assert any(label.get_text() for label in axes.get_xticklabels(minor=True))


def test_powers_of_ten_are_text_and_other_numbers_stay_as_they_are():
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1e-12, 1e12], [1, 2])
    axes.set_xscale("log")
    simplify_ticks(figure)
    formatter = axes.xaxis.get_major_formatter()
    assert [formatter(10.0**power) for power in (-12, -3, 0, 1, 10)] == ["10⁻¹²", "10⁻³", "10⁰", "10¹", "10¹⁰"]
    plain = LogFormatterSciNotation(base=2)
    assert Powers(base=2)(8.0) == plain(8.0) == r"$\mathdefault{2^{3}}$"


def test_ticks_that_are_named_and_linear_axes_stay_as_they_are():
    figure = Figure()
    named, linear = figure.subplots(1, 2)
    named.plot([1, 100], [1, 2])
    named.set_xscale("log")
    named.set_xticks([1, 100], ["first", "last"])
    linear.plot([0, 1], [0, 1])
    before = linear.xaxis.get_major_formatter()
    simplify_ticks(figure)
    FigureCanvasAgg(figure).draw()
    assert [label.get_text() for label in named.get_xticklabels()] == ["first", "last"]
    assert linear.xaxis.get_major_formatter() is before and len(linear.lines) == 1
