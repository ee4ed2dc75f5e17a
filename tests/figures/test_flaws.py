"""No text of a figure overlaps another or leaves the canvas: any number of heads and layers, every task."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import stagelens as sl
from kit.pictures import GROUPS, empty_panels, flaws, run_of_heads
from kit.tiny import reported_run, task_ids
from stagelens.figures import figures_of, loss_figure, probes_figure, specialization_figure, styled
from stagelens.figures.heat_map import heat_map_figure
from stagelens.figures.trajectory import trajectory_figure

SIZES = [(1, 1), (1, 8), (1, 12), (2, 4), (6, 2), (6, 12)]


DRAWN = [loss_figure, probes_figure, specialization_figure, heat_map_figure, trajectory_figure]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize(("layers", "heads"), SIZES)
def test_figures_of_any_number_of_heads(draw, layers, heads, tmp_path):
    run, _ = run_of_heads(tmp_path, layers, heads, GROUPS, stage_names=["the first is learned", "and the second"])
    with styled():
        assert not flaws(draw(run))


@pytest.mark.parametrize("task", task_ids())
def test_figures_of_every_task(task):
    found = {name: flaws(figure) for name, figure in figures_of(reported_run(task)).items() if name != "overview"}
    assert not {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("align", ["step", "stage"])
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (6, 12)])
def test_figures_of_comparisons(layers, heads, align, tmp_path):
    runs = [run_of_heads(tmp_path / str(seed), layers, heads, GROUPS, seed=seed)[0] for seed in range(3)]
    compared = sl.compare(runs, ["loss", "attention_sparsity", "head_specialization"], align)
    with styled():
        assert not flaws(compared.figure())


def test_a_panel_without_data_inside_is_found():
    figure = Figure()
    drawn, nowhere, outside, off = figure.subplots(1, 4)
    drawn.plot([0, 1], [0, 1])
    nowhere.plot([0, 1], [np.nan, np.nan])
    nowhere.axhline(0.5)
    outside.plot([0, 1], [0, 1])
    outside.set_xlim(5, 6)
    off.set_axis_off()
    assert empty_panels(figure) == ["panel 1 is empty", "panel 2 is empty"]


def test_a_text_over_another_and_one_beyond_the_edge_are_found():
    figure = Figure(figsize=(3, 2))
    for x, y, words in ((0.5, 0.5, "one"), (0.51, 0.51, "two"), (0.98, 0.1, "beyond"), (0.1, 0.9, "alone")):
        figure.text(x, y, words)
    assert flaws(figure) == ["'beyond' leaves the canvas", "'one' overlaps 'two'"]
