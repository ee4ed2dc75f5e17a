"""Measures sweeps with local workers: 200 points of a flow, the overhead of a point, the speed-up by a second worker.

The speed-up by a second process that only counts is measured too: a second worker cannot exceed it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from benchmarks.measure import Row, report

import stagelens as sl
from stagelens.experiments.flow import integrate
from stagelens.sweeps import plan_sweep
from stagelens.sweeps.executors.local import Local
from stagelens.sweeps.executors.work import perform


def two_hundred_points(folder: Path) -> float:
    """Returns the seconds from the call to the table, the power-law fit and the figures."""
    grid = ["T=log:64:4096:20", "d=log:16:512:10"]
    started = time.perf_counter()
    swept = sl.sweep("emergence/flow", grid, workers=2, measures="plateau_length", fit="T,d", runs=folder)
    assert len(swept.done) == 200, swept.failed
    return time.perf_counter() - started


def overhead(folder: Path) -> float:
    """Returns the overhead of a point in milliseconds of processor time: the mean of 19 points, measured in turns."""
    plan = plan_sweep("emergence/flow", ["T=log:64:4096:5", "d=log:16:512:4"], runs=folder)
    plan.folder.mkdir(parents=True)
    jobs = plan.jobs()
    perform(jobs[0])  # what is imported once
    own = whole = 0.0
    for point, job in zip(plan.points[1:], jobs[1:], strict=True):
        begin = time.process_time()
        integrate(plan.kind(point.config, point.seed))
        middle = time.process_time()
        assert not perform(job).errors
        own, whole = own + middle - begin, whole + time.process_time() - middle
    return 1e3 * (whole - own) / len(jobs[1:])


def points_per_second(folder: Path, workers: int) -> float:
    """Returns the points per second of workers with one thread each, without the first point, which imports torch."""
    rates = [0.001 * k for k in range(1, 7)]
    plan = plan_sweep("markov/minimal", {"lr": rates}, settings={"steps": 150}, runs=folder / str(workers))
    plan.folder.mkdir(parents=True)
    team = Local(workers)
    team.threads = 1
    ends = []
    for _, outcome in team.run(plan.jobs()):
        assert not outcome.errors, outcome.errors
        ends.append(time.perf_counter())
    return (len(ends) - workers) / (ends[-1] - ends[workers - 1])


def count(n: int) -> None:
    total = 0
    for number in range(n):
        total += number


def counts_per_second(processes: int, n: int = 20_000_000) -> float:
    """Returns the counts per second of processes that share nothing and only count."""
    team = [get_context("spawn").Process(target=count, args=(n,)) for _ in range(processes)]
    started = time.perf_counter()
    for process in team:
        process.start()
    for process in team:
        process.join()
    return processes / (time.perf_counter() - started)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows = [
            Row("200 points of emergence/flow, 2 workers", two_hundred_points(root / "points"), at_most=30, unit="s"),
            Row("around a point, beyond its own computing", overhead(root / "overhead"), at_most=50, unit="ms"),
            Row("two processes that only count / one", counts_per_second(2) / counts_per_second(1)),
            Row(
                "points per minute of two workers / of one, markov/minimal",
                points_per_second(root, 2) / points_per_second(root, 1),
                at_least=1.7,
            ),
        ]
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
