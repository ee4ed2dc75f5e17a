"""Measuring leaves the batch as it is, installs no signal handler, and notices changed parameters."""

from __future__ import annotations

import signal
from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stagelens as sl
from kit.probe_models import loss_without_last_token, tokens, transformer
from kit.tasks import Regression, Repeats
from stagelens.experiments import own
from stagelens.models import build_transformer
from stagelens.recording.guard import ModelChanged, fingerprint


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Both:
    x: Any
    y: Any


def kinds_of_batch(x: Tensor, y: Tensor) -> dict[str, tuple[Any, Any]]:
    """name -> (the batch, how its x and y are found in it)."""
    return {
        "tuple": ((x, y), lambda b: b),
        "list": ([x, y], lambda b: b),
        "dict": ({"x": x, "y": y}, lambda b: (b["x"], b["y"])),
        "nested": ({"a": [(x, "text"), 3], "b": Pair(x, y)}, lambda b: (b["a"][0][0], b["b"].y)),
        "mapping": (UserDict(x=x, y=y), lambda b: (b["x"], b["y"])),
        "dataclass": (Both(x, y), lambda b: (b.x, b.y)),
        "numpy": (Pair(x.numpy(), y.numpy()), lambda b: map(torch.from_numpy, b)),
        "view": ((torch.stack([x, x])[1], y.expand(2, *y.shape)[0]), lambda b: b),
    }


@pytest.mark.parametrize("kind", kinds_of_batch(torch.ones(1), torch.ones(1)))
def test_a_batch_that_is_changed_in_place_is_measured_as_it_was(kind: str) -> None:
    task = Regression(Regression.Config())
    model, (x, y) = task.build_model(), task.sample(8, torch.Generator().manual_seed(0))
    expected = task.loss(model, (x, y)).item()
    batch, found = kinds_of_batch(x, y)[kind]
    recorder = sl.Recorder(model, [], batch, loss=lambda model, batch: task.loss(model, (*found(batch),)))
    recorder.measure(0)
    for changed in found(batch):
        changed.add_(3.0)
    recorder.measure(1)
    assert recorder.timeline["loss"].values == pytest.approx([expected, expected], rel=1e-6)


@pytest.mark.parametrize("changed", ["before the first measurement", "after it"])
def test_references_groups_and_directions_stay_those_of_the_batch(changed: str) -> None:
    """Some quantities of a batch are computed once and cached: they must belong to the same batch as the others."""
    model = build_transformer(n_layers=2, n_heads=2, d_model=8, n_ctx=8, d_vocab=11, seed=0)
    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))
    axis = torch.eye(4)[0].clone()

    def uniform_over_seen(batch: Tensor) -> Tensor:  # [batch, 6, 11]: a reference that depends on the batch
        seen = nn.functional.one_hot(batch[:, :-1], 11).cumsum(1).double() + 0.1
        return (seen / seen.sum(-1, keepdim=True)).log()

    def recorder_of(tokens: Tensor, axis: Tensor) -> sl.Recorder:
        return sl.Recorder(
            model,
            ["head_specialization", "qk_alignment", "kl_to_references", "induction", "loss_by_position"],
            tokens,
            loss=loss_without_last_token,
            groups={"first": sl.Group(positions=(0,)), "recent": sl.Group(offsets=(1,))},
            directions={"first": axis},
            references={"seen": uniform_over_seen},
        )

    alone, reused = recorder_of(tokens.clone(), axis.clone()), recorder_of(tokens, axis)
    for step in range(2):
        if step == 1 or changed.startswith("before"):
            tokens.copy_((tokens + 3) % 11)
            axis.copy_(torch.eye(4)[2 + step])
        alone.measure(step), reused.measure(step)
    assert not reused.problems and set(alone.timeline) == set(reused.timeline)
    for name in alone.timeline:
        assert np.array_equal(alone.timeline.series(name), reused.timeline.series(name), equal_nan=True), name


def test_a_batch_goes_to_the_models_device_without_its_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    batch = {"x": weight * torch.randn(4, 3), "y": weight, "n": 3}
    kept = own(batch, torch.device("meta"))  # what the recorder does with its batch
    assert kept["x"].device.type == kept["y"].device.type == "meta" and kept["n"] == 3
    assert kept["x"].is_leaf and kept["x"].requires_grad


def test_the_trainings_own_batch_is_not_touched_either() -> None:
    """If a task returns a stored tensor as its batch, a loss that changes the recorder's copy does not change it."""
    task = Repeats(Repeats.Config())
    stored = task.sample(4, torch.Generator().manual_seed(0))
    before = stored.clone()

    def blanking(model: Any, batch: Tensor) -> Tensor:
        batch[:, 0] = 0
        return task.loss(model, batch)

    sl.Recorder(task.build_model(), [], stored, loss=blanking).measure(0)
    assert torch.equal(stored, before)


@pytest.mark.parametrize("strict", [False, True])
def test_a_users_own_loop_gets_no_signal_handler(strict):
    seen = []

    @sl.probe(hooks="attn.hook_pattern", dims=("head",))
    def looks(pattern, context):
        seen.append(signal.getsignal(signal.SIGALRM))
        return pattern.mean((0, 2, 3))

    before = signal.getsignal(signal.SIGALRM)
    recorder = sl.Recorder(transformer(), [looks], tokens(), strict=strict)
    recorder.measure(0)
    assert not recorder.problems and seen and all((one is before) is not strict for one in seen)
    assert signal.getsignal(signal.SIGALRM) is before


class WritesAt(sl.Probe):
    name, gives = "writes", ("value",)

    def __init__(self, first=0):
        super().__init__()
        self.first = first

    def readings(self, reduced, context):
        if context.step >= self.first:
            next(context.model.parameters()).data.mul_(1.5)
        yield sl.Reading("value", 0.0)


@pytest.mark.parametrize(("strict", "step"), [(False, 0), (True, 0), (True, 3)])
def test_a_changed_parameter_is_noticed_at_the_first_measurement_or_with_strict_at_any(strict, step):
    recorder = sl.Recorder(transformer(), [WritesAt(step)], tokens(), strict=strict)
    for earlier in range(step):
        recorder.measure(earlier)
    with pytest.raises(ModelChanged, match="probe 'writes' changed the model's parameters"):
        recorder.measure(step)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_checksum_detects_any_change_of_one_number(dtype):
    model = torch.nn.Linear(5, 3).to(dtype)
    before = fingerprint(model)
    assert before == fingerprint(model)
    kept = model.weight.data[1, 2].clone()
    for value in (kept * (1 + 2 * torch.finfo(dtype).eps), -kept, torch.tensor(torch.nan)):
        model.weight.data[1, 2] = value
        assert fingerprint(model) != before
        model.weight.data[1, 2] = kept
    assert fingerprint(model) == before
