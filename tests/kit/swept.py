"""A small sweep of the task in `sweep_plugin`, on any executor."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

import stagelens as sl
from kit.sweep_plugin import Power
from stagelens.sweeps.executors import Job, Outcome, work

GRID = {"T": [1, 2, 4, 8]}


class Here:
    """An executor that does the jobs in this process, and lists them."""

    def __init__(self, workers: int | None = None) -> None:
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Outcome]]:
        work._host.cache_clear()  # tests write plugins of one name and different content
        for job in jobs:
            self.jobs.append(job)
            yield job, work.perform(job)


def sweep(runs: Path, grid=GRID, **options) -> sl.Sweep:
    return sl.sweep(Power, grid, runs=runs, **{"measures": "event:half", "workers": 2} | options)


@pytest.fixture
def mortal(tmp_path):
    """Returns the settings of a point whose process kills itself with SIGKILL a given number of times."""
    file = tmp_path / "deaths"
    file.write_text("")
    return lambda times: {"fatal": str(file), "deaths": times}


def values(swept: sl.Sweep) -> list[float]:
    assert not swept.failed, swept.failed
    return swept.table["event:half"].tolist()
