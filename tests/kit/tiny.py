"""Every registered task at a size that trains in a fraction of a second. The store has each run once a session."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

import stagelens as sl
from kit.store import host, once
from stagelens.experiments import Training, as_settings, make_config
from stagelens.experiments.batches import map_tensors

STEPS = 6
POINTS = 16
# Settings that make each task small, in addition to few steps or points. Other tasks have their quick preset's sizes.
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


def task_ids() -> list[str]:
    return [name for name, _ in host().tasks]


def is_flow(task_id: str) -> bool:
    return issubclass(host().task(task_id).load(), sl.Flow)


def tiny_settings(task_id: str) -> dict[str, Any]:
    length = {"points": POINTS} if is_flow(task_id) else {"steps": STEPS}
    return length | SETTINGS.get(task_id, {})


def tiny_task(
    task_id: str, kind: type[Any] | None = None, seed: int = 0, settings: Mapping[str, Any] | None = None
) -> Any:
    """The tiny task itself; `kind` is its class or a variant of it, and `settings` are further ones."""
    kind = kind or host().task(task_id).load()
    given = as_settings(tiny_settings(task_id) | dict(settings or {}))
    return kind(make_config(kind.Config, kind.presets, "quick", given), seed)


def trained(task: sl.Task, steps: int = STEPS) -> list[dict[str, torch.Tensor]]:
    """Returns the weights of `task` before each step and after the last, in a training without measurements."""
    training = Training(task)
    found = []
    for step in range(steps + 1):
        found.append({name: value.clone() for name, value in training.model.state_dict().items()})
        if step < steps:
            training.advance(step)
    return found


@cache
def exact_run(task_id: str, seed: int) -> sl.Run:
    """The tiny run of a task in float64 with all registered probes.

    In float32 a key's bias, whose gradient is zero but for rounding, is moved by Adam in a direction that another
    processor does not repeat. In float64 all series are the same on all processors to far better than 1e-6.
    """
    return sl.load(once(f"tiny/exact/{_stem(task_id)}-{seed}", lambda to: run_exactly(task_id, seed, to)), host=host())


def run_exactly(task_id: str, seed: int, to: Path, **options: Any) -> sl.Run:
    """Writes such a run to the folder `to`."""
    if is_flow(task_id):
        return run_tiny(task_id, seed, to, report=False, **options)
    kind = in_float64(host().task(task_id).load())
    return run_tiny(kind, seed, to, probes=[name for name, _ in host().probes], report=False, **options)


@cache
def reported_run(task_id: str) -> sl.Run:
    """The tiny run of a task as a user makes it: its own probes, float32, figures and a report."""
    return sl.load(once(f"tiny/reported/{_stem(task_id)}", lambda to: run_tiny(task_id, 0, to)), host=host())


def run_tiny(task: str | type[sl.Task], seed: int, to: Path, **options: Any) -> sl.Run:
    """Writes a tiny run to the folder `to`."""
    settings = tiny_settings(task if isinstance(task, str) else task.id)
    places = {"runs": to.parent, "name": to.name}
    return sl.run(task, settings=settings, seed=seed, **{"device": "cpu", "host": host()} | places | options)


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
    return map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)


def _stem(task_id: str) -> str:
    return task_id.replace("/", "-")
