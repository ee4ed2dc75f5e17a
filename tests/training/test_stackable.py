"""Which trainings can be vectorized over their seeds: models with buffers, shared memory and unusual layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stagelens as sl
from kit.tasks import TwoMaps
from kit.vectorized import NEAR, SEEDS, STEPS, Sizes, Small, apart
from stagelens.experiments.training import Training
from stagelens.training.stackable import why_not
from stagelens.training.stacking import Stacked


class TwoMapsTask(sl.Task):
    """Two linear maps, with the models below."""

    id = "small/maps"
    Config = Sizes
    model: ClassVar[Any] = TwoMaps

    def build_model(self) -> Any:
        return self.model(self.seed)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, 3, generator=generator)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


class Counts(TwoMaps):
    """Its output depends on how often it was called in training, which a traced step does not see."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x) * (1 + 0.1 * self.calls)


class Buffered(TwoMaps):
    """Keeps a running mean that nothing reads in training."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean + x.detach().mean()
        return super().forward(x)


class TiedByData(TwoMaps):
    """Two parameters in the same memory."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.third = nn.Parameter(torch.zeros(4, 3))
        self.third.data = self.first.data.T

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x @ self.first @ self.third)


class TiedToBuffer(TwoMaps):
    """A buffer in the memory of a parameter."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.register_buffer("seen", self.first.data)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.seen.sum()


class Remembers(TwoMaps):
    """A tensor, neither parameter nor buffer, in the memory of a parameter."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seen = self.first.data

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.seen.sum()


class Shared(TwoMaps):
    """One parameter under two names."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x @ self.first @ self.again.T)


class Strided(TwoMaps):
    """A transposed parameter, and every second row of a larger tensor."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first = nn.Parameter(self.first.data.T.contiguous().T)
        self.second = nn.Parameter(torch.cat([self.second.data, self.second.data], 1).flatten()[::2].view(4, 1))


def maps(model: type[Any]) -> type[Any]:
    return type("Maps", (TwoMapsTask,), {"model": model})


def trainings(kind: type[Any], seeds: Sequence[int] = SEEDS) -> list[Training]:
    return [Training(kind(kind.Config(lr=0.01), seed)) for seed in seeds]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Counts, "after 3 updates its 'first' is not that of a seed alone"),
        (Buffered, "training changes its buffer 'mean'"),
        (TiedByData, "its 'first' and 'third' share memory"),
        (TiedToBuffer, "its 'first' and 'seen' share memory"),
        (Remembers, "its loss is random"),
    ],
)
def test_what_the_first_loss_and_gradients_do_not_show(model: type[Any], reason: str) -> None:
    assert reason in why_not(trainings(maps(model)))


@pytest.mark.parametrize("model", [Shared, Strided])
def test_shared_parameters_stay_shared_and_layouts_do_not_matter(model: type[Any]) -> None:
    kind = maps(model)
    assert why_not(trainings(kind)) == ""
    members, alone = trainings(kind), trainings(kind)
    stacked = Stacked(members)
    for step in range(STEPS):
        for trainer in (stacked, *alone):
            trainer.advance(step)
    for one, other in zip(members, alone, strict=True):
        assert one.model.state_dict().keys() == other.model.state_dict().keys()
        for name, value in one.model.state_dict().items():
            assert apart(value, other.model.state_dict()[name]) < NEAR


def test_the_comparison_leaves_members_and_random_states_as_they_were() -> None:
    members, fresh = trainings(Small), trainings(Small)
    storages = [p.data_ptr() for member in members for p in member.model.parameters()]
    torch.manual_seed(5)
    states = torch.random.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert why_not(members) == ""
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert storages == [p.data_ptr() for member in members for p in member.model.parameters()]
    for member, other in zip(members, fresh, strict=True):
        assert not member.optimizer.state
        assert all(p.grad is None and p.requires_grad for p in member.model.parameters())
        for one, two in zip(member.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(one, two)
