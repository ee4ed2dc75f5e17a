"""Failing disks: the run stops with one line, keeps everything committed, and resumes when the disk works again."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from functools import cached_property

import pytest

import stagelens as sl
from kit.chance import chance
from kit.victims import WORDS, Plan, command, difference, is_one_line, leavings, mounted, remount, said, train
from stress.table import record

COMMAND = "pytest tests/stress/test_disks.py"
SHORT = ("run", *WORDS, "--set", "steps=6", "--name", "r", "--resume", "--runs")  # and a folder
FAULT = 3  # the exit code


@dataclass(frozen=True)
class Whole:
    """The run on a working disk, with and without its report, and its changes on the disk, in order."""

    run: sl.Run
    plain: sl.Run
    changes: list[str]

    @cached_property
    def trained(self) -> int:
        """The number of the last change before the report is written."""
        return next(n for n, change in enumerate(self.changes) if "/figures" in change)


@pytest.fixture(scope="module")
def whole(victims, tmp_path_factory):
    runs, plain = (tmp_path_factory.mktemp(name) / "runs" for name in ("whole", "plain"))
    plan = Plan(runs)
    assert victims.call(command, [*SHORT, runs], runs, plan) == 0, said(runs)
    assert victims.call(train, plain, None, None, 6) == 0
    return Whole(sl.load(runs / "r"), sl.load(plain / "r"), plan.changes())


def committed(changes: list[str]) -> list[int]:
    """The steps of the checkpoints that were in place after these changes."""
    found = [re.search(r"rename /r/checkpoints/(\d+)\.safetensors", change) for change in changes]
    return [int(match[1]) for match in found if match]


def what_is_lost(runs, before: list[str], whole) -> str:
    """Returns what was committed `before` the fault and is missing after it."""
    steps = committed(before)
    if not steps:
        return ""
    run = sl.load(runs / "r")
    measured = [step for step in whole.timeline.steps.tolist() if step <= steps[-1]]
    if run.checkpoints[: len(steps)] != steps or run.timeline.steps.tolist()[: len(measured)] != measured:
        return f"checkpoints {run.checkpoints} of {steps}, measured {run.timeline.steps.tolist()} of {measured}"
    return "" if run.status in ("interrupted", "finished") else run.status


def go_through(victims, whole, tmp_path, numbers, error: int, lasting: bool):
    """Runs once for each of `numbers` with the fault at that change, then resumes on a disk that works."""
    lost, wrong = [], []
    for n in numbers:
        runs = tmp_path / str(n)
        at = f"{n} {whole.changes[n - 1]}"
        code = victims.call(command, [*SHORT, runs], runs, Plan(runs, n, error, lasting))
        if code != 0 and not (code == FAULT and is_one_line(said(runs))):
            wrong.append(f"{at}: exit code {code}: {said(runs)}")
        if missing := what_is_lost(runs, Plan(runs).changes()[: n - 1], whole.run):
            lost.append(f"{at}: {missing}")
        plainly = code != 0 and n <= whole.trained  # it did not come to its report, which takes longest
        again = (train, runs, None, None, 6) if plainly else (command, [*SHORT, runs], runs)
        if victims.call(*again) != 0:
            lost.append(f"{at}: does not go on: {said(runs)}")
        elif problem := difference(sl.load(runs / "r"), whole.plain if plainly else whole.run) or leavings(runs / "r"):
            wrong.append(f"{at}: {problem}")
    return lost, wrong


FAULTS = {
    "permission denied, from the n-th change of a file on": (errno.EACCES, True, ""),
    "permission denied, at the n-th change of a file only": (errno.EACCES, False, ""),
    "disk full, from the n-th change of a file on": (errno.ENOSPC, True, ""),
    "fsync fails (EIO)": (errno.EIO, False, "fsync"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_change_of_a_file(fault, victims, whole, tmp_path):
    error, lasting, only = FAULTS[fault]
    numbers = [n for n, change in enumerate(whole.changes, start=1) if change.startswith(only)]
    if not (lasting and error == errno.EACCES):  # writing the report takes longest: of its changes every fifth
        numbers = [n for n in numbers if n <= whole.trained or not n % 5]
    lost, wrong = go_through(victims, whole, tmp_path, numbers, error, lasting)
    record(f"{fault}, then --resume", len(numbers), len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)


def test_a_disk_that_is_too_small_at_first(victims, whole, tmp_path):
    """A real disk of few kilobytes, which then grows."""
    sizes = sorted(chance("disks").sample(range(8, 300), 20))
    lost, wrong = [], []
    for size in sizes:
        with mounted(tmp_path / f"disk{size}", f"size={4 * size}k") as disk:
            runs = disk / "runs"
            code = victims.call(command, [*SHORT, runs], tmp_path / "out")
            if code != FAULT or not is_one_line(said(tmp_path / "out")):
                wrong.append(f"{4 * size} kB: exit code {code}: {said(tmp_path / 'out')}")
            remount(disk, "size=40m")
            if victims.call(command, [*SHORT, runs], tmp_path / "out") != 0:
                lost.append(f"{4 * size} kB: does not go on: {said(tmp_path / 'out')}")
            elif problem := difference(sl.load(runs / "r"), whole.run) or leavings(runs / "r"):
                wrong.append(f"{4 * size} kB: {problem}")
    record("a full disk (tmpfs), then --resume with room", len(sizes), len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)
