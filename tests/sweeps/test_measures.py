"""Sweep metrics of runs with known curves."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stagelens as sl
from kit.tasks import Decay, Regression, run
from kit.written_runs import STEPS, staircase, write_run
from stagelens.base.errors import UsageError
from stagelens.sweeps.measures import Measured, crossing, parse_measure


@pytest.fixture(scope="module")
def decay(tmp_path_factory):
    return run(Decay, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    return run(Regression, tmp_path_factory.mktemp("runs"))


def value(text: str, of) -> float:
    measured = parse_measure(text)(of)
    assert not measured.censored
    return measured.value


def test_final_least_largest_and_best(regression) -> None:
    losses = regression.timeline.scalar("loss")[1]
    assert value("loss", regression) == value("loss:final", regression) == losses[-1]
    assert value("loss:min", regression) == value("loss:best", regression) == losses.min()
    assert value("loss:max", regression) == losses.max()


def test_one_number_of_a_series_with_dims(regression) -> None:
    column = regression.timeline.column("weight_norms/norm")
    (dim, labels), *_ = column.coords
    index = column.dims.index(dim)
    last = regression.timeline.series("weight_norms/norm")[-1]
    expected = np.take(last, 1, axis=index).mean()
    assert value(f"weight_norms/norm[{dim}={labels[1]}]", regression) == pytest.approx(expected)


def test_the_length_of_a_plateau_is_where_the_curve_crosses(decay) -> None:
    assert value("plateau_length@0.8", decay) == pytest.approx(-math.log(0.8), rel=1e-2)
    assert value("plateau_length:loss@80%", decay) == value("plateau_length@0.8", decay)
    assert parse_measure("plateau_length@0.1")(decay) == Measured(decay.timeline.steps[-1], censored=True)


def test_crossings_are_interpolated_and_taken_from_either_side() -> None:
    steps = np.array([0.0, 10.0, 20.0])
    assert crossing(steps, np.array([1.0, 0.8, 0.2]), "0.5") == Measured(15.0)
    assert crossing(steps, np.array([0.0, 0.4, 0.8]), "0.6") == Measured(15.0)
    assert crossing(steps, np.array([1.0, 0.8, 0.6]), "50%") == Measured(20.0, censored=True)
    assert crossing(steps, np.array([2.0, 1.0, 0.5]), "50%") == Measured(10.0)


@pytest.mark.parametrize("start", [0.0, -0.0])
def test_a_part_of_zero_is_no_threshold(start: float) -> None:
    measured = crossing(np.array([0.0, 10.0]), np.array([start, 1.0]), "50%")
    assert math.isnan(measured.value) and not measured.censored
    assert measured.reason == "the series starts at 0, so 50% of its start is no threshold"
    assert crossing(np.array([0.0, 10.0]), np.array([start, 1.0]), "0.5") == Measured(5.0)


def test_a_series_has_no_value_where_it_was_not_measured(tmp_path) -> None:
    loss = staircase(STEPS, (300, 700), (3.0, 2.0, 1.0))
    late, early = np.where(STEPS >= 900, 150.0, np.nan), np.where(STEPS <= 100, 150.0, np.nan)
    run = write_run(tmp_path, "a", {"loss": loss, "late": late, "early": early})
    ends = [float(stage.end) for stage in run.stages()]
    assert ends[0] < 900 and ends[-1] == 1000
    for name, number, covered in (("late", 1, "900 to 1000"), ("early", len(ends), "0 to 100")):
        measured = parse_measure(f"{name}:stage{number}")(run)
        assert math.isnan(measured.value) and not measured.censored
        assert measured.reason == f"{name} was measured from step {covered}; the stage ends at {ends[number - 1]:g}"
    assert value(f"late:stage{len(ends)}", run) == 150.0
    assert parse_measure("loss:stage99")(run).reason == f"the run has {len(ends)} stages"
    assert sl.compare([run], "late").table[0]["late"] is None


def test_a_number_that_is_not_finite_has_a_reason(tmp_path) -> None:
    perplexity = np.append(np.linspace(9, 2, len(STEPS) - 1), np.inf)
    run = write_run(tmp_path, "diverged", {"loss": -STEPS, "perplexity": perplexity})
    assert parse_measure("perplexity")(run) == Measured(np.inf, reason="perplexity is inf there")
    assert parse_measure("perplexity:max")(run).reason == "perplexity is inf there"
    assert parse_measure("perplexity:min")(run) == Measured(2.0)


def test_events_of_a_flow_are_its_own_times(decay) -> None:
    assert value("event:three quarters", decay) == pytest.approx(-math.log(0.75), rel=1e-6)
    with pytest.raises(UsageError, match="unknown event 'quarter'"):
        parse_measure("event:quarter")(decay)


def test_stages_and_transitions_are_those_that_the_run_has(tmp_path) -> None:
    """A staircase of three plateaus, which falls at 300 and at 700."""
    curve = staircase(STEPS, (300, 700), (3.0, 2.0, 1.0))
    run = write_run(tmp_path, "a", {"loss": curve})
    stages = run.stages()
    assert [value(name, run) for name in ("stages", "transitions", "plateaus")] == [5, 2, 3]
    for number, at in ((1, 300), (2, 700)):
        assert value(f"transition{number}", run) == stages.transitions[number - 1].at == pytest.approx(at, abs=10)
    assert parse_measure("transition3")(run).censored
    for number, level in ((1, 3.0), (3, 2.0), (5, 1.0)):
        found = value(f"loss:stage{number}", run)
        assert found == pytest.approx(np.interp(stages[number - 1].end, STEPS, curve))
        assert found == pytest.approx(level, abs=0.15)  # a plateau ends with the first tenth of the drop
    assert parse_measure("loss:stage6")(run).censored


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "expected a series"),
        ("loss:last", "unknown moment 'last'"),
        ("plateau_length@soon", "threshold 'soon'"),
        ("norm[head]", "expected elements such as"),
        ("loss:stage0", "unknown moment"),
    ],
)
def test_a_text_that_names_no_measure_is_reported_at_once(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_measure(text)


def test_an_exact_name_of_a_series_wins(tmp_path) -> None:
    """`recall@10` is no threshold of 10, and a series called `stages` is no number of stages."""
    rising = STEPS / STEPS[-1]
    series = {"loss": -STEPS, "recall@10": rising, "plateau_length@0.5": STEPS * 0.0 + 7, "stages": STEPS * 0.0 + 9}
    run = write_run(tmp_path, "a", series | {"p/recall@5": (np.stack([rising, 3 * rising], axis=1), ("head",))})
    assert value("recall@10", run) == value("recall@10:max", run) == 1.0 and value("recall@10:min", run) == 0.0
    assert value("p/recall@5[head=1]", run) == value("mean(p/recall@5[head=1]):final", run) == 3.0
    assert value("plateau_length@0.5", run) == 7.0 and value("stages", run) == 9.0
    assert value("plateau_length:recall@10@0.25", run) == pytest.approx(250)
    named = value("plateau_length:recall@10@50%", write_run(tmp_path, "b", {"loss": STEPS, "recall@10": 2 - rising}))
    assert named == parse_measure("plateau_length:recall@10")(sl.load("b", tmp_path)).value == STEPS[-1]
    other = write_run(tmp_path, "c", {"loss": STEPS, "recall": 20 * rising})
    assert value("plateau_length:recall@10", other) == pytest.approx(500)  # there is no series `recall@10`


def test_a_threshold_without_a_plateau_is_an_error(regression) -> None:
    with pytest.raises(UsageError, match=r"only plateau_length has a threshold, as plateau_length:loss@0.1"):
        parse_measure("loss@0.1")(regression)


def test_unknown_series_and_places_name_the_known_ones(regression) -> None:
    with pytest.raises(UsageError, match=r"unknown series 'los'.*did you mean 'loss'"):
        parse_measure("los")(regression)
    with pytest.raises(UsageError, match="unknown dim 'head'"):
        parse_measure("weight_norms/norm[head=1]")(regression)
