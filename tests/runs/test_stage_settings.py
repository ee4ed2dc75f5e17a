"""The settings of a task's stages, what it expects of them, and the names that the nearest reference gives."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from kit.tasks import Regression
from kit.written_runs import STEPS, staircase, write_run
from stagelens.base import UsageError
from stagelens.experiments import stage_settings

KL = "kl_to_references/kl"


@pytest.fixture
def loss():
    rng = np.random.default_rng(0)
    return staircase(STEPS, [300, 700], [3, 2, 1.9]) + 0.002 * rng.normal(size=len(STEPS))


def test_the_task_s_settings_are_the_defaults_of_its_stages(tmp_path, loss):
    plain = write_run(tmp_path, "plain", {"loss": loss})
    assert len(plain.stages().transitions) == 2
    strict = write_run(tmp_path, "strict", {"loss": loss}, stage_settings={"min_drop": 0.2, "axis": "linear"})
    assert len(strict.stages().transitions) == 1
    assert len(strict.stages(min_drop=0.01).transitions) == 2
    strong = write_run(tmp_path, "strong", {"loss": loss}, stage_settings={"strength": 1e6})
    assert len(strong.stages().transitions) == 0
    assert len(strong.stages("all").transitions) == 0


def test_what_differs_from_what_the_task_expects_is_reported_and_nothing_is_forced(tmp_path, loss):
    expects = {"transitions": 3, "levels": [3.0, 2.4, 1.9]}
    run = write_run(tmp_path, "expects", {"loss": loss}, stage_settings=expects)
    assert len(run.stages().transitions) == 2
    assert run.summary()["stage_differences"] == [
        "3 transitions were expected, and 2 were found",
        "no plateau was found at the expected level 2.4",
    ]
    fine = {"transitions": 2, "levels": [3.0, 2.0, 1.9]}
    assert write_run(tmp_path, "fine", {"loss": loss}, stage_settings=fine).stage_differences == []


def test_a_task_records_its_settings(tmp_path):
    class Expecting(Regression):
        id = "tests/expecting"
        stages = {"transitions": 7, "axis": "linear"}

    run = sl.run(Expecting, runs=tmp_path, report=False)
    assert run.manifest.stage_settings == {"transitions": 7, "axis": "linear"}
    assert sl.load(run.folder).stage_differences == ["7 transitions were expected, and 0 were found"]


@pytest.mark.parametrize(
    ("given", "words"), [({"min_drp": 1}, "min_drp"), ({"strength": -1}, "strength is -1"), ([1], "give a mapping")]
)
def test_a_wrong_setting_is_one_line(given, words):
    with pytest.raises(UsageError, match=words):
        stage_settings(given, "my/task.stages")


def test_stages_are_named_by_the_nearest_reference(tmp_path, loss):
    far = np.where(STEPS < 300, 0.0, np.where(STEPS < 700, 1.0, 2.0))
    kl = np.abs(far[:, None] - np.arange(3.0))
    run = write_run(tmp_path, "named", {"loss": loss, KL: (kl, ("reference",))})
    assert [stage.name for stage in run.stages().transitions] == ["predicts as 1", "predicts as 2"]
    assert [stage.name for stage in run.stages("all").transitions] == ["predicts as 1", "predicts as 2"]
    assert run.summary()["nearest"] == [
        {"reference": "0", "start": 0, "end": 300},
        {"reference": "1", "start": 300, "end": 700},
        {"reference": "2", "start": 700, "end": 1000},
    ]
    given = write_run(tmp_path, "given", {"loss": loss, KL: (kl, ("reference",))}, stage_names=["one", "two"])
    assert [stage.name for stage in given.stages().transitions] == ["one", "two"]
