"""Executors: where the jobs of a sweep are done. All use the same function for them, and so get the same runs."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Protocol

from stagelens.errors import UsageError, unknown
from stagelens.executors.work import Job, Outcome

__all__ = ["EXECUTORS", "Executor", "Job", "Outcome", "cores", "make_executor", "threads_each", "worker_environment"]

EXECUTORS = ("local", "ray")
RETRIES = 1  # how often a job is done again after its worker died
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when a library is imported
GPUS = "CUDA_VISIBLE_DEVICES"  # read by CUDA and ROCm


class Executor(Protocol):
    """Does jobs, and yields what came of each as it ends, in any order. Closing the generator stops the workers."""

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Outcome]]: ...


def make_executor(
    name: str, workers: int | None = None, address: str | None = None, results: str = "shared"
) -> Executor:
    """The executor called `name`. `workers`: how many jobs at a time (None: one per core)."""
    if name == "local":
        from stagelens.executors.local import Local

        if address is not None:
            raise UsageError("--address is for --executor ray; local workers are on this machine")
        if results != "shared":
            raise UsageError(f"--results {results} is for --executor ray; local workers write the runs themselves")
        return Local(workers)
    if name == "ray":
        from stagelens.executors.on_ray import OnRay

        return OnRay(workers, address, results)
    raise unknown("executor", name, EXECUTORS)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """The threads of each of `workers`: `$OMP_NUM_THREADS` if the user set it, else an equal share of the cores."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # OpenMP takes a list, one number a level
    return int(given) if given.isdigit() and int(given) > 0 else max(1, cores() // workers)


def worker_environment(threads: int, gpu: str | None = None) -> dict[str, str]:
    """Environment variables of a worker: its threads, where the user has not set them, and the one GPU that it sees."""
    variables = {name: os.environ.get(name) or str(threads) for name in THREAD_VARIABLES}
    return variables if gpu is None else variables | {GPUS: gpu}


def wants_gpu(device: str) -> bool:
    """Whether a job on `device` runs on a GPU; for `auto` it does if there is one."""
    return device.partition(":")[0] not in ("cpu", "mps", "meta")


def gpus_in_turn(device: str) -> list[str]:
    """What each local worker of a sweep on `device` sees as its GPU, in turn; empty if workers are not pinned.

    Workers are pinned if `device` leaves the choice and there are several GPUs: `cuda:1` is one, by the user's choice.
    """
    if not wants_gpu(device) or ":" in device:
        return []
    import torch

    count = torch.cuda.device_count()  # it does not initialize CUDA
    visible = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    names = visible[:count] or [str(number) for number in range(count)]
    return names if len(names) > 1 else []
