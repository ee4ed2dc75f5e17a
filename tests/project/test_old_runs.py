"""Runs of older versions: this version opens, shows, compares, exports, reports and resumes them."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.tiny import tiny_settings
from project.write_runs import FOLDER, KEPT, TASK
from stagelens.runs import catalogue, points_of

TRAININGS = ("training", "phases", "ensemble-seed0", "ensemble-seed1")
RUNS = (*TRAININGS, "flow", "killed")
LAST = KEPT[-1]


@pytest.fixture(params=sorted(path.name for path in FOLDER.iterdir()))
def old(request, tmp_path):
    """A copy of the runs of one version, in the folder that commands look in."""
    shutil.copytree(FOLDER / request.param, tmp_path / "runs")
    return tmp_path / "runs"


def test_they_are_all_there_and_say_nothing_of_the_machine_that_wrote_them(old):
    assert {run.name for run in catalogue(old)} == {*RUNS}
    for path in (path for path in old.rglob("*") if path.is_file()):
        assert not re.search(rb"/(home|root|Users|tmp|work)/", path.read_bytes()), path
    for path in old.rglob("run.json"):
        manifest = json.loads(path.read_text())
        assert (manifest["host"], manifest["process"]) == ("machine", 1)


@pytest.mark.parametrize("name", RUNS)
def test_one_opens_and_is_shown_with_its_stages(old, cli, name):
    run = sl.load(name, old)
    assert run.status == ("interrupted" if name == "killed" else "finished")
    assert np.isfinite(run.timeline.scalar("loss")[1]).all()
    shown = cli("show", name, "--json").json
    assert shown["task"] == run.manifest.task and shown["final"]["loss"] == run.final["loss"]
    assert shown["step"] == (4 if name == "killed" else run.manifest.steps)
    assert cli("show", name).code == 0
    stages = cli("stages", name, "--json").json
    assert stages["metric"] == run.manifest.metric and stages["stages"] == run.stages().to_dicts()


def test_the_measurements_of_a_killed_run_are_read_from_its_log(old):
    run = sl.load("killed", old)
    assert (old / "killed" / "timeline.sqlite-wal").stat().st_size > 0
    steps, loss = run.timeline.scalar("loss")
    assert steps.tolist() == [0, 1, 2, 3, 4]
    assert loss.tolist() == sl.load("training", old).timeline.scalar("loss")[1][:5].tolist()


def test_they_are_compared_by_name_and_a_sweep_by_its_own(old, cli):
    for align in ("step", "fraction"):
        compared = cli("compare", "training", "flow", "ensemble-seed0", "ensemble-seed1", "--align", align, "--json")
        assert [run["name"] for run in compared.json["runs"]] == [
            "training",
            "flow",
            "ensemble-seed0",
            "ensemble-seed1",
        ]
    assert len(points_of("law", old)) == 3
    assert len(cli("compare", "law", "--json").json["runs"]) == 3


@pytest.mark.parametrize("name", TRAININGS)
def test_the_model_is_the_one_of_the_checkpoint_and_between_two_it_is_replayed(old, name):
    from stagelens.runs import checkpoint

    run = sl.load(name, old)
    assert tuple(run.checkpoints) == KEPT
    saved = checkpoint.load(checkpoint.path_of(run.folder, LAST))["model"]
    for key, values in run.model_at(LAST).state_dict().items():
        assert torch.equal(values, saved[key]), key
    between = dict(run.model_at(LAST - 1).named_parameters())
    assert all(values.isfinite().all() for values in between.values())
    assert any(not torch.equal(values, saved[key]) for key, values in between.items())


@pytest.mark.parametrize("ending", ["csv", "parquet", "netcdf"])
def test_they_are_exported(old, cli, ending):
    for name in ("training", "flow"):
        exported = cli("export", name, "--format", ending, "--json").json
        assert (old.parent / exported["file"]).stat().st_size > 100


def test_they_are_reported(old, cli):
    assert cli("report", "training").code == 0
    assert "<img" in (old / "training" / "report.html").read_text(encoding="utf-8")
    assert cli("report", "flow", "ensemble-seed0", "-o", "page.html").code == 0
    assert "ensemble-seed0" in (old.parent / "page.html").read_text(encoding="utf-8")


def test_the_killed_run_resumes_and_ends_as_its_uninterrupted_twin(old, cli):
    """Both continue from the same checkpoint: the twin's last model is replayed, the killed run is resumed."""
    twin = sl.load("training", old)
    (twin.folder / "checkpoints" / f"{LAST:09d}.safetensors").unlink()
    expected = twin.model_at(LAST).state_dict()
    settings = [word for key, value in tiny_settings(TASK).items() for word in ("--set", f"{key}={value}")]
    answer = cli("run", TASK, *settings, "--name", "killed", "--device", "cpu", "--resume", "--json").json
    assert answer["status"] == "finished" and answer["step"] == LAST and not answer["problems"]
    resumed = sl.load("killed", old)
    for key, values in resumed.model_at(LAST).state_dict().items():
        assert torch.equal(values, expected[key]), key
    assert resumed.timeline.steps.tolist() == list(range(LAST + 1))
    assert resumed.timeline.scalar("loss")[1][: KEPT[0]].tolist() == twin.timeline.scalar("loss")[1][: KEPT[0]].tolist()


def test_a_sweep_continues(old, cli):
    settings = [
        word
        for key, value in tiny_settings("emergence/flow").items()
        if key != "T"
        for word in ("--set", f"{key}={value}")
    ]
    swept = cli(
        "sweep", "emergence/flow", "--grid", "T=16,32,64", *settings, "--workers", "1", "--name", "law", "--json"
    )
    assert (swept.json["points"], swept.json["done"], swept.json["failed"]) == (3, 3, 0)
