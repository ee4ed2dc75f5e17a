"""Tests of the predictions of every task and flow that is part of stagelens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import stagelens as sl
from stagelens.experiments.config import make_config
from stagelens.experiments.prediction import score
from stagelens.host.host import make_host
from stagelens.timelines.reading import Reading
from stagelens.timelines.timeline import Timeline, pack

TASKS = dict(make_host().tasks)
STEPS = np.arange(200.0)


def experiment_of(task_id: str) -> Any:
    kind = TASKS[task_id].load()
    return kind(make_config(kind.Config, kind.presets, "quick", []), 0)


def timeline(name: str, values: np.ndarray) -> Timeline:
    return Timeline([pack(step, [Reading(name, value)]) for step, value in zip(STEPS, values, strict=True)])


@pytest.mark.parametrize("task_id", TASKS)
def test_one_plateau_is_the_plateau_of_one_level_and_times_say_what_they_are(task_id):
    """A run with a plateau at one level of theory, and one that falls from it to the next: each plateau counts once."""
    predictions = experiment_of(task_id).predictions()
    found = [p for p in predictions if p.kind == "level" and p.measure is None]
    for series in {p.series for p in found}:
        alike = [p for p in found if p.series == series]
        for one, two in zip(alike, [*alike[1:], alike[-1]], strict=True):
            values = np.where(STEPS < 100, one.expected, two.expected)
            scores = score(alike, timeline(series, values))
            used = Counter(s.compared_with for s in scores if s.measured is not None)
            assert sum(used.values()) == len({one.expected, two.expected}) and set(used.values()) == {1}
            assert {s.name for s in scores if s.measured is None} == {s.name for s in scores if s.note}
    for prediction in predictions:
        if prediction.kind == "time":
            assert prediction.event or prediction.compared_with, (
                f"{prediction.name!r} says not what it is compared with"
            )
        if prediction.event:
            assert prediction.event in {event.name for event in experiment_of(task_id).events()}


def test_a_short_training_has_not_reached_the_later_levels(tmp_path):
    """A single plateau must not be scored as L(M_1), L(M_2), L(M_3) and L(M_4)."""
    run = sl.run("linear-icl", settings={"steps": 400}, runs=tmp_path, report=False, probes=["principal_components"])
    levels = [p for p in run.predictions if p["kind"] == "level"]
    assert [p["note"] for p in levels] == ["", "", "not reached", "not reached", "not reached"]
    assert levels[1]["measured"] == pytest.approx(levels[1]["expected"], rel=1e-3)
    assert len({p["compared_with"] for p in levels[:2]}) == 2


def test_the_first_jump_of_the_recall_flow_is_its_event(tmp_path):
    run = sl.run("recall/flow", runs=tmp_path, report=False)
    jump = run.predictions[-1]
    assert (jump["name"], jump["compared_with"]) == ("first jump", "event 'escape'")
    assert jump["measured"] == run.manifest.events["escape"] and jump["error"] < 1e-5
    third = run.stages().transitions[2]
    assert third.at == pytest.approx(3877, abs=2)  # of 8,000 points
    losses = np.interp([third.start, third.at, third.end], *run.timeline.scalar("loss"))
    done = (third.level + third.drop - losses) / third.drop
    assert done == pytest.approx([0.1, 0.5, 0.9], abs=0.1)
