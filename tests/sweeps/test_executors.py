"""Executors: the same runs everywhere, few threads, and a dead worker costs one retry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import stagelens as sl
from conftest import STAGELENS
from kit.sweep_plugin import Power
from kit.swept import Here, mortal, sweep, values  # noqa: F401
from stagelens.base.errors import UsageError
from stagelens.base.processes import cores
from stagelens.sweeps import plan_sweep
from stagelens.sweeps.executors import make_executor
from stagelens.sweeps.executors.local import Local

TESTS = Path(__file__).parents[1]


def test_local_workers_do_what_this_process_would(tmp_path) -> None:
    assert values(sweep(tmp_path / "local")) == values(sweep(tmp_path / "here", executor=Here()))


def test_workers_share_out_the_cores(tmp_path, monkeypatch) -> None:
    """The run's manifest says how many threads torch had in its process. One grid point needs one of the workers."""
    from kit.tasks import Regression

    monkeypatch.delenv("OMP_NUM_THREADS")
    (done,) = sl.sweep(Regression, {"steps": [3]}, runs=tmp_path, workers=2)
    assert done.manifest.threads == max(1, cores() // 2)
    assert done.manifest.process != os.getpid()


@pytest.mark.parametrize(
    ("given", "workers", "threads"), [("3", 1, 3), ("3", 4, 3), ("2,1", 1, 2), ("", 1, 8), ("0", 2, 4), ("x", 16, 1)]
)
def test_workers_take_the_threads_that_the_user_set_or_an_equal_part(monkeypatch, given, workers, threads) -> None:
    from stagelens.base import processes

    monkeypatch.setattr(processes, "cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert processes.threads_each(workers) == threads
    found = processes.worker_environment(threads)
    assert found["MKL_NUM_THREADS"] == "5" and found["OPENBLAS_NUM_THREADS"] == str(threads)
    assert found["OMP_NUM_THREADS"] == (given or str(threads))


def test_a_worker_has_the_threads_that_the_user_set(tmp_path, monkeypatch) -> None:
    from kit.tasks import Regression

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (done,) = sl.sweep(Regression, {"steps": [3]}, runs=tmp_path, workers=1)
    assert done.manifest.threads == 3


@pytest.mark.parametrize(
    ("device", "count", "visible", "expected"),
    [
        ("auto", 3, None, ["0", "1", "2"]),
        ("cuda", 2, "GPU-5a,GPU-6b", ["GPU-5a", "GPU-6b"]),
        ("auto", 2, "4, 7", ["4", "7"]),
        ("auto", 1, None, []),
        ("auto", 0, "-1", []),
        ("cuda:1", 2, None, []),
        ("cpu", 2, None, []),
    ],
)
def test_local_workers_are_pinned_to_gpus_in_turn(monkeypatch, device, count, visible, expected) -> None:
    import torch

    from stagelens.base.processes import gpus_in_turn, worker_environment

    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)  # this machine may have none
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus_in_turn(device) == expected
    assert [worker_environment(1, gpu)["CUDA_VISIBLE_DEVICES"] for gpu in expected] == expected
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(1)


def test_each_local_worker_sees_its_own_gpu(tmp_path, monkeypatch) -> None:
    """Two workers on a machine with two faked GPUs; each writes the GPUs that its process sees to a file.

    Each of the two points waits for the other, so each worker does one.
    """
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    plan = plan_sweep(Power, {"T": [1, 2]}, settings={"seen": str(tmp_path), "meet": 2}, runs=tmp_path / "runs")
    jobs = [replace(job, device="auto") for job in plan.jobs()]  # a flow computes on the CPU, and imports no torch
    assert [outcome.errors for _, outcome in Local(2).run(jobs)] == [{}, {}]
    assert {file.read_text() for file in tmp_path.glob("seen-*")} == {"6", "7"}


def test_the_environment_of_this_process_stays_as_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    sweep(tmp_path, {"T": [1]})
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_a_killed_local_worker_costs_its_point_one_retry(tmp_path, mortal) -> None:
    swept = sweep(tmp_path / "runs", {"T": [1, 2, 4]}, settings=mortal(1))
    assert len(values(swept)) == 3


def test_a_point_that_kills_every_worker_fails_and_the_others_do_not(tmp_path, mortal) -> None:
    swept = sweep(tmp_path / "runs", {"T": [1, 2, 4]}, settings=mortal(2), workers=1)
    assert len(swept.done) == 2
    (failure,) = swept.failed
    assert "its worker died 2 times, at last killed by signal 9 (SIGKILL)" in failure["reason"]
    assert values(sweep(tmp_path / "runs", {"T": [1, 2, 4]}, settings=mortal(0) | {"deaths": 2}))


def test_a_script_without_a_main_guard_gets_the_line_to_write(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "import stagelens as sl\nfrom kit.sweep_plugin import Power\n"
        f"sl.sweep(Power, {{'T': [1]}}, runs={str(tmp_path / 'runs')!r})\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert "EnvironmentFault: a worker could not start" in done.stderr


def test_ctrl_c_stops_cleanly_and_the_next_call_continues(tmp_path) -> None:
    command = [
        *STAGELENS,
        "--plugin-dir",
        str(TESTS / "kit" / "sweep_plugin.py"),
        "sweep",
        "power/law",
        "--grid",
        "T=1:12:1",
    ]
    command += [
        "--set",
        "sleep=0.4",
        "--measure",
        "event:half",
        "--runs",
        str(tmp_path),
        "--workers",
        "2",
        "--fit",
        "T",
    ]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job of a shell ignores it
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heard)
    points = tmp_path / "points"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(points.glob("*/timeline.sqlite")):
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal sends it: to the workers too
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130, err
    assert "the same command resumes the sweep" in err
    assert "Traceback" not in err
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert '"done": 12' in again.stdout


def test_nothing_is_started_for_nothing() -> None:
    assert list(Local(2).run([])) == []


def test_without_ray_its_installation_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs ray: pip install ray, or use --executor local"):
        sweep(tmp_path, executor="ray")


def test_an_unknown_value_of_results_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="known: returned, shared"):
        make_executor("ray", results="mailed")
