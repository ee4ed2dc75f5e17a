"""Sweeps on ray: workers that die, and GPUs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import stagelens as sl
from conftest import STAGELENS
from kit.ray_cluster import cluster, installed  # noqa: F401
from kit.swept import mortal, sweep, values  # noqa: F401

TESTS = Path(__file__).parents[1]


@pytest.mark.filterwarnings("ignore")
def test_a_point_gets_a_gpu_of_the_cluster_unless_it_asks_for_the_cpu(cluster, tmp_path) -> None:
    from kit.sweep_plugin import Seeing

    for device, expected in (("auto", {"0", "1"}), ("cpu", {"", "none"})):
        seen = tmp_path / device
        seen.mkdir()
        where = {"runs": tmp_path / f"runs-{device}", "settings": {"seen": str(seen)}, "device": device}
        swept = sl.sweep(Seeing, {"steps": [2, 3]}, executor="ray", **where)
        assert not swept.failed and {file.read_text() for file in seen.iterdir()} <= expected


@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_costs_its_point_one_retry(cluster, tmp_path, mortal) -> None:
    assert len(values(sweep(tmp_path / "runs", {"T": [1, 2, 4]}, executor="ray", settings=mortal(1)))) == 3


@pytest.mark.filterwarnings("ignore")
def test_what_ray_prints_of_a_death_is_not_in_the_answer(cluster, tmp_path, mortal) -> None:
    address = pytest.importorskip("ray").get_runtime_context().gcs_address
    settings = [word for key, value in mortal(1).items() for word in ("--set", f"{key}={value}")]
    words = [
        "--plugin-dir",
        str(TESTS / "kit" / "sweep_plugin.py"),
        "sweep",
        "power/law",
        "--grid",
        "T=1,2",
        "--json",
    ]
    where = ["--executor", "ray", "--address", address, "--runs", str(tmp_path / "runs")]
    done = subprocess.run([*STAGELENS, *words, *where, *settings], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["done"] == 2, done.stderr
    assert "died" not in done.stderr


@pytest.mark.filterwarnings("ignore")
def test_a_point_that_kills_every_worker_fails_alone(cluster, tmp_path, mortal) -> None:
    swept = sweep(tmp_path / "runs", {"T": [1, 2]}, executor="ray", settings=mortal(2), workers=1)
    assert (len(swept.done), len(swept.failed)) == (1, 1)
    assert "its worker died 2 times" in swept.failed[0]["reason"]
