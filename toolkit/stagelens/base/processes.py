"""Processes: the cores, threads and GPUs that workers share, and the environment variables that set them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when a library is imported
GPUS = "CUDA_VISIBLE_DEVICES"  # read by CUDA and ROCm


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """Returns the threads per worker: `$OMP_NUM_THREADS` if the user set it, else the cores divided by `workers`."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # OpenMP takes a list of numbers
    return int(given) if given.isdigit() and int(given) > 0 else max(1, cores() // workers)


def worker_environment(threads: int, gpu: str | None = None) -> dict[str, str]:
    """Returns the environment variables of a worker: its threads, unless the user set them, and its one visible GPU."""
    variables = {name: os.environ.get(name) or str(threads) for name in THREAD_VARIABLES}
    return variables if gpu is None else variables | {GPUS: gpu}


def wants_gpu(device: str) -> bool:
    """Returns True if a job on `device` uses a GPU; for `auto` it does if there is one."""
    return device.partition(":")[0] not in ("cpu", "mps", "meta")


def gpus_in_turn(device: str) -> list[str]:
    """Returns the GPU of each local worker of a sweep on `device`, in turn; empty if workers are not pinned.

    Workers are pinned if there are several GPUs and `device` does not name one of them, as `cuda:1` does.
    """
    if not wants_gpu(device) or ":" in device:
        return []
    import torch

    count = torch.cuda.device_count()  # this call does not initialize CUDA
    visible = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    names = visible[:count] or [str(number) for number in range(count)]
    return names if len(names) > 1 else []


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables during a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
