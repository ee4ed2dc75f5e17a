"""Runs of seeds that revision 1 of vectorized training got wrong: recognized, shown, and run again by a sweep."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch.optim import SGD

import stagelens as sl
from kit.swept import Here
from kit.tasks import Crash, CrashAt, Regression, host_with, run
from stagelens.api import run_ensemble
from stagelens.base.errors import UsageError
from stagelens.report.pages import report_page
from stagelens.runs import Run, catalogue
from stagelens.runs.defects import defects_in
from stagelens.runs.manifest import VECTORIZED, load_manifest

OPTIONS: dict[str, Any] = {"report": False, "device": "cpu"}


class Plain(Regression):
    """Without a fused optimizer."""

    id = "small/plain"

    def optimizer(self, model: Any) -> SGD:
        return SGD(model.parameters(), lr=0.02)


class Phased(Plain):
    """With two training phases, and a probe that depends on them."""

    id = "small/phased"
    probes: ClassVar[Any] = ("weight_norms", "gradient")

    def phases(self) -> list[sl.TrainingPhase]:
        return [sl.TrainingPhase("one", 20, ("first",)), sl.TrainingPhase("both", 20, ("*",))]


def made_by_revision_1(runs: Any) -> None:
    """Changes the manifests to those of the version that did not store how a run was trained."""
    for one in runs:
        manifest = load_manifest(one.folder)
        manifest.vectorized = None
        manifest.save(one.folder)


def old_ensemble(task: type[Any], folder: Path, **options: Any) -> list[Run]:
    made = list(run_ensemble(task, seeds=3, runs=folder, **OPTIONS | options))
    made_by_revision_1(made)
    return [Run(one.folder) for one in made]


def test_members_of_an_old_ensemble_with_a_fused_optimizer_are_recognized(tmp_path) -> None:
    old = old_ensemble(Regression, tmp_path)
    found = defects_in(tmp_path)
    assert set(found) == {one.name for one in old}
    assert all("updated the weights wrongly" in reason for reason in found.values())
    again = "repeat it: stagelens run small/regression --preset quick --seed 1"
    assert old[1].warnings[0].endswith(again)
    assert again in old[1].summary()["warnings"][0]
    assert "updated the weights wrongly" in report_page(old[1])


def test_new_ensembles_lone_runs_and_unfused_optimizers_are_not(tmp_path) -> None:
    new = run_ensemble(Regression, seeds=2, runs=tmp_path / "new", **OPTIONS)
    assert [one.manifest.vectorized for one in new] == [VECTORIZED] * 2
    made_by_revision_1([run(Regression, tmp_path / "lone", seed=seed) for seed in range(2)])
    made_by_revision_1(run_ensemble(Regression, seeds=2, runs=tmp_path / "asked", ensemble=False, **OPTIONS))
    old_ensemble(Plain, tmp_path / "plain")
    for folder in ("new", "lone", "asked", "plain"):
        assert defects_in(tmp_path / folder) == {}, folder
    assert not new[0].warnings


def test_readings_of_the_wrong_training_phase_are_those_of_all_members_but_the_first(tmp_path) -> None:
    old = old_ensemble(Phased, tmp_path)
    assert set(defects_in(tmp_path)) == {one.name for one in old[1:]}
    assert "gradient is wrong" in old[1].warnings[0]


def test_processes_that_were_killed_or_ran_at_other_times(tmp_path) -> None:
    first, second, third = old_ensemble(Regression, tmp_path)
    for one, seconds, later in ((first, 0.0, 0.0), (second, 0.0, 0.01), (third, 5.0, 90.0)):
        manifest = load_manifest(one.folder)
        created = datetime.fromisoformat(first.manifest.created) + timedelta(seconds=later)
        manifest.seconds, manifest.created = seconds, created.isoformat()
        manifest.save(one.folder)
    assert set(defects_in(tmp_path)) == {first.name, second.name}
    broken = load_manifest(first.folder)
    broken.created = "yesterday"
    broken.save(first.folder)
    assert defects_in(tmp_path) == {}


def test_a_defective_run_is_not_resumed(tmp_path) -> None:
    old_ensemble(Regression, tmp_path)
    with pytest.raises(UsageError, match="cannot be resumed: it was trained together"):
        run(Regression, tmp_path, seed=1, resume=True)
    with pytest.raises(UsageError, match="cannot be resumed: it was trained together"):
        run_ensemble(Regression, seeds=3, runs=tmp_path, resume=True, **OPTIONS)


def test_old_lone_runs_that_one_process_resumes_do_not_become_defective(tmp_path) -> None:
    """Their manifests then name the same process, and times that overlap."""
    host = host_with(CrashAt(20))
    for seed in range(2):
        with pytest.raises(Crash):
            run(Regression, tmp_path, host, seed=seed)
    made_by_revision_1(old := catalogue(tmp_path))
    for number, one in enumerate(old):
        manifest = load_manifest(one.folder)
        manifest.process = 100 + number
        manifest.save(one.folder)
    assert defects_in(tmp_path) == {}
    resumed = run_ensemble(Regression, seeds=2, runs=tmp_path, resume=True, ensemble=False, **OPTIONS)
    created = [load_manifest(one.folder) for one in resumed]
    for manifest, one in zip(created, resumed, strict=True):  # at the same time, which a slow machine would not give
        manifest.created = created[0].created
        manifest.save(one.folder)
    assert [one.manifest.vectorized for one in resumed] == [0, 0]
    assert defects_in(tmp_path) == {}


def test_the_commands_warn(tmp_path, cli) -> None:
    old = old_ensemble(Regression, tmp_path)
    listed = cli("runs", "--runs", str(tmp_path))
    assert listed.err.count("updated the weights wrongly") == 3
    shown = cli("show", old[0].name, "--runs", str(tmp_path))
    assert f"repeat it: {old[0].command}" in shown.err


def test_a_sweep_runs_defective_points_again_and_keeps_the_old_ones(tmp_path) -> None:
    grid: dict[str, Any] = {"steps": [8, 12]}
    options: dict[str, Any] = {"runs": tmp_path, "device": "cpu", "executor": Here()}
    sl.sweep(Regression, grid, 2, **options)
    points = tmp_path / "points"
    made_by_revision_1([Run(folder) for folder in points.iterdir()])
    with pytest.warns(UserWarning, match="2 of 2 points have wrong numbers; they are run again"):
        swept = sl.sweep(Regression, grid, 1, **options)
    assert [row["status"] for row in swept.rows] == ["finished"] * 2
    for row in swept.rows:
        assert load_manifest(points / row["run"]).vectorized == 0
        assert (points / f"{row['run']}.defective" / "run.json").exists()
    with pytest.warns(UserWarning, match="2 of 4 points have wrong numbers"):  # the seeds that are left
        sl.sweep(Regression, grid, 2, **options)
    sl.sweep(Regression, grid, 2, **options)  # nothing is left to warn of
