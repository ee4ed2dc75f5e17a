"""Devices: which one is chosen, and no task creates tensors on another one."""

from __future__ import annotations

import pytest
import torch

from kit.tasks import Regression, Repeats
from stagelens.base.device import resolve_device
from stagelens.base.errors import UsageError
from stagelens.testing import check_task_device


@pytest.mark.parametrize(("accelerator", "expected"), [("mps", "mps"), ("cuda:1", "cuda:1"), (None, "cpu")])
def test_auto_is_the_accelerator_of_the_machine_else_the_cpu(monkeypatch, accelerator, expected):
    """Replaces torch's two answers, because the test machine may have no accelerator."""
    found = torch.device(accelerator) if accelerator else None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: found is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    assert resolve_device("auto") == torch.device(expected)
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:77", "meta", "cpu:0:0", "xla", "hpu", "mps:9", "vulkan"])
def test_a_device_that_cannot_compute_here_is_one_line(name):
    with pytest.raises(UsageError, match="cannot be used here") as caught:
        resolve_device(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [Regression, Repeats])
def test_a_task_that_stays_on_its_device_passes(kind):
    check_task_device(kind(kind.Config()))


class PreparesOnCpu(Regression):
    def references(self):
        table = torch.ones(3, 1) * torch.tensor(0.5) - 1.0  # a single number with a tensor, both on the CPU
        return {"line": lambda batch: batch[0] @ (torch.tensor(2.0) - table).to(batch[0].device)}


def test_a_reference_may_compute_on_the_cpu_what_it_moves_to_the_device():
    check_task_device(PreparesOnCpu(PreparesOnCpu.Config()))


class MakesOnCpu(Regression):
    def loss(self, model, batch):
        return super().loss(model, batch) + torch.zeros(3).sum()


class MixesACachedTensor(Regression):
    def __init__(self, config, seed=0):
        super().__init__(config, seed)
        self.scale = torch.ones(3, 1)

    def loss(self, model, batch):
        return (batch[0] @ self.scale).mean() + super().loss(model, batch)


class MetricOnCpu(Regression):
    def metrics(self, output, batch):
        return {"constant": torch.zeros(2).mean()}


class ReferenceMixes(Regression):
    def references(self):
        table = torch.ones(3, 1)
        return {"line": lambda batch: batch[0] @ table}


class LossPerSequence(Regression):
    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().sum(1)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MakesOnCpu, r"zeros.* makes a tensor on cpu at .*test_device\.py:\d+"),
        (MixesACachedTensor, r"mm.* mixes a tensor on cpu .*test_device\.py:\d+"),
        (MetricOnCpu, "metric 'constant' is on cpu"),
        (ReferenceMixes, r"mixes a tensor on cpu .*test_device\.py:\d+"),
        (LossPerSequence, "grad can be implicitly created only for scalar|a single number was expected"),
    ],
)
def test_the_check_catches_what_would_fail_on_an_accelerator(kind, message):
    with pytest.raises((AssertionError, RuntimeError), match=message):
        check_task_device(kind(kind.Config()))


def test_the_check_leaves_random_states_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check_task_device(Repeats(Repeats.Config()))
    assert torch.equal(torch.rand(2), expected)
