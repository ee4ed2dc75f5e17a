"""Check of a probe: it gives the readings that it declares, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stagelens.experiments import Batch, Task
from stagelens.recording import ModelChanged, Probe, Recorder
from stagelens.timelines import Reading, is_companion

__tracebackhide__ = True  # pytest shows the line of the plugin that failed, not these

if TYPE_CHECKING:
    from stagelens.models import HookedRootModule


def check_probe(
    kind: type[Probe], model: HookedRootModule | None = None, batch: Batch = None, task: Task | None = None
) -> list[Reading]:
    """Fails if a probe does not apply, misnames its readings, or changes the model. Returns its readings.

    - It applies to `model` (default: a small transformer, or that of `task`) on `batch`.
    - It gives finite readings that `gives` names, and each reading that `gives` names is given, or omitted with a
      reason (`Omitted`), by the second measurement.
    - Measured twice, it gives the same; parameters, gradients, mode and random state stay as they were.
    """
    if model is None:
        model = task.build_model() if task else _small_transformer()
    if batch is None:
        batch = task.sample(4, torch.Generator().manual_seed(0)) if task else _small_batch()
    model.train()
    recorder = Recorder(model, [kind], batch, task=task, loss=None if task else _next_token_loss, strict=True)
    name = kind.name
    assert name not in recorder.skipped, f"probe {name!r} does not apply: {recorder.skipped[name]}"
    before, state = _copy(model), torch.get_rng_state()
    try:
        once = _own(recorder.measure(0), name)
    except ModelChanged as changed:
        raise AssertionError(str(changed)) from None
    assert not recorder.problems, f"probe {name!r} failed: {recorder.problems[name]}"
    assert name not in recorder.skipped, f"probe {name!r} does not apply: {recorder.skipped[name]}"
    given = {reading.name.partition("/")[2] for reading in once}
    assert given <= set(kind.gives), f"probe {name!r} gives {sorted(given - set(kind.gives))}, which `gives` lacks"
    assert given, f"probe {name!r} gave nothing; `gives` names {kind.gives}"
    assert torch.equal(state, torch.get_rng_state()), f"probe {name!r} changed the random state"
    assert model.training, f"probe {name!r} left the model in evaluation mode"
    assert all(p.grad is None for p in model.parameters()), f"probe {name!r} left gradients behind"
    for key, values in _copy(model).items():
        assert torch.equal(values, before[key]), f"probe {name!r} changed the parameter {key!r}"
    twice = {reading.name: reading for reading in _own(recorder.measure(0), name)}
    for one in once:
        same = one.name in twice and np.array_equal(one.array(), twice[one.name].array(), equal_nan=True)
        assert same, f"{one.name} differs when measured again"
    known = twice.keys() | recorder.skipped.keys()
    full = [f"{name}/{short}" for short in kind.gives]
    missing = [reading for reading in full if reading not in known and not is_companion(reading, recorder.skipped)]
    assert not missing, f"probe {name!r} neither gives nor omits {missing}, which `gives` names; yield Omitted for them"
    return once


def _own(readings: list[Reading], probe: str) -> list[Reading]:
    return [reading for reading in readings if reading.name.startswith(f"{probe}/")]


def _copy(model: Any) -> dict[str, torch.Tensor]:
    return {name: values.detach().clone() for name, values in model.state_dict().items()}


def _small_transformer() -> HookedRootModule:
    from stagelens.models import build_transformer

    return build_transformer(n_layers=2, n_heads=2, d_model=8, n_ctx=12, d_vocab=7, d_mlp=16, seed=0)


def _small_batch() -> torch.Tensor:
    return torch.randint(7, (4, 12), generator=torch.Generator().manual_seed(0))


def _next_token_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
