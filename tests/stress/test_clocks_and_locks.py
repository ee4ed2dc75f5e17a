"""Clocks that are set back, two writers of one run, and read-only disks."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from datetime import datetime

import pytest

import stagelens as sl
from kit.victims import NAMED, WORDS, KillAt, command, difference, is_one_line, mounted, remount, said
from stagelens.recording.recorder import Recorder
from stagelens.runs import catalogue, is_being_written
from stress.table import record

COMMAND = "pytest tests/stress/test_clocks_and_locks.py"
LONG = ("--set", "steps=400")


@pytest.fixture(scope="module")
def whole(victims, tmp_path_factory):
    runs = tmp_path_factory.mktemp("whole")
    assert victims.call(command, [*NAMED, runs], runs / "said") == 0, said(runs / "said")
    return sl.load(runs / "r")


class SetBack:
    """Sets the clock of this process back by `seconds` at the n-th measurement."""

    def __init__(self, n: int, seconds: int) -> None:
        self.n, self.seconds = n, seconds

    def __call__(self) -> None:
        original, calls = Recorder.measure, 0

        def measure(recorder, *arguments, **options):
            nonlocal calls
            calls += 1
            if calls == self.n:
                ctypes.CDLL(None).fault_clock(ctypes.c_long(-self.seconds))
            return original(recorder, *arguments, **options)

        Recorder.measure = measure
        if self.n == 0:
            ctypes.CDLL(None).fault_clock(ctypes.c_long(-self.seconds))


def test_a_clock_that_is_set_back(victims, whole, tmp_path):
    """By a second, a day, to before 1970, at the start and in the middle of a run; the catalogue has them all."""
    lost, wrong, cases = [], [], 0
    for seconds in (1, 3600, 86_400, 10 * 365 * 86_400, int(time.time()) - 100):
        for n in (0, 10):
            runs, out = tmp_path / f"{seconds}", tmp_path / f"{seconds}-{n}"
            words = ["run", *WORDS, "--name", f"r{n}", "--runs", runs]
            cases += 1
            if victims.call(command, words, out, None, SetBack(n, seconds)) != 0:
                wrong.append(f"{seconds} at {n}: {said(out)}")
                continue
            done = sl.load(runs / f"r{n}")
            if problem := difference(done, whole):
                wrong.append(f"{seconds} at {n}: {problem}")
            set_back = datetime.fromisoformat(done.manifest.created).timestamp() < time.time() - seconds + 600
            if not 0 < done.manifest.seconds < 600 or set_back != (n == 0 or seconds < 600):
                wrong.append(f"{seconds} at {n}: {done.manifest.seconds} s, created {done.manifest.created}")
        if {run.name for run in catalogue(runs)} != {"r0", "r10"}:
            lost.append(f"{seconds}: {catalogue(runs)}")
    record("the clock set back, up to 1970", cases, len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)


def test_two_resumes_at_once(victims, whole, tmp_path):
    """One wins; the other exits with one line that names the holder. The run equals that of a single writer."""
    alone = tmp_path / "alone"
    assert victims.call(command, [*NAMED, alone, *LONG], alone) == 0, said(alone)
    reference, lost, wrong, cases = sl.load(alone / "r"), [], [], 10
    for number in range(cases):
        runs = tmp_path / str(number)
        killed = victims.call(
            command,
            [*NAMED, runs, *LONG],
            runs,
            None,
            KillAt("stagelens.experiments.training:Training.advance", 20 + number),
        )
        assert killed == -signal.SIGKILL
        outs = [tmp_path / f"{number}-{one}" for one in "ab"]
        processes = [victims.start(command, [*NAMED, runs, *LONG], out) for out in outs]
        codes = [victims.wait(process) for process in processes]
        if sorted(codes) != [0, 2]:
            wrong.append(f"{number}: exit codes {codes}: {[said(out) for out in outs]}")
            continue
        winner, refused = processes[codes.index(0)], said(outs[codes.index(2)])
        if not is_one_line(refused) or f"is being written by process {winner} on " not in refused:
            wrong.append(f"{number}: {winner}: {refused}")
        if problem := difference(sl.load(runs / "r"), reference):
            wrong.append(f"{number}: {problem}")
    record("two --resume at once", cases, len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)


def test_a_lock_ends_with_its_process(victims, whole, tmp_path):
    """The run is locked while its holder lives, even if that is stopped; when it is dead, the lock is free."""
    lost, wrong, cases = [], [], 10
    for number in range(cases):
        runs, out = tmp_path / str(number), tmp_path / f"{number}-other"
        holder = victims.start(command, [*NAMED, runs], runs)
        while not (is_being_written(runs / "r") and (runs / "r" / "timeline.sqlite").exists()):
            time.sleep(0.002)
        os.kill(holder, signal.SIGSTOP)
        code = victims.call(command, [*NAMED, runs], out)
        if code != 2 or f"process {holder} on " not in said(out) or sl.load(runs / "r").status != "running":
            wrong.append(f"{number}: exit code {code}: {said(out)}")
        os.kill(holder, signal.SIGKILL)
        victims.wait(holder)
        if sl.load(runs / "r").status != "interrupted":
            wrong.append(f"{number}: {sl.load(runs / 'r').status}")
        if victims.call(command, [*NAMED, runs], out) != 0:
            lost.append(said(out))
        elif problem := difference(sl.load(runs / "r"), whole):
            wrong.append(f"{number}: {problem}")
    record("a run held by a stopped process, then by a dead one", cases, len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)


def test_a_folder_of_runs_that_can_only_be_read(victims, tmp_path):
    """A finished run and a killed one can be read as before, and nothing is written."""
    with mounted(tmp_path / "disk", "size=60m") as disk:
        runs, out = disk / "runs", tmp_path / "out"
        for name in ("r", "other"):
            words = ["run", *WORDS, "--name", name, "--runs", runs]
            assert victims.call(command, words, out) == 0, said(out)
        killed = KillAt("stagelens.experiments.training:Training.advance", 40)
        words = ["run", *WORDS, "--name", "killed", "--runs", runs]
        assert victims.call(command, words, out, None, killed) == -signal.SIGKILL
        reading = [
            *(["show", name, "--runs", runs, "--json"] for name in ("r", "other", "killed")),
            *(["stages", name, "--runs", runs, "--json"] for name in ("r", "killed")),
            ["runs", "--runs", runs, "--json"],
            ["compare", "r", "other", "killed", "--runs", runs, "--json"],
        ]
        writing = [
            *(["export", "r", "--format", form, "--runs", runs] for form in ("csv", "parquet", "netcdf")),
            ["report", "r", "--runs", runs],
            ["report", "r", "other", "--runs", runs],
            ["run", *WORDS, "--name", "killed", "--resume", "--runs", runs],
            ["run", *WORDS, "--runs", runs],
        ]
        elsewhere = [
            *(["export", n, "--format", "csv", "--runs", runs, "-o", tmp_path / f"{n}.csv"] for n in ("r", "killed")),
            ["report", "r", "--runs", runs, "-o", tmp_path / "r.html"],
            ["report", "killed", "--runs", runs, "-o", tmp_path / "killed.html"],
            ["report", "r", "other", "killed", "--runs", runs, "-o", tmp_path / "both.html"],
            ["compare", "r", "killed", "--runs", runs, "-o", tmp_path / "both.png"],
        ]
        lost, wrong = [], []
        before = [_answer(victims, words, out) for words in reading]
        files = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
        remount(disk, "ro")
        for words, answer in zip(reading, before, strict=True):
            if (now := _answer(victims, words, out)) != answer:
                lost.append(f"{words[:2]}: {answer} became {now}")
        for words in writing:
            code = victims.call(command, words, out)
            if code != 3 or not is_one_line(said(out)):
                wrong.append(f"{words[:2]}: exit code {code}: {said(out)}")
        for words in elsewhere:
            code = victims.call(command, words, out)
            if code != 0 or not words[-1].stat().st_size:
                wrong.append(f"{words[:2]} -o: exit code {code}: {said(out)}")
        lost += [str(path) for path, content in files.items() if path.read_bytes() != content]
    cases = len(reading) + len(writing) + len(elsewhere)
    record("a read-only runs directory", cases, len(lost), len(wrong), COMMAND, "as commands")
    assert not lost and not wrong, (lost, wrong)


def _answer(victims, words, out):
    """The JSON that a command prints; its words on stderr where it has none."""
    code = victims.call(command, words, out)
    text = out.with_suffix(".out").read_text()
    return (code, json.loads(text) if text else said(out))
