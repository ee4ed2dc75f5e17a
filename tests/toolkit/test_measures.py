"""Measures: the numbers of runs whose curves are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small import Decay, Regression, run

from stagelens.errors import UsageError
from stagelens.measures import Measured, crossing, parse_measure


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


def test_events_of_a_flow_are_its_own_times(decay) -> None:
    assert value("event:three quarters", decay) == pytest.approx(-math.log(0.75), rel=1e-6)
    with pytest.raises(UsageError, match="unknown event 'quarter'"):
        parse_measure("event:quarter")(decay)


def test_stages_and_transitions_are_those_that_the_run_has(regression) -> None:
    stages = regression.stages()
    assert value("stages", regression) == len(stages)
    assert value("transitions", regression) == len(stages.transitions)
    assert value("plateaus", regression) == len(stages.plateaus)
    many = len(stages.transitions) + 1
    assert parse_measure(f"transition{many}")(regression).censored
    if stages.transitions:
        assert value("transition1", regression) == stages.transitions[0].at
    steps, losses = regression.timeline.scalar("loss")
    assert value("loss:stage1", regression) == pytest.approx(np.interp(stages[0].end, steps, losses))
    assert parse_measure(f"loss:stage{len(stages) + 1}")(regression).censored


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "expected a series"),
        ("loss:last", "unknown moment 'last'"),
        ("loss@0.1", "only plateau_length has a threshold"),
        ("plateau_length@soon", "threshold 'soon'"),
        ("norm[head]", "expected elements such as"),
        ("loss:stage0", "unknown moment"),
    ],
)
def test_a_text_that_names_no_measure_is_told_at_once(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_measure(text)


def test_unknown_series_and_places_name_the_known_ones(regression) -> None:
    with pytest.raises(UsageError, match=r"unknown series 'los'.*did you mean 'loss'"):
        parse_measure("los")(regression)
    with pytest.raises(UsageError, match="unknown dim 'head'"):
        parse_measure("weight_norms/norm[head=1]")(regression)
