"""Runs on disk: their directory, their lock, and the model as it was at any step."""

from __future__ import annotations

import os
import re
import resource
import subprocess

import pytest
import torch

import stagelens as sl
from kit.tasks import Decay, Regression, Repeats, assert_same_weights, run, weights
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.runs import LOCK, catalogue
from stagelens.runs.lock import held
from stagelens.runs.manifest import FILE


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_run_is_a_folder_with_manifest_timeline_and_checkpoints(tmp_path):
    done = run(Regression, tmp_path, seed=3)
    assert done.folder == tmp_path / "small-regression-quick-seed3"
    names = {path.name for path in done.folder.iterdir()}
    assert (
        {"run.json", "timeline.sqlite", "checkpoints"} <= names <= {"run.json", "timeline.sqlite", "checkpoints", LOCK}
    )
    manifest = done.manifest
    assert (manifest.status, manifest.step, manifest.steps, manifest.seed) == ("finished", 40, 40, 3)
    assert (manifest.task, manifest.preset, manifest.metric, manifest.device) == (Regression.id, "quick", "loss", "cpu")
    assert manifest.versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert done.timeline.steps[0] == 0 and done.timeline.steps[-1] == 40
    assert done.checkpoints[0] == 0 and done.checkpoints[-1] == 40
    assert done.final["loss"] < 0.2 * done.timeline.scalar("loss")[1][0]


def test_seeds_decide_and_nothing_else_does(tmp_path):
    one, again, other = (run(Repeats, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert_same_weights(weights(one), weights(again))
    assert not torch.equal(weights(one)["embed.W_E"], weights(other)["embed.W_E"])


def test_a_run_leaves_the_callers_random_states_alone(tmp_path):
    torch.manual_seed(8)
    expected = torch.rand(2)
    torch.manual_seed(8)
    run(Repeats, tmp_path)
    assert torch.equal(torch.rand(2), expected)


def test_a_second_run_of_the_same_kind_gets_a_number(tmp_path):
    names = [run(Regression, tmp_path).name for _ in range(3)]
    assert names == [f"small-regression-quick-seed0{end}" for end in ("", "-2", "-3")]
    assert [found.name for found in catalogue(tmp_path)] == names


def test_a_name_that_exists_is_not_written_over(tmp_path):
    done = run(Regression, tmp_path, name="mine")
    before = (done.folder / FILE).read_bytes()
    with pytest.raises(UsageError, match=r"run 'mine' exists in .* add --resume"):
        run(Regression, tmp_path, name="mine")
    assert (done.folder / FILE).read_bytes() == before


@pytest.mark.parametrize("name", ["a/b", "..", "../out", "", ".hidden", "a\0b"])
def test_a_name_that_is_no_plain_folder_writes_nothing(tmp_path, name):
    with pytest.raises(UsageError, match="run name"):
        run(Regression, tmp_path / "runs", name=name)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [
        {"settings": {"nothing": 1}},
        {"settings": {"train_size": 2}},
        {"preset": "nothing"},
        {"probes": ["nothing"]},
        {"device": "nothing"},
        {"settings": {"steps": 0}},
    ],
    ids=str,
)
def test_a_mistake_writes_nothing(tmp_path, options):
    with pytest.raises(UsageError):
        run(Regression, tmp_path / "runs", **options)
    assert everything_in(tmp_path) == []


def test_heads_that_do_not_divide_are_a_mistake_that_writes_nothing(tmp_path):
    with pytest.raises(UsageError, match="n_heads = 3 does not divide d_model = 8"):
        run(Repeats, tmp_path / "runs", settings={"heads": 3})
    assert everything_in(tmp_path) == []


def test_a_folder_of_other_things_is_not_written_into(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    for resume in (False, True):
        with pytest.raises(UsageError, match="has other files and is not a run"):
            run(Regression, tmp_path, name="thesis", resume=resume)
    assert everything_in(tmp_path / "thesis") == ["chapter.tex"]


def test_a_run_that_lost_its_manifest_is_not_taken_for_a_new_one(tmp_path):
    done = run(Regression, tmp_path, name="mine")
    (done.folder / FILE).unlink()
    with pytest.raises(UsageError, match="is not a run"):
        run(Regression, tmp_path, name="mine", seed=7)


def test_a_file_in_place_of_the_runs_directory_is_an_environment_error(tmp_path):
    (tmp_path / "runs").write_text("")
    for resume in (False, True):
        with pytest.raises(EnvironmentFault, match=r"cannot make .*give another directory with --runs"):
            run(Regression, tmp_path / "runs", resume=resume)


def test_two_writers_on_one_run_are_refused(tmp_path):
    done = run(Regression, tmp_path, name="mine")
    with held(done.folder), pytest.raises(UsageError, match=f"being written by process {os.getpid()} on"):
        run(Regression, tmp_path, name="mine", resume=True)
    assert sl.load(done.folder).status == "finished"
    run(Regression, tmp_path, name="mine", resume=True)


def test_a_run_whose_writer_died_is_interrupted_and_one_that_lives_is_running(tmp_path):
    done = run(Regression, tmp_path)
    done.manifest.status = "running"
    done.manifest.save(done.folder)
    assert sl.load(done.folder).status == "interrupted"
    with held(done.folder):
        assert sl.load(done.folder).status == "running"


def test_what_is_no_run_is_refused(tmp_path):
    run(Regression, tmp_path / "runs", name="alpha")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"is not a run: it has no run.json"):
        sl.load(tmp_path / "folder")
    with pytest.raises(UsageError, match=r"unknown run 'alfa' \(did you mean 'alpha'\?\)"):
        sl.load("alfa", tmp_path / "runs")
    with pytest.raises(UsageError, match="unknown run"):
        sl.load("../runs/alpha2", tmp_path / "runs")
    assert sl.load("alpha", tmp_path / "runs").name == "alpha"


def test_the_catalogue_passes_over_what_it_cannot_read(tmp_path):
    run(Regression, tmp_path, name="good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / FILE).write_text("{")
    (tmp_path / "note.txt").write_text("")
    assert [found.name for found in catalogue(tmp_path)] == ["good"]
    assert catalogue(tmp_path / "nowhere") == []


def test_the_model_at_a_checkpoint_is_the_checkpoint(tmp_path):
    done = run(Repeats, tmp_path)
    for step in (0, done.checkpoints[3], 24):
        assert_same_weights(dict(done.model_at(step).state_dict()), weights(done, step))
    assert_same_weights(dict(done.model_at().state_dict()), weights(done, 24))


def test_the_model_between_checkpoints_is_that_of_a_run_trained_to_there(tmp_path):
    done = run(Regression, tmp_path, settings={"dropout": 0.3})
    between = [step for step in range(40) if step not in done.checkpoints]
    assert between
    for step in (between[0], between[-1]):
        shorter = run(Regression, tmp_path, settings={"dropout": 0.3, "steps": step})
        model = done.model_at(step)
        assert_same_weights(dict(model.state_dict()), weights(shorter, step))
        assert not model.training and all(p.grad is None for p in model.parameters())


def test_a_step_that_the_run_has_not_reached_has_no_model(tmp_path):
    done = run(Regression, tmp_path)
    for step in (-1, 41):
        with pytest.raises(UsageError, match=rf"no model at step {step}; it covers 0 to 40"):
            done.model_at(step)


@pytest.mark.parametrize("step", ["x", float("nan"), float("inf"), [3]])
def test_what_is_no_step_has_no_model(tmp_path, step):
    done = run(Regression, tmp_path)
    with pytest.raises(UsageError, match=rf"^step {re.escape(repr(step))}: expected a training step, or None"):
        done.model_at(step)


def test_a_loaded_run_knows_its_task(tmp_path):
    done = sl.run("markov", runs=tmp_path, settings=["steps=2", "d=5", "T=3", "batch_size=4"], report=False, probes=[])
    loaded = sl.load(done.folder)
    assert loaded.experiment.config == done.experiment.config and loaded.experiment.seed == 0
    assert loaded.model_at(1).cfg.n_heads == 3
    words = {"stagelens", "run", "markov/minimal", "--preset", "quick", "--seed", "0", "--set"}
    assert set(loaded.command.split()) == words | {"steps=2", "d=5", "T=3", "batch_size=4"}


def test_settings_may_be_a_mapping_or_words(tmp_path):
    one = run(Regression, tmp_path, settings={"steps": 3, "lr": 0.5})
    other = run(Regression, tmp_path, settings=["steps=3", "lr=0.5"])
    assert one.manifest.config == other.manifest.config
    assert one.manifest.settings == {"steps": 3, "lr": 0.5}


# Errors of the disk


def mounted(folder, options):
    """A small disk at `folder`, or a reason to skip."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a disk here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    mounted(folder, "size=300k")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_reported_and_the_run_continues_when_there_is_room(disk, tmp_path):
    whole = run(Regression, tmp_path / "whole", settings={"steps": 400})
    ballast = disk / "ballast"
    ballast.write_bytes(b"\0" * 200_000)
    with pytest.raises(EnvironmentFault, match=r"(No space left|disk is full).*"):
        run(Regression, disk / "runs", settings={"steps": 400})
    stopped = sl.load(next((disk / "runs").iterdir()))
    assert stopped.status == "interrupted" and len(stopped.timeline.steps) >= 1
    assert not list(disk.rglob("*.part"))
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    resumed = run(Regression, disk / "runs", settings={"steps": 400}, resume=True)
    assert resumed.folder == stopped.folder and resumed.status == "finished"
    assert_same_weights(weights(resumed), weights(whole))
    assert resumed.timeline.steps.tolist() == whole.timeline.steps.tolist()


def test_a_read_only_disk_can_be_read_but_not_written(disk):
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    done = run(Regression, disk / "runs")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    loaded = sl.load(done.folder)
    assert loaded.status == "finished" and len(loaded.timeline.steps) == len(done.timeline.steps)
    for resume in (False, True):
        with pytest.raises(EnvironmentFault, match="Read-only file system"):
            run(Regression, disk / "runs", resume=resume)


class Often(Regression):
    """Measured at every step, so that its log grows."""

    id = "small/often"

    def schedule(self):
        return sl.Schedule(log=4, even=400)


def test_a_file_that_may_not_grow_is_reported(tmp_path):
    """The same fault without a mount: for a while, files may not grow beyond 40 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(EnvironmentFault) as caught:
            run(Often, tmp_path, settings={"steps": 400})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    stopped = sl.load(next(tmp_path.iterdir()))
    assert stopped.status == "interrupted" and len(stopped.timeline.steps) >= 1
    assert run(Often, tmp_path, settings={"steps": 400}, resume=True).status == "finished"


def test_a_flow_has_a_run_folder_without_checkpoints(tmp_path):
    assert run(Decay, tmp_path).checkpoints == []
