"""Single-location regression by a transformer: data, contract and error messages."""

from __future__ import annotations

import re

import pytest
import torch

from stagelens.base.errors import UsageError
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import make_config
from stagelens_emergence.config import RegressionConfig
from stagelens_emergence.data.transformers import sample_positions, sample_regression
from stagelens_emergence.tasks.regression import Regression

SMALL = {"T": 6, "d": 3, "d_model": 8, "d_head": 2, "batch_size": 4, "eval_size": 8}


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# --- data ---


def test_positions_are_b_different_ones_and_uniform():
    positions = sample_positions(20_000, 5, 2, stream())
    assert (positions.sum(1) == 2).all()
    assert positions.float().mean(0).tolist() == pytest.approx([0.4] * 5, abs=0.015)


@pytest.mark.parametrize("B", [1, 3])
def test_the_target_is_w_times_the_relevant_token(B):
    W = torch.randn(4, 4, generator=stream())
    batch = sample_regression(50, W, sample_positions(50, 7, B, stream()), stream())
    assert batch.x.shape == (50, 7, 5)
    assert torch.equal(batch.x[..., -1].bool(), batch.relevant)
    for x, y, relevant in zip(*batch, strict=True):
        for token in x[relevant]:
            assert torch.allclose(W @ token[:-1], y, atol=1e-5)


def test_tokens_have_variance_one_over_d():
    batch = sample_regression(5000, torch.eye(4), sample_positions(5000, 3, 1, stream()), stream(), feature=False)
    assert batch.x.shape == (5000, 3, 4)
    assert batch.x.var().item() == pytest.approx(0.25, rel=0.03)


def test_the_relevant_token_is_the_repeated_one_with_probability_p():
    batch = sample_regression(20_000, torch.eye(3), sample_positions(20_000, 2, 1, stream()), stream(), p=0.3)
    repeated = (batch.y == torch.tensor([1.0, 0.0, 0.0])).all(1)
    assert repeated.float().mean().item() == pytest.approx(0.3, abs=0.015)


# --- the task ---


def test_a_new_model_has_d1s_initial_loss_of_one_half():
    task = Regression(RegressionConfig(T=4, d=16, eval_size=4096))
    assert task.loss(task.build_model(), eval_batch(task)).item() == pytest.approx(0.5, rel=0.05)


def test_it_is_evaluated_without_cross_sample_repetition_and_trained_with_it():
    task = Regression(RegressionConfig(**SMALL, p=1.0))
    columns = task.W[:, 0]
    assert torch.allclose(task.batches("cpu")(0).y, columns.expand(4, -1))
    assert not torch.isclose(task.sample(8, stream()).y, columns).all(1).any()


def test_a_fixed_position_is_the_seed_s_and_stays():
    config = RegressionConfig(**SMALL | {"T": 40}, position="fixed")
    first, second = (Regression(config, seed).sample(3, stream()).relevant for seed in (0, 1))
    assert (first == first[:1]).all()
    assert not torch.equal(first, second)


def test_sgd_is_plain_and_adam_is_adam():
    for name, kind in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)):
        task = Regression(RegressionConfig(**SMALL, optimizer=name))
        optimizer = task.optimizer(task.build_model())
        assert type(optimizer) is kind
        assert optimizer.param_groups[0].get("momentum", 0) == 0


def test_heads_widen_the_attention_and_layers_deepen_it():
    task = Regression(RegressionConfig(**SMALL, heads=3, layers=5))
    model = task.build_model()
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_head) == (5, 3, 2)
    assert model.cfg.normalization_type is None


def test_the_paper_preset_is_table_1():
    config = make_config(RegressionConfig, Regression.presets, "paper", [])
    sizes = (
        config.layers,
        config.heads,
        config.d_model,
        config.d_head,
        config.mlp_factor,
        config.batch_size,
        config.lr,
    )
    assert sizes == (2, 4, 256, 64, 4, 32, 1e-4)


# --- mistakes ---

WRONG = {
    "T=1": "T=1",
    "d=1": "d=1",
    "B=33": "B=33",
    "B=0": "B=0",
    "p=1.1": "p=1.1 is not a probability",
    "p=-1": "p=-1 is not a probability",
    "feature=false": "give position=fixed",
    "optimizer=lion": "'adam' or 'sgd'",
    "d_model=33": "multiple of 2",
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_mistake_gets_one_line(setting):
    with pytest.raises(UsageError, match=re.escape(WRONG[setting])) as raised:
        make_config(RegressionConfig, Regression.presets, "quick", [setting])
    assert "\n" not in str(raised.value)


def test_with_init_torch_weights_and_biases_start_as_those_of_linear_layers():
    """Uniform with the bound 1/sqrt(inputs): the embedding depends on d_in alone, the unembedding still starts at 0."""
    config = Regression.Config(T=8, d=15, d_model=64, d_head=16, heads=4, init="torch")
    model = Regression(config, seed=0).build_model()
    inputs = {"embed.W_E": 16, "W_Q": 64, "b_K": 64, "W_O": 64, "b_O": 64, "W_in": 64, "W_out": 128, "b_out": 128}
    named = {name: value.detach() for name, value in model.named_parameters()}
    for name, count in inputs.items():
        values = named[name if name in named else next(full for full in named if full.endswith(f".{name}"))]
        bound = count**-0.5
        assert float(values.abs().max()) <= bound, name
        assert float(values.abs().max()) > 0.8 * bound, name
        if values.numel() > 1000:
            assert float(values.std()) == pytest.approx(bound / 3**0.5, rel=0.05), name
    assert not model.unembed.W_U.any()
    other = Regression(config, seed=1).build_model()
    assert not torch.equal(model.embed.W_E, other.embed.W_E)
    plain = Regression(config.model_copy(update={"init": "lens"}), seed=0).build_model()
    assert float(plain.embed.W_E.detach().std()) == pytest.approx(0.8 / 64**0.5, rel=0.05)
