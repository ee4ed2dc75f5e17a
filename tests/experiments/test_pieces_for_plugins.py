"""The parts for plugins: fixed batches, training distributions, trained models, random matrices, derived defaults."""

from __future__ import annotations

import doctest
from typing import NamedTuple, Self

import numpy as np
import pytest
import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from kit.tasks import Regression, run, weights
from stagelens.base import generator
from stagelens.experiments import (
    Batches,
    Config,
    Diverged,
    FixedBatch,
    Training,
    eval_batch,
    exact_with_hooks,
    haar,
    random_matrices,
    trained,
)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


def test_a_fixed_batch_is_the_same_object_at_every_step():
    batches = FixedBatch(Pair(torch.ones(3), torch.zeros(3)), "cpu")
    assert batches(0) is batches(99) and isinstance(batches(0), Pair)
    assert FixedBatch(None)(5) is None
    assert FixedBatch((torch.ones(2),), "meta")(0)[0].device.type == "meta"


class Shifted(Regression):
    """Trains on inputs that are all larger by 100."""

    def sample_train(self, n, generator):
        x, y = self.sample(n, generator)
        return x + 100, y


@pytest.mark.parametrize("train_size", [0, 20])
def test_training_draws_from_its_own_distribution_and_evaluation_does_not(train_size):
    plain, shifted = (kind(kind.Config(train_size=train_size), 3) for kind in (Regression, Shifted))
    for step in (0, 7):
        assert torch.equal(Batches(shifted)(step)[0], Batches(plain)(step)[0] + 100)
    assert torch.equal(eval_batch(shifted)[0], eval_batch(plain)[0])


def test_a_model_trained_in_memory_is_the_one_of_a_run(tmp_path):
    task = Regression(Regression.Config(steps=30), 0)
    seen = []
    before = torch.get_rng_state()
    model = trained(task, watch=lambda step, model: seen.append((step, model.training, torch.is_grad_enabled())))
    assert torch.equal(torch.get_rng_state(), before) and not model.training
    assert seen == [(step, False, False) for step in range(31)]
    done = run(Regression, tmp_path, settings={"steps": 30}, seed=0)
    for name, value in weights(done).items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_model_that_diverges_is_not_returned():
    with pytest.raises(Diverged, match="step"):
        trained(Regression(Regression.Config(steps=60, lr=1e30), 0))


def test_watching_changes_nothing():
    config = Regression.Config(steps=12)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            trained(Regression(config, 1)).parameters(),
            trained(Regression(config, 1), watch=lambda step, model: model.zero_grad()).parameters(),
            strict=True,
        )
    )
    training = Training(Regression(config, 1))
    for step in range(12):
        training.advance(step)
    for a, b in zip(trained(Regression(config, 1)).parameters(), training.model.parameters(), strict=True):
        assert torch.equal(a, b)


class Scaled(HookedRootModule):
    """y = w x, with a hook on the output."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(1.5))
        self.hook_out = HookPoint()
        self.setup()

    def forward(self, x):
        return self.hook_out(self.w * x)


def exact(model, x, y):
    """Returns E (y - w x)^2 for y = 2 x and x of variance 1, plus the changes that hooks make on the batch."""
    hooked, plain = ((y - said).square().mean() for said in (model(x), model.w * x))
    return exact_with_hooks((2 - model.w).square(), hooked, plain)


def test_an_exact_loss_is_exact_and_hooks_can_still_change_it():
    model, x = Scaled(), torch.tensor([3.0, -1.0])
    assert exact(model, x, 2 * x).item() == pytest.approx(0.25)
    with model.hooks([("hook_out", lambda value, hook: 0 * value)]):
        assert exact(model, x, 2 * x).item() == pytest.approx(0.25 + 20 - 1.25)
    exact(model, x, 2 * x).backward()
    assert model.w.grad.item() == pytest.approx(-1.0)


def test_the_example_of_haar_is_true():
    assert doctest.testmod(random_matrices) == doctest.TestResults(0, 3)


def test_haar_draws_what_the_papers_plugins_have_always_drawn():
    """By QR of a Gaussian matrix, with the signs of R's diagonal: in numpy for one matrix, in torch for several."""
    gaussian = torch.randn(4, 4, generator=generator(0, "eigenvectors"), dtype=torch.float64).numpy()
    q, r = np.linalg.qr(gaussian)
    assert np.array_equal(haar(4, generator(0, "eigenvectors")).numpy(), q * np.sign(np.diagonal(r)))
    for d in (12, 20, 50):
        several = torch.randn(3, d, d, generator=generator(0, "process"), dtype=torch.float64)
        Q, R = torch.linalg.qr(several)
        expected = (Q * torch.diagonal(R, dim1=-2, dim2=-1).sign()[:, None, :]).float()
        assert torch.equal(haar(d, generator(0, "process"), 3).float(), expected)


def test_haar_is_orthogonal_and_uniform():
    found = haar(3, generator(1, "many"), 4000)
    assert torch.allclose(found @ found.mT, torch.eye(3, dtype=found.dtype).expand(4000, 3, 3), atol=1e-12)
    # Of a uniform one, entries have mean 0 and variance 1/n, and the trace has variance 1.
    assert found.mean(0).abs().max() < 0.05 and (found.square().mean(0) - 1 / 3).abs().max() < 0.03
    assert abs(float(found.diagonal(dim1=-2, dim2=-1).sum(-1).var()) - 1) < 0.1


class Derived(Config):
    width: int = Field(4, ge=1)
    lr: float = 0.0

    @model_validator(mode="after")
    def _derived(self) -> Self:
        self.derive(lr=lambda: 1 / self.width)
        return self


def test_a_derived_default_follows_from_the_other_keys_unless_it_is_given():
    assert Derived().lr == 0.25 and Derived(width=10).lr == 0.1 and Derived(width=10, lr=3.0).lr == 3.0
    assert Derived.model_validate({"width": 5}).model_dump() == {"width": 5, "lr": 0.2}
    assert Derived.model_validate(Derived(width=5).model_dump()).lr == 0.2
    with pytest.raises(ValidationError, match="frozen"):
        Derived().lr = 2.0
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Derived(width=0)
