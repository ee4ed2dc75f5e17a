"""Sweeps whose workers are killed, and sweeps that are killed themselves: the next call resumes to the same runs."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

import kit.chance
import stagelens as sl
from kit.tasks import Repeats
from kit.victims import difference, leavings
from stagelens.base.errors import StagelensError
from stagelens.runs import is_being_written
from stagelens.runs.manifest import load_manifest
from stress.table import record

COMMAND = "pytest tests/stress/test_sweeps.py"
GRID = {"heads": [1, 2, 4]}
TESTS = Path(__file__).parents[1]


def sweep(runs: Path, executor: str = "local") -> sl.Sweep:
    """Three configs with two seeds each, which are trained together: seconds for each config."""
    return sl.sweep(Repeats, GRID, seeds=2, settings={"steps": 1500}, runs=runs, executor=executor, workers=2)


def at_work(points: Path) -> list[int]:
    """The processes that are writing a run just now."""
    found = []
    for folder in points.glob("*"):
        try:
            if is_being_written(folder):
                found.append(load_manifest(folder).process)
        except StagelensError:
            continue
    return sorted(set(found))


class Killer(threading.Thread):
    """Kills a process that writes a run, again and again at chance moments, `most` times."""

    def __init__(self, points: Path, most: int) -> None:
        super().__init__(daemon=True)
        self.points, self.most = points, most
        self.killed: list[int] = []
        self.done = threading.Event()

    def run(self) -> None:
        chance = kit.chance.chance("killer", self.most)
        while not self.done.is_set() and len(self.killed) < self.most:
            time.sleep(chance.uniform(0.0, 1.5))
            living = [process for process in at_work(self.points) if process not in (0, os.getpid(), *self.killed)]
            if living:
                self.killed.append(chance.choice(living))
                os.kill(self.killed[-1], signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    swept = sweep(tmp_path_factory.mktemp("whole"))
    assert len(swept.done) == 6, swept.failed
    return {run.name: run for run in swept}


def compared(points: Path, whole: dict[str, sl.Run], stopped: bool = False) -> tuple[list[str], list[str]]:
    """Returns what is lost and what is wrong of the sweep's runs, whose workers were killed or `stopped`."""
    lost = [name for name in whole if not (points / name / "run.json").exists()]
    there = {name: sl.load(points / name) for name in whole if name not in lost}
    found = {name: difference(run, whole[name], stopped) or leavings(run.folder) for name, run in there.items()}
    return lost, [f"{name}: {problem}" for name, problem in found.items() if problem]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("executor", "kills"), [("local", 20), ("ray", 8)])
def test_workers_killed(executor, kills, whole, tmp_path, monkeypatch):
    if executor == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install ray")
        monkeypatch.setenv("PYTHONPATH", str(TESTS))
    killer = Killer(tmp_path / "points", kills)
    killer.start()
    calls = 0
    while calls < kills + 2:
        calls += 1
        swept = sweep(tmp_path, executor)
        if len(swept.done) == len(whole) and len(killer.killed) >= kills:
            break
        if len(swept.done) == len(whole):  # it was quicker than the killer: once more, from the start
            shutil.rmtree(tmp_path / "points")
    killer.done.set()
    killer.join()
    lost, wrong = compared(tmp_path / "points", whole)
    note = f"{calls} calls of the sweep"
    record(f"kill -9 of sweep workers ({executor})", len(killer.killed), len(lost), len(wrong), COMMAND, note)
    assert not lost and not wrong, (lost, wrong)
    assert len(killer.killed) == kills


def test_a_sweep_killed(victims, whole, tmp_path):
    """Its workers stop by themselves, in time for the next call."""
    chance, cases, lost, wrong = kit.chance.chance("sweeps"), 5, [], []
    for number in range(cases):
        runs = tmp_path / str(number)
        process = victims.start(sweep, runs)
        while not (workers := at_work(runs / "points")):
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 4))
        os.kill(process, signal.SIGKILL)
        victims.wait(process)
        deadline = time.monotonic() + 60
        while (alive := at_work(runs / "points")) and time.monotonic() < deadline:
            time.sleep(0.05)
        if alive:
            wrong.append(f"workers {workers} live on: {alive}")
        swept = sweep(runs)
        if swept.failed:
            lost.append(str(swept.failed))
            continue
        more = compared(runs / "points", whole, stopped=True)
        lost, wrong = lost + more[0], wrong + more[1]
    record("kill -9 of a sweep itself, then again", cases, len(lost), len(wrong), COMMAND)
    assert not lost and not wrong, (lost, wrong)
