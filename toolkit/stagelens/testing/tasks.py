"""Checks of a task: config, device, randomness, resuming, probes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from stagelens.base import generator, untouched_rng
from stagelens.experiments import (
    Experiment,
    Flow,
    Prediction,
    Task,
    Training,
    as_settings,
    eval_batch,
    integrate,
    make_config,
    validate,
)
from stagelens.host import make_host
from stagelens.recording import Recorder
from stagelens.runs import checkpoint
from stagelens.testing.devices import check_task_device

__tracebackhide__ = True  # pytest shows the line of the plugin that failed, not these


def check_task(
    kind: type[Experiment],
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "quick",
    seed: int = 0,
    steps: int = 4,
) -> dict[str, str]:
    """Fails if a task or flow breaks a contract of every run. Returns the probes that do not apply, and why.

    - Every preset makes a config, and a config read back from a manifest is the same.
    - A task creates tensors only on the device on which it runs (`check_task_device`).
    - Model, data and `steps` training steps depend only on the seed, not on torch's global random state.
    - Training resumed from a checkpoint ends bit for bit where uninterrupted training ends.
    - Each probe measures, or gives the reason why it does not apply.
    - A flow integrates to its end, twice to the same numbers.

    `settings` make the config small enough for a test.
    """
    given = as_settings(settings or {})
    for name in kind.presets:
        _check_round_trip(kind, make_config(kind.Config, kind.presets, name, given), name)
    experiment = kind(make_config(kind.Config, kind.presets, preset, given), seed)
    plugin, slash, rest = experiment.id.partition("/")
    assert plugin and slash and rest, f"the id {experiment.id!r} should be `plugin/name`"
    for prediction in experiment.predictions():
        _check_prediction(experiment, prediction)
    if isinstance(experiment, Flow):
        _check_flow(experiment)
        return {}
    assert isinstance(experiment, Task), f"{kind.__name__} is neither a Task nor a Flow"
    check_task_device(experiment)
    _check_samples(experiment)
    _check_training(experiment, steps)
    return _check_probes(experiment)


def _check_round_trip(kind: type[Experiment], config: Any, preset: str) -> None:
    read = validate(kind.Config, json.loads(json.dumps(config.model_dump(mode="json"))))
    assert read == config, f"{kind.id}: the config of preset {preset!r} changes when a manifest stores it: {read}"


def _check_prediction(experiment: Experiment, prediction: Prediction) -> None:
    if not callable(prediction.expected):
        finite = np.isfinite(prediction.expected)
        assert finite, f"{experiment.id}: prediction {prediction.name!r} is {prediction.expected}"
    assert prediction.reference, f"{experiment.id}: prediction {prediction.name!r} does not say where it comes from"


def _check_flow(flow: Flow) -> None:
    once, again = integrate(flow), integrate(flow)
    assert not once.error, f"{flow.id}: {once.error}"
    for one, two in zip(once.measurements, again.measurements, strict=True):
        same = one.step == two.step and np.array_equal(one.values, two.values, equal_nan=True)
        assert same, f"{flow.id}: integrated twice, it differs at t = {one.step}"


def _check_samples(task: Task) -> None:
    once = task.sample(3, generator(task.seed, "eval"))
    torch.rand(1)  # changes the samples of a task that draws from the global generator
    again = task.sample(3, generator(task.seed, "eval"))
    for one, two in zip(tree_leaves(once), tree_leaves(again), strict=True):
        assert torch.equal(one, two), f"{task.id}: sample() does not draw from the generator that it is given"


def _check_training(task: Task, steps: int) -> None:
    whole = _trained(task, steps)
    torch.rand(1)
    _check_same(whole, _trained(task, steps), f"{task.id}: trained twice with one seed")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), steps // 2, task.id, _trained(task, steps // 2).state())
        found = checkpoint.latest(Path(folder), task.id)
        assert found is not None
        resumed = Training(type(task)(task.config, task.seed))
        resumed.load_state(found[1])
        _advance(resumed, steps // 2, steps)
    _check_same(whole, resumed, f"{task.id}: resumed at step {steps // 2}")


def _trained(task: Task, steps: int) -> Training:
    training = Training(type(task)(task.config, task.seed))
    _advance(training, 0, steps)
    return training


def _advance(training: Training, start: int, end: int) -> None:
    with untouched_rng():
        for step in range(start, end):
            training.advance(step)
    training.check()


def _check_same(one: Training, two: Training, what: str) -> None:
    theirs = dict(two.model.state_dict())
    for name, values in one.model.state_dict().items():
        assert torch.equal(values, theirs[name]), f"{what}, it has different weights in {name!r} after the same steps"


def _check_probes(task: Task) -> dict[str, str]:
    model = Training(task).model
    host = make_host()
    host.probe_names(list(task.without))  # raises if one is unknown
    usual = host.probe_names()
    added = [probe for probe in task.probes or () if probe not in usual]  # classes too, which no plugin registers
    recorder = Recorder(model, [*usual, *added], eval_batch(task, "cpu"), task=task, host=host)
    recorder.measure(0)
    assert not recorder.problems, f"{task.id}: a probe failed: {recorder.problems}"
    return dict(recorder.skipped)
