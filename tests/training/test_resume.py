"""A stopped run resumes to the same numbers as an uninterrupted one, however it was stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import stagelens as sl
from conftest import STAGELENS
from kit.chance import chance
from kit.tasks import (
    Crash,
    CrashAt,
    Regression,
    Repeats,
    assert_same_run,
    assert_same_weights,
    host_with,
    run,
    weights,
)
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.cli import main
from stagelens.recording.probes import Probe
from stagelens.runs import checkpoint, is_being_written
from stagelens.runs.store import FILE, Store
from stagelens.timelines import pack


class Plateau(Repeats):
    """Dropout, Adam, clipping, a fixed training set, and a rate that is reduced on plateaus of the loss."""

    id = "small/plateau"

    def optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)


@pytest.mark.parametrize("crash", [0, 7, 13, 23, 24])
@pytest.mark.parametrize(("kind", "settings"), [(Repeats, {}), (Plateau, {"clip": 0.5, "train_size": 12})])
def test_a_run_that_crashed_and_was_resumed_equals_an_uninterrupted_one(tmp_path, kind, settings, crash):
    whole = run(kind, tmp_path / "whole", settings=settings)
    with pytest.raises(Crash):
        run(kind, tmp_path / "broken", host_with(CrashAt(crash)), settings=settings)
    broken = sl.load(next((tmp_path / "broken").iterdir()))
    assert broken.status == "failed" and "Crash: at step" in broken.manifest.error
    resumed = run(kind, tmp_path / "broken", settings=settings, resume=True)
    assert resumed.folder == broken.folder and resumed.status == "finished" and resumed.manifest.error == ""
    assert_same_run(resumed, whole)


def test_crashing_again_and_again_changes_nothing(tmp_path):
    whole = run(Repeats, tmp_path / "whole")
    for crash in (1, 4, 9, 12, 17, 22):
        with pytest.raises(Crash):
            run(Repeats, tmp_path / "broken", host_with(CrashAt(crash)), resume=True)
    assert_same_run(run(Repeats, tmp_path / "broken", resume=True), whole)


def test_a_damaged_last_checkpoint_costs_time_but_nothing_else(tmp_path):
    whole = run(Repeats, tmp_path / "whole")
    done = run(Repeats, tmp_path / "damaged")
    for step in done.checkpoints[-2:]:
        path = checkpoint.path_of(done.folder, step)
        path.write_bytes(path.read_bytes()[:100])
    assert_same_run(run(Repeats, tmp_path / "damaged", resume=True), whole)


def test_measurements_of_another_course_do_not_survive_a_resume(tmp_path):
    """Steps after the checkpoint are measured again; none of the old measurements remains."""
    whole = run(Repeats, tmp_path / "whole")
    done = run(Repeats, tmp_path / "other")
    for step in done.checkpoints:
        if step > 10:
            checkpoint.path_of(done.folder, step).unlink()
    store = Store(done.folder)
    store.add(pack(15, [sl.Reading("loss", 5.0), sl.Reading("strange", 1.0)]))
    store.close()
    done.manifest.status, done.manifest.timeline = "running", ""  # as a writer leaves it that was killed
    done.manifest.save(done.folder)
    assert_same_run(run(Repeats, tmp_path / "other", resume=True), whole)


class Fails(Probe):
    """A probe that stops working at step 14, and carries a count."""

    name, gives = "fails", ("count",)

    def readings(self, reduced, context):
        if context.step >= 14:
            raise RuntimeError("worn out")
        self.state["count"] = self.state.get("count", torch.zeros(())) + 1
        yield sl.Reading("count", self.state["count"])


class FailsPlugin:
    @sl.hookimpl
    def stagelens_register_probes(self):
        return [Fails]


def test_a_probe_that_fails_late_is_dropped_at_the_same_step_after_a_resume(tmp_path):
    class WithProbe(Repeats):
        id = "small/with-probe"
        probes = ("fails", "weight_norms")

        def schedule(self):
            return sl.Schedule(even=24)

    def host(*more):
        made = host_with(*more)
        made.load("failing", "", FailsPlugin)
        return made

    whole = run(WithProbe, tmp_path / "whole", host())
    assert "worn out" in whole.manifest.problems["fails"]
    steps, counts = whole.timeline.scalar("fails/count")
    assert steps.tolist() == list(range(14)) and counts.tolist() == list(range(1, 15))
    assert 13 not in whole.checkpoints  # so step 13 is measured again, before the failure that the manifest knows of
    with pytest.raises(Crash):
        run(WithProbe, tmp_path / "broken", host(CrashAt(14)))
    assert_same_run(run(WithProbe, tmp_path / "broken", host(), resume=True), whole)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    done = run(Regression, tmp_path)
    before = {name: done.timeline.series(name).tobytes() for name in done.timeline}
    again = run(Regression, tmp_path, resume=True)
    assert again.folder == done.folder and again.status == "finished"
    assert {name: again.timeline.series(name).tobytes() for name in again.timeline} == before


def test_resuming_without_a_name_finds_the_run_of_the_same_task_config_and_seed(tmp_path):
    named = run(Regression, tmp_path, name="mine", seed=4)
    assert run(Regression, tmp_path, seed=4, resume=True).folder == named.folder
    assert run(Regression, tmp_path, seed=5, resume=True).folder != named.folder
    assert run(Regression, tmp_path, seed=4, settings={"steps": 41}, resume=True).folder != named.folder


def test_a_run_is_resumed_only_as_what_it_is(tmp_path):
    run(Regression, tmp_path, name="mine", seed=4)
    with pytest.raises(UsageError, match=r"steps=40 \(given 41\)"):
        run(Regression, tmp_path, name="mine", seed=4, settings={"steps": 41}, resume=True)
    with pytest.raises(UsageError, match="with seed 4"):
        run(Regression, tmp_path, name="mine", seed=5, resume=True)
    with pytest.raises(UsageError, match="small/regression"):
        run(Repeats, tmp_path, name="mine", resume=True)
    with pytest.raises(
        UsageError, match=r"has the probes attention_sparsity,.*,weight_norms,conserved; resume it without --probes"
    ):
        run(Regression, tmp_path, name="mine", seed=4, probes=["attention_sparsity"], resume=True)


def test_a_run_keeps_the_probes_it_was_started_with(tmp_path):
    with pytest.raises(Crash):
        run(Repeats, tmp_path, host_with(CrashAt(10)), probes=["loss_by_position"])
    resumed = run(Repeats, tmp_path, resume=True)
    assert {name.partition("/")[0] for name in resumed.timeline if "/" in name} == {"loss_by_position"}
    assert not any(torch.isnan(torch.tensor(resumed.timeline.series("loss_by_position/loss"))).flatten())


def test_a_checkpoint_of_another_task_in_the_folder_is_refused(tmp_path):
    theirs, mine = run(Repeats, tmp_path, name="theirs"), run(Regression, tmp_path, name="mine")
    checkpoint.path_of(mine.folder, 40).write_bytes(checkpoint.path_of(theirs.folder, 24).read_bytes())
    with pytest.raises(UsageError, match="is of task 'small/repeats', expected 'small/regression'"):
        run(Regression, tmp_path, name="mine", resume=True)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "gone"])
def test_a_damaged_timeline_stops_the_resume_and_leaves_the_rest_alone(tmp_path, damage):
    done = run(Regression, tmp_path)
    path = done.folder / FILE
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:5000] if damage == "truncated" else b"step,loss\n" * 999)
    before = weights(done)
    with pytest.raises(EnvironmentFault):
        run(Regression, tmp_path, resume=True)
    assert_same_weights(weights(done), before)
    assert sl.load(done.folder).manifest.seed == 0


# Real processes, really killed

SETTINGS = ["d=6", "T=6", "batch_size=16", "eval_size=16", "steps=60"]
WORDS = ["run", "markov", "--name", "r", "--probes", "attention_sparsity", *(w for s in SETTINGS for w in ("--set", s))]


@pytest.fixture(scope="module")
def processes():
    """Makes processes that have imported everything before they start."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stagelens.training.running", "stagelens.report", "stagelens_markov.tasks"])
    return context.Process


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The undisturbed run, made by the command line."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = subprocess.run([*STAGELENS, *WORDS, "--runs", folder, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return sl.load(folder / "r")


def in_process(folder):
    """Runs in the process that will be killed."""
    options = {"settings": SETTINGS, "name": "r", "resume": True, "probes": ["attention_sparsity"]}
    run("markov", folder, **options)


def on_command_line(folder):
    """The command line with its stderr in a file."""
    with (folder / "err").open("w") as err, (folder / "out").open("w") as out:
        os.dup2(err.fileno(), 2), os.dup2(out.fileno(), 1)
    sys.argv = ["stagelens", *WORDS, "--runs", str(folder), "--json"]
    main()


def wait_until(condition, process):
    """Waits at most two minutes, and not for a process that has ended."""
    deadline = time.monotonic() + 120
    while not condition():
        assert process.is_alive(), process.exitcode
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_and_resumed_equals_an_uninterrupted_one(tmp_path, processes, uninterrupted):
    """kill -9 as soon as there is a manifest, then at chance moments of the training."""
    moments = chance("resume")
    folder = tmp_path / "r"
    for kill in range(8):
        process = processes(target=in_process, args=(tmp_path,))
        process.start()
        wait_until((folder / "run.json").exists if kill == 0 else lambda: is_being_written(folder), process)
        time.sleep(moments.uniform(0, 0.02) if kill == 0 else moments.uniform(0.01, 0.5))
        process.kill()
        process.join()
        assert sl.load(folder).status in ("interrupted", "finished")
        assert set(sl.load(folder).timeline.steps) <= set(uninterrupted.timeline.steps)
    in_process(tmp_path)
    assert_same_run(sl.load(folder), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_the_interrupted_run_resumes(tmp_path, processes, uninterrupted, number):
    folder = tmp_path / "r"
    process = processes(target=on_command_line, args=(tmp_path,))
    process.start()
    wait_until(lambda: len(list(folder.glob("checkpoints/*.safetensors"))) > 3, process)
    os.kill(process.pid, number)
    process.join(timeout=60)
    err = (tmp_path / "err").read_text()
    assert process.exitcode == 130, err
    assert err.startswith("warning: interrupted at step") and "--resume" in err and "Traceback" not in err
    stopped = sl.load(folder)
    assert json.loads((tmp_path / "out").read_text())["status"] == stopped.manifest.status == "interrupted"
    assert 0 < stopped.checkpoints[-1] < 60
    in_process(tmp_path)
    resumed = sl.load(folder)
    assert resumed.manifest.status == "finished"
    assert_same_run(resumed, uninterrupted)
