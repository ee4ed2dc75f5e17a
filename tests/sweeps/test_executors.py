"""Executors: the same runs everywhere, few threads, and a dead worker costs one retry."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stagelens as sl
from conftest import STAGELENS
from kit.sweep_plugin import Power
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.base.processes import cores
from stagelens.sweeps.executors import make_executor
from stagelens.sweeps.executors.local import Local

TESTS = Path(__file__).parents[1]
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


def test_local_workers_do_what_this_process_would(tmp_path) -> None:
    from stagelens.sweeps.executors.work import perform

    class Here:
        def run(self, jobs):
            for job in jobs:
                yield job, perform(job)

    assert values(sweep(tmp_path / "local")) == values(sweep(tmp_path / "here", executor=Here()))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_share_out_the_cores(tmp_path, workers, monkeypatch) -> None:
    """Each run's manifest says how many threads torch had in the process that made it."""
    from kit.tasks import Regression

    monkeypatch.delenv("OMP_NUM_THREADS")
    swept = sl.sweep(Regression, {"steps": [3, 4]}, runs=tmp_path, workers=workers, ensemble=False)
    assert {run.manifest.threads for run in swept} == {max(1, cores() // workers)}
    processes = {run.manifest.process for run in swept}
    assert os.getpid() not in processes


@pytest.mark.parametrize(
    ("given", "workers", "threads"), [("3", 1, 3), ("3", 4, 3), ("2,1", 1, 2), ("", 1, 8), ("0", 2, 4), ("x", 16, 1)]
)
def test_workers_take_the_threads_that_the_user_set_else_their_share(monkeypatch, given, workers, threads) -> None:
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
    """Two workers of a machine that is said to have two GPUs; each writes down what it sees."""
    import torch

    from kit.sweep_plugin import Seeing

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    swept = sl.sweep(Seeing, {"steps": [2, 3]}, runs=tmp_path / "runs", settings={"seen": str(tmp_path)}, workers=2)
    assert not swept.failed
    assert {file.read_text() for file in tmp_path.glob("seen-*")} <= {"6", "7"} and len(swept.done) == 2


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


def test_a_script_without_a_main_guard_is_told_what_to_write(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "import stagelens as sl\nfrom kit.sweep_plugin import Power\n"
        f"sl.sweep(Power, {{'T': [1]}}, runs={str(tmp_path / 'runs')!r})\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert "EnvironmentFault: a worker could not start" in done.stderr


def test_ctrl_c_stops_cleanly_and_the_next_call_goes_on(tmp_path) -> None:
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
        "sleep=0.8",
        "--measure",
        "event:half",
        "--runs",
        str(tmp_path),
        "--workers",
        "2",
        "--fit",
        "T",
    ]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    points = tmp_path / "points"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(points.glob("*/timeline.sqlite")):
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal sends it: to the workers too
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130, err
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert '"done": 12' in again.stdout


def test_nothing_is_started_for_nothing() -> None:
    assert list(Local(2).run([])) == []


class TestRay:
    """The same on ray, in a cluster of this machine. Skipped where ray is not installed."""

    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("ray", reason="ray is not installed: pip install 'stagelens[ray]'")

    @pytest.fixture(scope="class")
    def cluster(self):
        """One cluster for all of these tests: it takes seconds to start."""
        ray = pytest.importorskip("ray")
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        variables = {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=2, num_gpus=2, runtime_env={"env_vars": variables}, **options)  # ray believes it
        yield
        ray.shutdown()

    @pytest.mark.filterwarnings("ignore")
    def test_both_executors_give_the_same_table_bit_for_bit(self, cluster, tmp_path) -> None:
        local = sweep(tmp_path / "local")
        shared = sweep(tmp_path / "shared", executor="ray")
        returned = sweep(tmp_path / "returned", executor="ray", results="returned")
        assert values(local) == values(shared) == values(returned)
        for one, other in zip(local, returned, strict=True):
            assert one.timeline.series("loss").tobytes() == other.timeline.series("loss").tobytes()
        assert shared.table.drop(columns="seconds").equals(local.table.drop(columns="seconds"))

    @pytest.mark.filterwarnings("ignore")
    def test_a_point_gets_a_gpu_of_the_cluster_unless_it_asks_for_the_cpu(self, cluster, tmp_path) -> None:
        from kit.sweep_plugin import Seeing

        for device, expected in (("auto", {"0", "1"}), ("cpu", {"", "none"})):
            seen = tmp_path / device
            seen.mkdir()
            where = {"runs": tmp_path / f"runs-{device}", "settings": {"seen": str(seen)}, "device": device}
            swept = sl.sweep(Seeing, {"steps": [2, 3]}, executor="ray", **where)
            assert not swept.failed and {file.read_text() for file in seen.iterdir()} <= expected

    def test_what_a_point_requests(self) -> None:
        from stagelens.sweeps.executors.on_ray import OnRay, _at_a_time, _on_any_gpu
        from stagelens.sweeps.executors.work import Job

        options = OnRay(address="auto")._options
        with_gpus, without = {"CPU": 64.0, "GPU": 4.0}, {"CPU": 64.0}
        requests = {
            (device, bool(there is with_gpus)): options(device, there)["num_gpus"]
            for device in ("auto", "cuda", "cuda:3", "cpu", "mps")
            for there in (with_gpus, without)
            if there is with_gpus or not device.startswith("cuda")
        }
        gpu = {device for (device, there), count in requests.items() if count and there}
        assert gpu == {"auto", "cuda", "cuda:3"} and not any(n for (_, there), n in requests.items() if not there)
        assert _at_a_time(options("auto", with_gpus), with_gpus) == 4
        assert _at_a_time(options("cpu", with_gpus), with_gpus) == 64
        with pytest.raises(UsageError, match="--device cuda: the ray cluster has no GPU"):
            options("cuda", without)
        job = Job("task", "quick", {}, (0,), ("name",), "folder", device="cuda:3")
        assert _on_any_gpu(job).device == "cuda"

    @pytest.mark.filterwarnings("ignore")
    def test_a_killed_worker_costs_its_point_one_retry(self, cluster, tmp_path, mortal) -> None:
        assert len(values(sweep(tmp_path / "runs", {"T": [1, 2, 4]}, executor="ray", settings=mortal(1)))) == 3

    @pytest.mark.filterwarnings("ignore")
    def test_what_ray_prints_of_a_death_is_not_in_the_answer(self, cluster, tmp_path, mortal) -> None:
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
    def test_a_point_that_kills_every_worker_fails_alone(self, cluster, tmp_path, mortal) -> None:
        swept = sweep(tmp_path / "runs", {"T": [1, 2]}, executor="ray", settings=mortal(2), workers=1)
        assert (len(swept.done), len(swept.failed)) == (1, 1)
        assert "its worker died 2 times" in swept.failed[0]["reason"]

    @pytest.mark.filterwarnings("ignore")
    def test_a_folder_that_a_node_does_not_see_is_not_shared(self, cluster, tmp_path, monkeypatch) -> None:
        """The token is written where no worker looks: what a node without the mount sees."""
        import stagelens.sweeps.executors.on_ray as on_ray

        elsewhere = tmp_path / "elsewhere"
        monkeypatch.setattr(on_ray.Path, "resolve", lambda path: elsewhere / path.name)
        with pytest.raises(UsageError, match=r"is not shared: .* does not see it; .* --results returned"):
            on_ray._check_shared(pytest.importorskip("ray"), tmp_path)

    def test_a_wrong_token_is_told_at_once(self, cluster, monkeypatch) -> None:
        from stagelens.sweeps.executors.on_ray import _reach

        if os.environ.get("RAY_AUTH_MODE") != "token":
            pytest.skip("this cluster wants no token: ray has not been told to")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        with pytest.raises(EnvironmentFault, match="wants another token: set RAY_AUTH_MODE=token"):
            _reach(pytest.importorskip("ray").get_runtime_context().gcs_address, 15.0)

    def test_an_address_where_nothing_listens_is_told_at_once(self, tmp_path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(EnvironmentFault, match=f"no ray cluster answers at 127.0.0.1:{port}") as told:
            sweep(tmp_path, executor="ray", address=f"127.0.0.1:{port}")
        assert time.monotonic() - started < 20
        assert "\n" not in str(told.value)

    def test_an_address_where_something_else_listens_is_told_in_time(self, tmp_path) -> None:
        from stagelens.sweeps.executors.on_ray import _reach

        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            started = time.monotonic()
            with pytest.raises(EnvironmentFault, match="no ray cluster answers"):
                _reach(f"127.0.0.1:{other.getsockname()[1]}", 2.0)
            assert time.monotonic() - started < 20

    def test_an_address_without_a_port_is_a_mistake(self, tmp_path) -> None:
        with pytest.raises(UsageError, match="expected host:port"):
            sweep(tmp_path, executor="ray", address="cluster")


def test_without_ray_its_installation_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'stagelens\[ray\]'"):
        sweep(tmp_path, executor="ray")


def test_an_unknown_way_of_results_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="known: returned, shared"):
        make_executor("ray", results="mailed")
