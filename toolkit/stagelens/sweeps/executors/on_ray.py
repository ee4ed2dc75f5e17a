"""Workers of a ray cluster: an existing one, by its address, or one started on this machine for the sweep."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess  # nosec B404  # ray's own health check
import sys
import tarfile
import tempfile
import uuid
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stagelens.base import (
    EnvironmentFault,
    UsageError,
    cores,
    environment,
    threads_each,
    unknown,
    wants_gpu,
    worker_environment,
)
from stagelens.host import ALLOW
from stagelens.sweeps.executors import RETRIES
from stagelens.sweeps.executors.work import Job, Outcome, perform

TIME_LIMIT = 15.0  # seconds in which a cluster must answer
PATIENCE = 10.0  # seconds that running jobs have to write their checkpoints
RESULTS = ("shared", "returned")
DEATHS = r"worker died or was killed while executing a task|^Task perform\w* failed"  # what ray prints about them


class OnRay:
    """Runs jobs as ray tasks. Their runs are written to a `shared` directory, or `returned` and written here."""

    def __init__(self, workers: int | None = None, address: str | None = None, results: str = "shared") -> None:
        if results not in RESULTS:
            raise unknown("way of results", results, RESULTS)
        self.workers, self.address, self.results = workers, address, results
        self.threads = threads_each((workers or cores()) if address is None else cores())

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Outcome]]:
        if not jobs:
            return
        ray = _ray()
        ours = self._connect(ray)
        try:
            if self.results == "shared":
                _check_shared(ray, Path(jobs[0].folder))
            with closing(self._done(ray, jobs)) as outcomes:
                yield from outcomes
        finally:
            if ours:
                ray.shutdown()

    def _done(self, ray: Any, jobs: Sequence[Job]) -> Generator[tuple[Job, Outcome]]:
        there = ray.cluster_resources()
        options = self._options(jobs[0].device, there)
        options["num_cpus"] = min(options["num_cpus"], _largest_node(ray))  # with more, ray would wait forever
        work = ray.remote(perform if self.results == "shared" else perform_apart).options(**options)
        at_a_time = self.workers or _at_a_time(options, there)
        waiting = deque(_on_any_gpu(job) for job in jobs)
        running: dict[Any, Job] = {}
        try:
            while waiting or running:
                while waiting and len(running) < at_a_time:
                    job = waiting.popleft()
                    running[work.remote(replace(job, threads=self.threads))] = job
                ready, _ = ray.wait(list(running))
                for reference in ready:
                    job = running.pop(reference)
                    yield job, self._outcome(ray, reference, job)
        finally:
            for reference in running:
                with suppress(Exception):
                    ray.cancel(reference)  # the job sees a keyboard interrupt, and writes its checkpoint
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)

    def _options(self, device: str, there: Mapping[str, float]) -> dict[str, Any]:
        """Returns what a job requests from a cluster with the resources `there`: CPUs, and a GPU if its device is one.

        Ray hides the GPUs from a task that requests none, and `auto` would mean the CPU there.
        """
        variables = worker_environment(self.threads)
        variables |= {name: value for name, value in os.environ.items() if name == ALLOW}
        gpus = 1 if wants_gpu(device) and (device != "auto" or there.get("GPU", 0) >= 1) else 0
        if gpus > there.get("GPU", 0):  # ray would wait for one forever
            raise UsageError(f"--device {device}: the ray cluster has no GPU; give auto or cpu, or add a node with one")
        asked = {"num_cpus": self.threads, "num_gpus": gpus}
        return asked | {"max_retries": RETRIES, "runtime_env": {"env_vars": variables}}

    def _outcome(self, ray: Any, reference: Any, job: Job) -> Outcome:
        try:
            outcome: Outcome = ray.get(reference)
        except ray.exceptions.RayError as error:
            died = f"its worker died {RETRIES + 1} times" if _is_death(ray, error) else "ray could not run it"
            return Outcome(errors=dict.fromkeys(job.seeds, f"{died}: {' '.join(str(error).split())[:160]}"))
        if outcome.archive:
            unpack(outcome.archive, Path(job.folder))
        return replace(outcome, archive=b"")

    def _connect(self, ray: Any) -> bool:
        """Joins the cluster. Returns True if this call has to leave it."""
        if self.address is not None:
            _reach(self.address, TIME_LIMIT)
        if ray.is_initialized():
            return False
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
        if self.address is None:
            options |= {"num_cpus": (self.workers or cores()) * self.threads}
        else:
            options = {"address": self.address, "logging_level": "ERROR", "log_to_driver": False}
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as ray's next version: no warning about it
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            what = f"join the ray cluster at {self.address}" if self.address else "start ray on this machine"
            raise EnvironmentFault(f"cannot {what}: {' '.join(str(error).split())[:200]}") from None
        return True


def _largest_node(ray: Any) -> int:
    """Returns the number of CPUs of the largest node."""
    return max(1, *(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]))


def _at_a_time(options: Mapping[str, Any], there: Mapping[str, float]) -> int:
    """Returns how many jobs the cluster can run at once."""
    fits = int(there.get("CPU", 1)) // options["num_cpus"]
    return int(max(1, min(fits, int(there["GPU"]) // options["num_gpus"]) if options["num_gpus"] else fits))


def _on_any_gpu(job: Job) -> Job:
    """Returns `job` without the number of a GPU: a worker sees only the GPU that ray gave it, as number 0."""
    return replace(job, device=job.device.partition(":")[0]) if wants_gpu(job.device) else job


def perform_apart(job: Job) -> Outcome:
    """Runs `job` in a temporary directory of the worker, and packs the runs into the outcome."""
    with tempfile.TemporaryDirectory(prefix="stagelens-") as folder:
        outcome = perform(replace(job, folder=folder))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in job.names:
                if (Path(folder) / name).is_dir():
                    archive.add(Path(folder) / name, name)
        return replace(outcome, archive=packed.getvalue())


def unpack(archive: bytes, folder: Path) -> None:
    """Writes returned runs into `folder`, first under another name, so that no run is ever incomplete."""
    aside = folder / f".{uuid.uuid4().hex}.part"
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(aside, filter="data")
        for run in sorted(aside.iterdir()):
            shutil.rmtree(folder / run.name, ignore_errors=True)
            run.replace(folder / run.name)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _ray() -> Any:
    """Imports ray. It does not print that a worker died; the sweep reports that if it has a consequence."""
    try:
        with environment({"RAY_DEDUP_LOGS_SKIP_REGEX": DEATHS}):  # read when it is imported
            import ray
    except ImportError:
        raise UsageError("--executor ray needs ray: pip install ray, or use --executor local") from None
    return ray


def _reach(address: str, limit: float) -> None:
    """Raises an error if no cluster answers at `address` within `limit` seconds; ray itself would wait for minutes."""
    if address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise UsageError(f"--address {address!r}: expected host:port, ray://host:port or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=limit).close()
        if not address.startswith("ray://"):
            command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", f"{host}:{port}"]
            answer = subprocess.run(command, timeout=limit, capture_output=True, text=True)  # nosec B603  # no shell
            if "AuthenticationError" in answer.stderr:
                how = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's own"
                raise EnvironmentFault(f"the ray cluster at {address} wants another token: {how}")
            if answer.returncode:
                raise ConnectionError(None, "no ray is there")
    except (OSError, OverflowError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or "timed out"
        raise EnvironmentFault(
            f"no ray cluster answers at {address} within {limit:g} s ({reason}); start one with `ray start --head`"
        ) from None


def _check_shared(ray: Any, folder: Path) -> None:
    """Raises an error unless every node sees a file that is written to `folder` here."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    token = folder / f".shared-{uuid.uuid4().hex}"
    token.write_text("a sweep checks that its workers see this directory\n", encoding="utf-8")
    try:
        nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
        look = ray.remote(os.path.isfile)
        asked = {
            look.options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            ).remote(str(token.resolve())): name
            for node, name in nodes.items()
        }
        blind = [name for reference, name in asked.items() if not ray.get(reference)]
    finally:
        token.unlink(missing_ok=True)
    if blind:
        raise UsageError(
            f"{folder} is not shared: {', '.join(blind)} does not see it; "
            "give --runs a folder that all nodes mount, or --results returned"
        )


def _is_death(ray: Any, error: Exception) -> bool:
    return isinstance(error, ray.exceptions.WorkerCrashedError | ray.exceptions.NodeDiedError)
