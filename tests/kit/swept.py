"""A small sweep of the task in `sweep_plugin`, on any executor."""

from __future__ import annotations

from pathlib import Path

import pytest

import stagelens as sl
from kit.sweep_plugin import Power

GRID = {"T": [1, 2, 4, 8]}


def sweep(runs: Path, grid=GRID, **options) -> sl.Sweep:
    return sl.sweep(Power, grid, runs=runs, **{"measures": "event:half", "workers": 2} | options)


@pytest.fixture
def mortal(tmp_path):
    """Settings of a point whose process kills itself, with SIGKILL, as often as is said."""
    file = tmp_path / "deaths"
    file.write_text("")
    return lambda times: {"fatal": str(file), "deaths": times}


def values(swept: sl.Sweep) -> list[float]:
    assert not swept.failed, swept.failed
    return swept.table["event:half"].tolist()
