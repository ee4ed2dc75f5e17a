"""The heat map and the trajectory of a run, read back from what was drawn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kit.written_runs import STEPS, staircase, write_run
from stagelens.figures.heat_map import heat_map_figure
from stagelens.figures.style import save
from stagelens.figures.trajectory import trajectory_figure


def run_of(tmp_path, heads: int):
    """`late` falls at 700; the heads of `early` rise at 300."""
    rng = np.random.default_rng(heads)
    early = staircase(STEPS, [300], [0, 1])[:, None] + 0.01 * rng.normal(size=(len(STEPS), heads))
    late = staircase(STEPS, [700], [5, 2]) + 0.01 * rng.normal(size=len(STEPS))
    series = {"late": late, "probe/early": (early, ("head",)), "constant": np.ones(len(STEPS))}
    return write_run(tmp_path, f"heads{heads}", series)


def texts(axis):
    return [text.get_text() for text in axis.texts]


@pytest.mark.parametrize(("heads", "shown", "names"), [(4, 5, 5), (60, 61, 2), (300, 101, 2)])
def test_the_heat_map_has_a_row_per_reading_sorted_by_when_it_moves(tmp_path, heads, shown, names):
    figure = heat_map_figure(run_of(tmp_path, heads))
    axis = figure.axes[0]
    values = np.asarray(axis.collections[0].get_array()).reshape(shown, len(STEPS))
    half = STEPS[np.argmax(values > 0.5, axis=1)]  # all rise: what falls is flipped
    assert half[:-1] == pytest.approx(300, abs=20)
    assert half[-1] == pytest.approx(700, abs=20)
    assert len(texts(axis)) == names
    assert texts(axis)[-1] == "late"
    save(figure, tmp_path / "stages.png")


def test_the_ribbon_shows_the_joint_transitions(tmp_path):
    run = run_of(tmp_path, 4)
    axis = heat_map_figure(run).axes[0]
    lines = [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() != "-"]
    assert lines == [stage.at for stage in run.joint_stages().transitions]
    assert texts(axis.child_axes[0]) == ["1", "2"]


def test_names_in_the_ribbon_do_not_overlap(tmp_path):
    """Numbers are apart, and a name is left out if it has no room."""
    steps = np.linspace(0, 500, 300)
    series = {f"r{at}": staircase(steps, [at], [0, 1], 2.0) for at in (60, 130, 300)}
    run = write_run(tmp_path, "close", series, steps=steps)
    found = run.joint_stages()
    assert len(found.transitions) == 3
    run.joint_stages = lambda: found.named(["", "predicts as the token before the last", "predicts as token 2"])
    figure = heat_map_figure(run)
    save(figure, tmp_path / "stages.png")
    labels = figure.axes[0].child_axes[0].texts
    assert [label.get_text() for label in labels] == ["1", "2", "3: predicts as token 2"]
    boxes = [label.get_window_extent() for label in labels]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_the_trajectory_states_the_explained_shares(tmp_path):
    figure = trajectory_figure(run_of(tmp_path, 4))
    axis = figure.axes[0]
    shares = [int(label.split("(")[1].split("%")[0]) for label in (axis.get_xlabel(), axis.get_ylabel())]
    assert 95 <= sum(shares) <= 101
    assert [t.get_text().split(":")[0] for t in axis.get_legend().get_texts()] == [
        "plateau",
        "transition 1",
        "plateau",
        "transition 2",
        "plateau",
    ]
    save(figure, tmp_path / "trajectory.png")


def test_a_run_without_a_change_has_neither(tmp_path):
    run = write_run(tmp_path, "flat", {"loss": np.ones(len(STEPS))})
    assert heat_map_figure(run) is None
    assert trajectory_figure(run) is None
