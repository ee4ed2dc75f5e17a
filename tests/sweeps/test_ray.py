"""Sweeps on ray: the same runs as with local workers, and a clear error if there is no cluster."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kit.ray_cluster import cluster, installed  # noqa: F401
from kit.swept import mortal, sweep, values  # noqa: F401
from stagelens.base.errors import EnvironmentFault, UsageError

TESTS = Path(__file__).parents[1]


@pytest.mark.filterwarnings("ignore")
def test_both_executors_give_the_same_table_bit_for_bit(cluster, tmp_path) -> None:
    local = sweep(tmp_path / "local")
    shared = sweep(tmp_path / "shared", executor="ray")
    returned = sweep(tmp_path / "returned", executor="ray", results="returned")
    assert values(local) == values(shared) == values(returned)
    for one, other in zip(local, returned, strict=True):
        assert one.timeline.series("loss").tobytes() == other.timeline.series("loss").tobytes()
    assert shared.table.drop(columns="seconds").equals(local.table.drop(columns="seconds"))


def test_what_a_point_requests() -> None:
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
def test_a_folder_that_a_node_does_not_see_is_not_shared(cluster, tmp_path, monkeypatch) -> None:
    """The file is written where no worker can see it, as for a node without the mount."""
    import stagelens.sweeps.executors.on_ray as on_ray

    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setattr(on_ray.Path, "resolve", lambda path: elsewhere / path.name)
    with pytest.raises(UsageError, match=r"is not shared: .* does not see it; .* --results returned"):
        on_ray._check_shared(pytest.importorskip("ray"), tmp_path)


def test_a_wrong_token_is_reported_at_once(cluster, monkeypatch) -> None:
    from stagelens.sweeps.executors.on_ray import _reach

    if os.environ.get("RAY_AUTH_MODE") != "token":
        pytest.skip("this cluster wants no token: ray has not been told to")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(EnvironmentFault, match="wants another token: set RAY_AUTH_MODE=token"):
        _reach(pytest.importorskip("ray").get_runtime_context().gcs_address, 15.0)


def test_an_address_where_nothing_listens_is_reported_at_once(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EnvironmentFault, match=f"no ray cluster answers at 127.0.0.1:{port}") as told:
        sweep(tmp_path, executor="ray", address=f"127.0.0.1:{port}")
    assert "\n" not in str(told.value)


def test_an_address_where_something_else_listens_is_reported_in_time(tmp_path) -> None:
    from stagelens.sweeps.executors.on_ray import _reach

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(EnvironmentFault, match="no ray cluster answers"):
            _reach(f"127.0.0.1:{other.getsockname()[1]}", 2.0)


def test_an_address_without_a_port_is_a_mistake(tmp_path) -> None:
    with pytest.raises(UsageError, match="expected host:port"):
        sweep(tmp_path, executor="ray", address="cluster")
