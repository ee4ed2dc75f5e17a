"""Every registered task at a size that trains in a fraction of a second."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import stagelens as sl
from stagelens.host.host import Host, make_host

STEPS = 6
POINTS = 16
# What makes each task small, beside a few steps or points. A task that is not listed has the sizes of its quick preset.
SETTINGS: dict[str, dict[str, Any]] = {
    "emergence/toy": {"T": 16, "d": 8},
    "emergence/flow": {"T": 32, "d": 8},
    "emergence/regression": {"T": 8, "d": 4, "d_model": 8, "d_head": 4, "heads": 2, "batch_size": 8, "eval_size": 16},
    "emergence/recall": {"pairs": 4, "tokens": 8, "d_model": 8, "d_head": 4, "heads": 2, "batch_size": 8},
    "linear-icl/separate": {"N": 7},
    "linear-icl/flow": {"rtol": 1e-10, "atol": 1e-12},
    "linear-icl/sequences": {"N": 7, "P": 40, "train_size": 40, "batch_size": 40, "eval_size": 40},
    "markov/minimal": {"d": 5, "T": 8, "batch_size": 16, "eval_size": 16},
    "markov/full": {"d": 5, "d_model": 15, "d_mlp": 8, "batch_size": 16, "eval_size": 16, "train_size": 64},
    "recall/simplified": {"order": 3, "eval_size": 16},
    "recall/original": {"batch_size": 8, "eval_size": 16},
    "recall/transformer": {"d_model": 24, "batch_size": 8, "eval_size": 16},
    "recall/flow": {"order": 3},
    "rich/toy": {"L": 10, "first_steps": 3, "batch_size": 16, "eval_size": 32},
    "rich/high-dim": {"L": 10, "D": 10, "batch_size": 16, "eval_size": 16},
    "rich/text": {"vocab": 50, "L": 16, "D": 8, "W": 16, "batch_size": 4, "eval_size": 8},
}


@cache
def host() -> Host:
    return make_host()


def task_ids() -> list[str]:
    return [name for name, _ in host().tasks]


def is_flow(task_id: str) -> bool:
    return issubclass(host().task(task_id).load(), sl.Flow)


def tiny_settings(task_id: str) -> dict[str, Any]:
    length = {"points": POINTS} if is_flow(task_id) else {"steps": STEPS}
    return length | SETTINGS.get(task_id, {})


@cache
def exact_run(task_id: str, seed: int) -> sl.Run:
    """The tiny run of a task in float64 with all registered probes, made once in a process.

    In float32 a key's bias, whose gradient is zero but for rounding, is moved by Adam in a direction that another
    processor does not repeat. In float64 all series are the same on all processors to far better than 1e-6.
    """
    kind = host().task(task_id).load()
    if is_flow(task_id):
        return _run(task_id, seed, name=f"{_stem(task_id)}-{seed}", report=False)
    every = [name for name, _ in host().probes]
    return _run(in_float64(kind), seed, name=f"{_stem(task_id)}-{seed}", probes=every, report=False)


@cache
def reported_run(task_id: str) -> sl.Run:
    """The tiny run of a task as a user makes it: its own probes, float32, figures and a report."""
    return _run(task_id, 0, name=_stem(task_id))


def in_float64(kind: type[sl.Task]) -> type[sl.Task]:
    """The same task, id and draws; model and data are cast to float64."""

    class InFloat64(kind):  # type: ignore[misc, valid-type]
        def build_model(self) -> Any:
            return super().build_model().double()

        def sample(self, n: int, generator: torch.Generator) -> Any:
            return _cast(super().sample(n, generator))

        def batches(self, device: torch.device | str) -> Any:
            batch_of = super().batches(device)
            return lambda step: _cast(batch_of(step))

    return InFloat64


def _cast(batch: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, batch)


def _run(task: str | type[sl.Task], seed: int, **options: Any) -> sl.Run:
    task_id = task if isinstance(task, str) else task.id
    settings = tiny_settings(task_id)
    return sl.run(task, settings=settings, seed=seed, device="cpu", runs=folder(), host=host(), **options)


def _stem(task_id: str) -> str:
    return task_id.replace("/", "-")


@cache
def folder() -> Path:
    """The folder of the tiny runs, which lives as long as the process."""
    made = TemporaryDirectory(prefix="stagelens-tiny-")
    atexit.register(made.cleanup)
    return Path(made.name)
