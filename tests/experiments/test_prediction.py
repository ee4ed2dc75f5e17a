"""Predictions are matched one to one with stages. Levels and times that a run did not reach are not scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import stagelens as sl
from kit.written_runs import measurements
from stagelens.experiments.prediction import NO_PLATEAU, NOT_REACHED, nearest_pairs, score, too_late
from stagelens.timelines.timeline import Timeline

STEPS = np.linspace(0, 1000, 400)


def stairs(levels: Sequence[float], drops: Sequence[float], width: float = 5.0) -> np.ndarray:
    """Returns a series that goes from each level to the next at `drops`."""
    done = 1 / (1 + np.exp(np.clip((np.array(drops)[:, None] - STEPS) / width, -700, 700)))
    return levels[0] + np.diff(levels) @ done


def timeline(**series: Any) -> Timeline:
    return Timeline(measurements(STEPS, series))


def levels(*expected: float) -> list[sl.Prediction]:
    return [sl.Prediction(f"L{i}", "level", level, "Eq. 1") for i, level in enumerate(expected)]


@pytest.mark.parametrize(
    ("expected", "measured", "pairs"),
    [
        ([1, 0.64, 0.38, 0.21, 0.14], [0.6406], [None, 0, None, None, None]),  # one plateau belongs to one level
        ([1, 0.6, 0.2], [0.98, 0.93], [0, None, None]),  # two at one level: the nearer
        ([1, 0.6, 0.2], [1.02, 0.58, 0.21], [0, 1, 2]),
        ([1, 0.6, 0.2], [1.02, 0.21], [0, None, 1]),  # one skipped
        ([0.5], [0.1, 0.48, 0.9], [1]),
        ([0.5, 0.5], [0.5], [0, None]),  # the same level twice
        ([0.5], [], [None]),
        ([], [0.5], []),
    ],
)
def test_numbers_are_paired_one_to_one(expected: list[float], measured: list[float], pairs: list[int | None]) -> None:
    assert nearest_pairs(expected, measured) == pairs


numbers = st.lists(st.integers(-640, 640).map(lambda n: n / 64), max_size=8)  # their differences are exact


@given(numbers, numbers)
def test_no_number_is_used_twice_and_monotone_ones_keep_their_order(
    expected: list[float], measured: list[float]
) -> None:
    pairs = [pair for pair in nearest_pairs(expected, measured) if pair is not None]
    assert len(pairs) == len(set(pairs))
    falling = [p for p in nearest_pairs(sorted(set(expected)), sorted(measured)) if p is not None]
    assert falling == sorted(falling)


def test_levels_that_the_run_did_not_reach_are_not_scored() -> None:
    found = score(levels(1.0, 0.64, 0.38, 0.21), timeline(loss=stairs([1.0, 0.64], [400])))
    assert [f.note for f in found] == ["", "", NOT_REACHED, NOT_REACHED]
    assert [f.measured is None for f in found] == [False, False, True, True]
    assert [f.compared_with for f in found] == ["plateau 1 of loss", "plateau 2 of loss", "", ""]
    assert found[0].error == pytest.approx(0, abs=1e-3) and found[2].error is None


def test_a_level_that_is_passed_without_a_plateau_is_reported() -> None:
    found = score(levels(1.0, 0.5, 0.0), timeline(loss=stairs([1.0, 0.0], [400])))
    assert [f.note for f in found] == ["", NO_PLATEAU, ""]


def test_times_are_compared_with_transitions_one_to_one() -> None:
    times = [sl.Prediction(f"t{i}", "time", when, "Eq. 2") for i, when in enumerate((310, 690, 900))]
    found = score(times, timeline(loss=stairs([3, 2, 1], [300, 700])))
    assert [f.measured for f in found] == [pytest.approx(300, abs=3), pytest.approx(700, abs=3), None]
    assert [f.compared_with for f in found] == ["transition 1 of loss", "transition 2 of loss", ""]
    assert found[2].note == NOT_REACHED


@pytest.mark.parametrize("late", [1001.0, 4000.0])
def test_a_time_after_the_last_step_is_not_compared_with_a_transition(late: float) -> None:
    times = [sl.Prediction(f"t{i}", "time", when, "Eq. 2") for i, when in enumerate((late, 300.0))]
    for predicted, measured in ((times[:1], [None]), (times, [None, pytest.approx(600, abs=3)])):
        found = score(predicted, timeline(loss=stairs([3, 1], [600])))
        assert [f.measured for f in found] == measured and found[0].note == NOT_REACHED


@pytest.mark.parametrize(
    ("expected", "curve", "notes"),
    [
        ([1.0, 0.5], [3.0, 2.0], [NOT_REACHED] * 2),  # all of the curve lies above
        ([4.0, 4.5], [3.0, 2.0], [NOT_REACHED] * 2),  # and below
        ([1.0, 0.5], [1.2, 0.6], ["", ""]),  # by less than half of 0.5
        ([1.2, 0.5, 0.45], [1.0, 0.7], ["", "", NOT_REACHED]),  # 0.7 is nearest to 0.5, whose neighbour inwards is 1.2
        ([1.0, 1.0], [1.1, 3.0], ["", NOT_REACHED]),  # the same level twice has no neighbour
        ([1.0], [3.0, 2.0], [""]),  # nor has a lone one
    ],
)
def test_levels_beyond_the_measured_range_are_not_reached(
    expected: list[float], curve: list[float], notes: list[str]
) -> None:
    found = score(levels(*expected), timeline(loss=stairs(curve, [400])))
    assert [f.note for f in found] == notes


def test_equal_predictions_do_not_share_a_plateau() -> None:
    twice = [sl.Prediction("same", "level", 1.0, "Eq. 1")] * 2
    found = score(twice, timeline(loss=stairs([1.0, 0.2], [400])))
    assert [f.compared_with for f in found] == ["plateau 1 of loss", ""]


def test_a_time_is_compared_with_the_event_that_it_names() -> None:
    jump = sl.Prediction("jump", "time", 504.0, "Eq. 3", event="escape")
    line = timeline(loss=stairs([3, 2], [480]))
    (found,) = score([jump], line, {"escape": 503.9})
    assert (found.measured, found.compared_with) == (503.9, "event 'escape'")
    (found,) = score([jump], line)
    assert (found.measured, found.error, found.note) == (None, None, NOT_REACHED)


def test_a_custom_measurement_is_described_and_may_find_nothing() -> None:
    def prediction(value: float | None) -> sl.Prediction:
        return sl.Prediction("t", "time", 2.0, "Eq. 4", measure=lambda _: value, compared_with="half of the drop")

    for value, measured, note in ((1.5, 1.5, ""), (None, None, NOT_REACHED), (float("nan"), None, NOT_REACHED)):
        (found,) = score([prediction(value)], timeline(loss=STEPS))
        assert (found.measured, found.note, found.compared_with) == (measured, note, "half of the drop")


def test_a_curve_reports_its_largest_deviation_and_a_missing_series_is_named() -> None:
    curve = sl.Prediction("c", "curve", lambda t: np.where(t > 500, 1.0, 0.0), "Eq. 5", series="x")
    (found,) = score([curve], timeline(x=np.where(STEPS[7] == STEPS, 0.5, np.where(STEPS > 500, 1.0, 0.0))))
    assert f"step {STEPS[7]:g}" in found.compared_with
    (found,) = score([curve], timeline(loss=STEPS))
    assert (found.measured, found.note) == (None, "x was not recorded")


def test_times_after_the_end_give_one_warning_with_what_is_needed() -> None:
    times = [sl.Prediction(name, "time", when, "Eq. 6") for name, when in (("a", 90.0), ("b", 2030.4), ("c", 150.0))]
    (warning,) = too_late(times, 100)
    assert "'b' at 2030.4" in warning and "'c' at 150" in warning and "'a'" not in warning
    assert warning.startswith("theory expects 'b'") and "after the last step (steps=100)" in warning
    assert "give steps above 2030.4" in warning
    assert too_late(times, 3000) == [] and too_late(levels(1e9), 10) == []
    assert "after the last time (time=100)" in too_late(times, 100, "time")[0]


class Late(sl.Flow):
    """Exponential growth with a prediction about its end, and a crossing before it."""

    id = "late/flow"
    presets: Mapping[str, Any] = {"quick": {"time": 2.0, "points": 30}}
    begun: list[str] = []

    def initial(self) -> Mapping[str, Any]:
        return {"x": np.array(1.0)}

    def derivative(self, time: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        self.begun.append("integrated")
        return {"x": state["x"]}

    def observables(self, time: float, state: Mapping[str, Any]) -> Any:
        yield sl.Reading("loss", float(state["x"]))

    def events(self) -> Sequence[sl.Event]:
        return [sl.Event("doubled", lambda t, state: float(state["x"]) - 2.0, terminal=False)]

    def predictions(self) -> Sequence[sl.Prediction]:
        return [
            sl.Prediction("doubling", "time", np.log(2), "Eq. 7", event="doubled"),
            sl.Prediction("the end", "time", 5.0, "Eq. 8", event="ended"),
        ]


def test_the_warning_comes_before_the_run_and_is_stored(tmp_path) -> None:
    Late.begun.clear()
    run = sl.run(Late, runs=tmp_path, report=False, notify=lambda text: Late.begun.append(text))
    assert "'the end' at 5" in Late.begun[0] and "give time above 5" in Late.begun[0]
    assert Late.begun[1] == "integrated" and Late.begun.count(Late.begun[0]) == 1
    assert run.manifest.warnings == run.summary()["warnings"] == Late.begun[:1]
    doubling, end = run.predictions
    assert doubling["compared_with"] == "event 'doubled'" and doubling["error"] < 1e-5
    assert (end["measured"], end["error"], end["note"]) == (None, None, NOT_REACHED)


class Early(Late):
    """A crossing that theory predicts after the end of the run, but that occurs before the end."""

    id = "late/early"

    def predictions(self) -> Sequence[sl.Prediction]:
        return [
            sl.Prediction("doubling", "time", 3.0, "Eq. 7", event="doubled"),
            sl.Prediction("half", "time", 4.0, "Eq. 8", measure=lambda _: 1.5),
            sl.Prediction("the end", "time", 5.0, "Eq. 9", event="ended"),
        ]


def test_what_was_reached_is_not_warned_of_in_the_end(tmp_path) -> None:
    told: list[str] = []
    run = sl.run(Early, runs=tmp_path, report=False, notify=told.append)
    assert all(name in told[0] for name in ("'doubling' at 3", "'half' at 4", "'the end' at 5"))
    (left,) = run.manifest.warnings
    assert left == "theory expects 'the end' at 5, after the last time (time=2); to see that, give time above 5"
