"""Events of series with known changes."""

from __future__ import annotations

import numpy as np
import pytest

from kit.written_runs import timeline
from stagelens.timelines.events import half_rise, probe_events
from stagelens.timelines.labels import changes

STEPS = np.arange(0, 101)


def test_a_head_that_changes_its_leading_group_is_an_event():
    codes = np.zeros((101, 1, 2))
    codes[40:, 0, 1] = 2
    events = probe_events(timeline(STEPS, {"s/leader": (codes, ("layer", "head"), ("I(1)", "I(2)", "rest"))}))
    assert events == [{"step": 40, "what": "head 1: I(1) → rest", "series": "s/leader", "curve": "s/leader[head=1]"}]


def test_events_of_a_single_layer_name_no_layer():
    codes = np.zeros((101, 1))
    codes[10:] = 1
    codes[60:] = 2
    events = probe_events(timeline(STEPS, {"s/phase": (codes, ("layer",), ("diffuse", "competitive", "cooperative"))}))
    assert [(e["step"], e["what"]) for e in events] == [
        (10, "diffuse → competitive"),
        (60, "competitive → cooperative"),
    ]


def test_a_short_change_of_a_label_is_no_event():
    assert changes(np.array([0, 0, 0, 1, 0, 0, 1, 1, 1.0])) == [(6, 0, 1)]


def test_a_change_just_before_the_end_counts():
    assert changes(np.array([0, 0, 0, 0, 1.0])) == [(4, 0, 1)]


def test_values_that_were_not_measured_are_skipped():
    assert changes(np.array([0, 0, np.nan, 0, 1, np.nan, 1, 1])) == [(4, 0, 1)]
    assert changes(np.array([np.nan, np.nan])) == []


def test_the_half_rise_of_a_logistic_curve_is_its_middle():
    values = 1 / (1 + np.exp(-(STEPS - 37.3) / 4))
    assert half_rise(STEPS, values) == pytest.approx(37.3, abs=0.05)
    assert half_rise(np.append(STEPS, [101, 102]), np.append(values, [np.inf, np.nan])) == half_rise(STEPS, values)


@pytest.mark.parametrize(
    "values",
    [
        np.exp(-STEPS / 10.0),  # falls
        np.ones(101),  # stays constant
        100 + STEPS / 100,  # rises by a hundredth
        np.sin(STEPS / 3.0),  # goes up and down
        np.full(101, np.nan),
        np.arange(3.0),
    ],
)
def test_what_does_not_clearly_rise_has_no_half_rise(values):
    assert half_rise(STEPS[: len(values)], values) is None


def test_many_elements_give_one_event_of_their_mean():
    values = np.repeat(STEPS[:, None] / 100.0, 20, axis=1)
    (event,) = probe_events(timeline(STEPS, {"norm": (values, ("position",))}))
    assert event == {
        "step": pytest.approx(50),
        "what": "mean over position: half of its rise",
        "series": "norm",
        "curve": "norm",
    }


def test_the_curve_of_an_event_is_a_name_that_the_timeline_takes():
    values = np.stack([STEPS / 100.0, 1 - STEPS / 100.0], axis=1).reshape(-1, 1, 2)
    one = timeline(STEPS, {"s/score": (values, ("layer", "head"))})
    (event,) = probe_events(one)
    assert event["curve"] == "s/score[head=0]"
    assert one.scalar(event["curve"])[1].tolist() == values[:, 0, 0].tolist()


def test_events_come_in_the_order_of_time():
    late = 1 / (1 + np.exp(-(STEPS - 80) / 2))
    early = 1 / (1 + np.exp(-(STEPS - 20) / 2))
    events = probe_events(timeline(STEPS, {"late": late, "early": early}))
    assert [event["series"] for event in events] == ["early", "late"]
