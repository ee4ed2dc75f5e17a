"""kill -9 at any moment, then `--resume`: the run equals an uninterrupted one, and no reader ever fails."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

import kit.chance
import stagelens as sl
from kit.victims import NAMED, KillAt, Plan, command, difference, leavings, said, watch
from stress.table import record

COMMAND = "pytest tests/stress/test_kills.py"
chance = kit.chance.chance("kills")


@pytest.fixture(scope="module")
def whole(victims, tmp_path_factory):
    """The undisturbed run, and every change that it makes on the disk, in order."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    plan = Plan(runs)
    assert victims.call(command, [*NAMED, runs], runs, plan) == 0, said(runs)
    return sl.load(runs / "r"), plan.changes()


def moments(changes: list[str], *parts: str) -> list[int]:
    """The numbers of the changes that touch a file whose name has one of `parts` in it."""
    return [n for n, change in enumerate(changes, start=1) if any(part in change for part in parts)]


AIMED = {  # kind: (function to die in, most calls), and what the files are called that are written at such a moment
    "a step": (
        [
            "stagelens.experiments.training:step_scheduler",
            "stagelens.experiments.training:Training._loss_function",
        ],
        (),
    ),
    "a measurement": (
        ["stagelens.recording.recorder:Recorder._observe", "stagelens.runs.store:Store._row"],
        ("timeline.sqlite",),
    ),
    "a checkpoint": (["stagelens.runs.checkpoint:_strip"], ("/checkpoints",)),
    "the manifest's replacement": ([], ("run.json",)),
    "the report": (["stagelens.figures.writing:save", "stagelens.report.pages:_render"], ("/figures", "report.html")),
}
EACH = 10


def plans(kind: str, changes: list[str]) -> list[tuple[KillAt | None, int]]:
    """Returns `EACH` kills during `kind`: at a call of a function, or at the n-th change on the disk."""
    functions, parts = AIMED[kind]
    written = moments(changes, *parts)
    chosen: list[tuple[KillAt | None, int]] = []
    for number in range(EACH):
        if functions and (number % 2 or not written):
            most = 4 if "figures" in functions[0] else 55
            target = chance.choice(functions)
            n = 1 if target.endswith("_render") else chance.randint(1, most)
            chosen.append((KillAt(target, n, after=chance.random() < 0.5), 0))
        else:
            chosen.append((None, chance.choice(written)))
    return chosen


def verdict(folder, whole) -> str:
    """Returns what is wrong with the resumed run; empty if it equals `whole` and left no temporary files."""
    done = sl.load(folder)
    if left := leavings(folder):
        return f"left {left}"
    return difference(done, whole) or ("" if (folder / "report.html").exists() else "no report")


@pytest.mark.parametrize("kind", AIMED)
def test_killed_in(kind, victims, whole, tmp_path):
    reference, changes = whole
    lost, wrong = [], []
    for number, (at, n) in enumerate(plans(kind, changes)):
        runs = tmp_path / str(number)
        died = victims.call(command, [*NAMED, runs], runs, Plan(runs, n), at)
        if died != -signal.SIGKILL:
            wrong.append(f"{at or changes[n - 1]}: not killed ({died}) {said(runs)}")
            continue
        resumed = victims.call(command, [*NAMED, runs], runs)
        if resumed != 0:
            lost.append(f"{at or changes[n - 1]}: {said(runs)}")
        elif problem := verdict(runs / "r", reference):
            wrong.append(f"{at or changes[n - 1]}: {problem}")
    record(f"kill -9 in {kind}, then --resume", EACH, len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)


def test_killed_at_random_moments_while_a_reader_reads(victims, whole, tmp_path):
    """Kills from outside, at any time from the first file to the last, while a reader reads."""
    reference, _ = whole
    lost, wrong, looks, cases = [], [], 0, 50
    for number in range(cases):
        runs, stop, seen = (tmp_path / f"{number}{end}" for end in ("", ".stop", ".seen"))
        runs.mkdir()
        reader = victims.start(watch, runs / "r", reference.folder, stop, seen)
        process = victims.start(command, [*NAMED, runs], runs)
        while not (runs / "r" / "run.json").exists():
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 1.0) * reference.manifest.seconds * 2)
        os.kill(process, signal.SIGKILL)
        victims.wait(process)
        if victims.call(command, [*NAMED, runs], runs) != 0:
            lost.append(said(runs))
        elif problem := verdict(runs / "r", reference):
            wrong.append(problem)
        stop.touch()
        victims.wait(reader)
        counted = json.loads(seen.read_text())
        looks += counted["looks"]
        wrong += counted["errors"]
    note = f"{looks:,} reads meanwhile"
    record("kill -9 at any time, then --resume", cases, len(lost), len(wrong), COMMAND, note)
    assert not lost and not wrong, (lost, wrong)
    assert looks > cases


SEEDS = ("run", "linear-icl", "--seeds", "3", "--set", "steps=40", "--name", "r", "--resume", "--runs")  # and a folder


def test_an_ensemble_killed(victims, tmp_path):
    """Three vectorized seeds, killed at random changes on the disk and in random steps."""
    runs = tmp_path / "whole"
    plan = Plan(runs)
    assert victims.call(command, [*SEEDS, runs], runs, plan) == 0, said(runs)
    names = sorted(path.parent.name for path in runs.glob("*/run.json"))
    assert len(names) == 3
    whole, changes, cases = {name: sl.load(runs / name) for name in names}, plan.changes(), 20
    lost, wrong = [], []
    for number in range(cases):
        runs, n = tmp_path / str(number), 0
        at = KillAt("stagelens.training.stacking:Stacked.advance", chance.randint(1, 40), after=number % 4 == 1)
        if number % 2:
            at, n = None, chance.randint(1, len(changes))
        died = victims.call(command, [*SEEDS, runs], runs, Plan(runs, n), at)
        if died != -signal.SIGKILL:
            wrong.append(f"{at or changes[n - 1]}: not killed ({died}) {said(runs)}")
        elif victims.call(command, [*SEEDS, runs], runs) != 0:
            lost.append(f"{at or changes[n - 1]}: {said(runs)}")
        else:
            for name in names:
                if problem := difference(sl.load(runs / name), whole[name]) or leavings(runs / name):
                    wrong.append(f"{at or changes[n - 1]}: {name}: {problem}")
    record("kill -9 in an ensemble (--seeds 3), then --resume", cases, len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)
