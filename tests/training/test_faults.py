"""Faults of disks, clocks, processes and plugins, a few of each; `make stress` has hundreds."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

import stagelens as sl
from kit.bad_plugin import PROBES, BadTask, Changes, ChangesData, ChangesInHook, Draws, Leaks, Loops
from kit.tasks import Crash, CrashAt, Decay, Regression, host_with, run
from kit.victims import (  # noqa: F401
    NAMED,
    KillAt,
    Plan,
    command,
    difference,
    is_one_line,
    leavings,
    library,
    mounted,
    remount,
    said,
    train,
    victims,
    watch,
)
from stagelens.base.errors import UsageError
from stagelens.recording.guard import ModelChanged, resident
from stagelens.recording.limits import MEMORY_LIMIT, TIME_LIMIT, armed, contained
from stagelens.runs import is_being_written
from stagelens.runs.store import read_measurements

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(victims, tmp_path_factory):
    """The undisturbed run, and every change that it makes on the disk."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    plan = Plan(runs)
    assert victims.call(train, runs, plan) == 0
    return sl.load(runs / "r"), plan.changes()


def the(changes: list[str], part: str, which: int = -1) -> int:
    """The number of the last, or another, of the changes that have `part` in them."""
    return [n for n, change in enumerate(changes, start=1) if part in change][which]


# Killed


@pytest.mark.parametrize("part", ["write /r/checkpoints", "rename /r/run.json"])
def test_killed_at_a_change_on_the_disk_and_resumed_it_is_the_same(part, victims, whole, tmp_path):
    reference, changes = whole
    runs = tmp_path / "runs"
    assert victims.call(train, runs, Plan(runs, the(changes, part))) == -signal.SIGKILL
    assert sl.load(runs / "r").status == "interrupted"
    assert victims.call(train, runs) == 0
    assert difference(sl.load(runs / "r"), reference) == ""
    assert leavings(runs / "r") == []


@pytest.mark.parametrize(
    "at",
    [
        KillAt("stagelens.experiments.training:step_scheduler", 20),
        KillAt("stagelens.runs.store:Store._row", 7),
    ],
    ids=str,
)
def test_killed_and_resumed_it_is_the_same_and_no_reader_saw_it_broken(at, victims, whole, tmp_path):
    runs, stop, seen = (tmp_path / name for name in ("runs", "stop", "seen"))
    runs.mkdir()
    reader = victims.start(watch, runs / "r", whole[0].folder, stop, seen)
    assert victims.call(train, runs, None, at) == -signal.SIGKILL
    assert sl.load(runs / "r").status == "interrupted"
    assert victims.call(train, runs) == 0
    stop.touch()
    victims.wait(reader)
    told = json.loads(seen.read_text())
    assert told["looks"] > 0 and not told["errors"], told
    assert difference(sl.load(runs / "r"), whole[0]) == ""


def test_a_run_is_locked_while_its_writer_lives_and_no_longer(victims, whole, tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    holder = victims.start(train, runs)
    deadline = time.monotonic() + 120
    while not (is_being_written(runs / "r") and (runs / "r" / "timeline.sqlite").exists()):
        assert time.monotonic() < deadline, "it never began to write"
        time.sleep(0.002)
    os.kill(holder, signal.SIGSTOP)
    assert victims.call(command, [*NAMED, runs], out) == 2
    assert is_one_line(said(out)) and f"is being written by process {holder} on " in said(out)
    os.kill(holder, signal.SIGKILL)
    victims.wait(holder)
    assert victims.call(train, runs) == 0
    assert difference(sl.load(runs / "r"), whole[0]) == ""


SEEDS = ("run", "linear-icl", "--seeds", "2", "--set", "steps=20", "--name", "r", "--resume", "--runs")  # and a folder


def test_seeds_trained_together_killed_in_a_step_and_resumed_are_the_same(victims, tmp_path):
    whole, runs = tmp_path / "whole", tmp_path / "killed"
    assert victims.call(command, [*SEEDS, whole], whole) == 0, said(whole)
    at = KillAt("stagelens.training.stacking:Stacked.advance", 11)
    assert victims.call(command, [*SEEDS, runs], runs, None, at) == -signal.SIGKILL
    assert victims.call(command, [*SEEDS, runs], runs) == 0, said(runs)
    names = sorted(path.parent.name for path in whole.glob("*/run.json"))
    assert len(names) == 2
    for name in names:
        assert difference(sl.load(runs / name), sl.load(whole / name)) == ""
        assert leavings(runs / name) == []


def test_of_two_resumes_at_once_one_is_refused_in_one_line(victims, tmp_path):
    words, alone, runs = [*NAMED, tmp_path / "runs", "--set", "steps=200"], tmp_path / "alone", tmp_path / "runs"
    assert victims.call(command, [*NAMED, alone, "--set", "steps=200"], alone) == 0, said(alone)
    at = KillAt("stagelens.experiments.training:Training.advance", 20)
    assert victims.call(command, words, runs, None, at) == -signal.SIGKILL
    outs = [tmp_path / "a", tmp_path / "b"]
    processes = [victims.start(command, words, out) for out in outs]
    codes = [victims.wait(process) for process in processes]
    assert sorted(codes) == [0, 2], [said(out) for out in outs]
    refused = said(outs[codes.index(2)])
    assert is_one_line(refused) and f"is being written by process {processes[codes.index(0)]} on " in refused
    assert difference(sl.load(runs / "r"), sl.load(alone / "r")) == ""


# Disks and clocks


def test_a_disk_that_is_full_at_any_change_loses_nothing_that_was_measured(victims, tmp_path):
    """Every fifth change of a run of six steps, in turn; the run is resumed when there is room again."""
    whole = tmp_path / "whole"
    plan = Plan(whole)
    assert victims.call(train, whole, plan, None, 6) == 0
    reference, changes = sl.load(whole / "r"), plan.changes()
    assert len(changes) > 20
    for n in range(1, len(changes) + 1, 5):
        runs = tmp_path / str(n)
        victims.call(train, runs, Plan(runs, n, errno.ENOSPC), None, 6)
        assert victims.call(train, runs, None, None, 6) == 0, changes[n - 1]
        assert difference(sl.load(runs / "r"), reference) == "", changes[n - 1]


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("write /r/timeline.sqlite-wal", errno.ENOSPC),
        ("open /r/timeline.sqlite", errno.EACCES),
        ("fsync /r/checkpoints", errno.EIO),
        ("rename /r/run.json", errno.EACCES),
    ],
)
def test_a_disk_that_fails_is_one_line_and_the_run_continues_later(part, error, victims, whole, tmp_path):
    reference, changes = whole
    runs = tmp_path / "runs"
    plan = Plan(runs, the(changes, part, len([c for c in changes if part in c]) // 2), error, lasting=True)
    assert victims.call(command, [*NAMED, runs], runs, plan) == 3
    assert is_one_line(said(runs)) and "delete" not in said(runs), said(runs)
    kept = [m.step for m in read_measurements(runs / "r")] if (runs / "r" / "run.json").exists() else []
    assert kept == reference.timeline.steps.tolist()[: len(kept)]
    assert victims.call(train, runs) == 0
    assert difference(sl.load(runs / "r"), reference) == ""


def test_the_log_of_a_killed_run_is_read_on_a_disk_that_can_only_be_read(victims, tmp_path):
    with mounted(tmp_path / "disk", "size=8m") as disk:
        killed = KillAt("stagelens.experiments.training:Training.advance", 30)
        assert victims.call(train, disk / "runs", None, killed) == -signal.SIGKILL
        before = [(m.step, m.values.tobytes()) for m in read_measurements(disk / "runs" / "r")]
        remount(disk, "ro")
        assert [(m.step, m.values.tobytes()) for m in read_measurements(disk / "runs" / "r")] == before != []


def set_the_clock_back() -> None:
    ctypes.CDLL(None).fault_clock(ctypes.c_long(-86_400))


def test_a_clock_that_is_set_back_changes_nothing(victims, whole, tmp_path):
    assert victims.call(train, tmp_path, None, set_the_clock_back) == 0
    done = sl.load(tmp_path / "r")
    assert difference(done, whole[0]) == "" and 0 < done.manifest.seconds < 600
    assert done.manifest.created < whole[0].manifest.created


# Plugins


def recorder_of(*probes, task=Regression, settings=()):
    made = task(task.Config(**dict(settings)))
    model, batch = made.build_model(), made.sample(4, torch.Generator().manual_seed(0))
    return sl.Recorder(model, [*probes, "weight_norms"], batch, loss=made.loss, strict=True)


@pytest.mark.parametrize("probe", [one for one in PROBES if not issubclass(one, Changes | ChangesData | ChangesInHook)])
def test_a_probe_that_misbehaves_is_named_and_the_others_continue(probe, monkeypatch):
    monkeypatch.setenv(TIME_LIMIT, "0.1")
    monkeypatch.setenv(MEMORY_LIMIT, "40")
    recorder, alone = recorder_of(probe), recorder_of()
    for step in range(16):
        recorder.measure(step), alone.measure(step)
    assert list(recorder.problems) == [probe.name] and probe.name in recorder.problems[probe.name]
    assert list(recorder.probes) == ["weight_norms"]
    for name in alone.timeline:
        assert recorder.timeline.series(name).tobytes() == alone.timeline.series(name).tobytes()


@pytest.mark.parametrize("probe", [Changes, ChangesData, ChangesInHook])
def test_a_probe_that_changes_the_parameters_stops_the_run(probe):
    recorder = recorder_of(probe)
    for step in range(5):
        recorder.measure(step)
    with pytest.raises(ModelChanged, match=f"probe '{probe.name}' changed the model's parameters at step 5"):
        recorder.measure(5)
    assert recorder.timeline.steps.tolist() == [0, 1, 2, 3, 4]


def test_memory_that_others_take_is_not_blamed_on_a_probe(monkeypatch):
    monkeypatch.setenv(MEMORY_LIMIT, "40")
    recorder, kept = recorder_of(Draws, Leaks), []
    for step in range(5):
        recorder.measure(step)
        kept.append(torch.full((9 * 2**20,), float(step)))
    assert recorder.problems == {}


class Noisy(Regression):
    """Its loss draws from the global random state, in evaluation too."""

    id = "small/noisy"

    def loss(self, model, batch):
        return super().loss(model, batch) + 0 * torch.rand(())


def test_a_task_that_draws_while_it_is_evaluated_is_not_blamed_on_a_probe():
    recorder = recorder_of(task=Noisy)
    for step in range(4):
        recorder.measure(step)
    assert recorder.problems == {} and len(recorder.timeline.steps) == 4


def test_a_probe_that_draws_is_left_out_at_the_same_step_after_a_resume(tmp_path):
    class WithProbe(Regression):
        id = "small/with-draws"
        probes = ("draws", "weight_norms")

        def schedule(self):
            return sl.Schedule(even=40)

    def host(*more):
        made = host_with(*more)
        made.load("bad", "", lambda: Probes())
        return made

    class Probes:
        @sl.hookimpl
        def stagelens_register_probes(self):
            return [Draws]

    undisturbed = run(WithProbe, tmp_path / "whole", host())
    assert undisturbed.timeline.scalar("draws/value")[0].tolist() == [0, 1, 2, 3, 4, 5]
    for step in (5, 6):
        with pytest.raises(Crash):
            run(WithProbe, tmp_path / f"{step}", host(CrashAt(step)))
        assert difference(run(WithProbe, tmp_path / f"{step}", host(), resume=True), undisturbed) == ""


@pytest.mark.parametrize(("what", "step"), [("nan", 20), ("inf", 20), ("gradient", 21)])
def test_a_loss_that_does_not_stay_finite_stops_the_run(what, step, tmp_path, monkeypatch):
    monkeypatch.setattr(BadTask, "calls", 0)
    done = run(BadTask, tmp_path, settings={"what": what})
    assert done.status == "failed" and f"nan or infinite at step {step}; " in done.manifest.error
    assert done.timeline.steps[-1] == 20 and done.checkpoints[-1] <= 20


def test_an_observer_that_raises_is_named(tmp_path):
    with pytest.raises(Crash) as raised:
        run(Regression, tmp_path, host_with(CrashAt(9)))
    assert raised.value.__notes__ == ["(in stagelens_reading_recorded of plugin 'test0')"]
    assert "of plugin 'test0'" in sl.load(next(tmp_path.iterdir())).manifest.error


class Hangs:
    @sl.hookimpl
    def stagelens_run_started(self):
        time.sleep(60)


def test_an_observer_that_hangs_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(TIME_LIMIT, "0.1")
    with pytest.raises(TimeoutError, match=r"more than 0.1 s") as raised:
        run(Decay, tmp_path, host_with(Hangs()))
    assert raised.value.__notes__ == ["(in stagelens_run_started of plugin 'test0')"]


def test_a_limit_that_is_no_number_is_a_mistake(monkeypatch):
    monkeypatch.setenv(TIME_LIMIT, "soon")
    with pytest.raises(UsageError, match=r"\$STAGELENS_TIME_LIMIT is 'soon': expected a number, 0 for no limit"):
        recorder_of(Loops)


def test_an_existing_alarm_is_left_as_found():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with armed(), contained():
            time.sleep(0.1)
        assert not rung
        time.sleep(0.1)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_many_runs_leave_no_file_open_and_no_memory_behind(tmp_path):
    opened, memory = [], []
    for seed in range(16):
        run((Regression, Decay)[seed % 2], tmp_path, seed=seed)
        opened.append(len(list(Path("/proc/self/fd").iterdir())))
        memory.append(resident())
    assert opened[-1] == opened[4] and memory[-1] - memory[8] < 4
