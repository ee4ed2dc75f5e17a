"""An allocation that does not fit into memory is reported in one line; other errors are not changed."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from stagelens.base import memory
from stagelens.base.errors import EnvironmentFault
from stagelens.base.memory import free_memory, within_memory

FEW = 300 * 2**20
linux = pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the system does not say what memory is free")


@linux
@pytest.mark.parametrize("make", [lambda: np.ones(10**9), lambda: torch.ones(10**9), lambda: bytearray(10**10)])
def test_more_than_is_free_is_one_line(monkeypatch, make):
    monkeypatch.setattr(memory, "free_memory", lambda: FEW)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(EnvironmentFault, match=r"not enough memory for this.*give smaller sizes"), within_memory():
        make()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.ones((10**9, 10**9)),
        lambda: np.ones((10**10, 10**10, 10**10)),
        lambda: torch.ones(10**9, 10**9),
        lambda: torch.ones(10**10, 10**10),
    ],
)
def test_more_than_any_machine_has_is_the_same(make):
    with pytest.raises(EnvironmentFault, match="not enough memory for this"), within_memory():
        make()


@linux
def test_what_fits_is_made_and_other_errors_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: FEW)
    with within_memory():
        assert torch.ones(10**6).sum() == 10**6
    for error in (
        ValueError("too many values to unpack"),
        RuntimeError("mat1 and mat2 shapes"),
        KeyError("out of memory"),
    ):
        with pytest.raises(type(error)), within_memory():
            raise error


@linux
def test_a_containers_limit_counts_where_it_is_the_lower_one(monkeypatch, tmp_path):
    machine = free_memory()
    for name, text in {"max": "1000000000", "current": "900000000", "stat": "anon 1\ninactive_file 5000000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert free_memory() == 105_000_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory() > machine / 2


@linux
def test_an_existing_memory_limit_is_not_raised():
    """An existing limit is not raised."""
    script = (
        "import resource; from stagelens.base.memory import within_memory\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))\n"
        "with within_memory(): print(resource.getrlimit(resource.RLIMIT_DATA)[0] <= 10**9)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "True\n"


@linux
def test_the_command_line_reports_a_model_that_does_not_fit(cli, tmp_path):
    answer = cli("run", "markov", "--set", "d=1000000000")
    assert answer.code == 3 and "give smaller sizes" in answer.complaint
    assert list(tmp_path.iterdir()) == []
