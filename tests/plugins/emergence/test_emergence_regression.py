"""Single-location regression by a transformer: data, contract and error messages."""

from __future__ import annotations

import re

import pytest
import torch

import stagelens as sl
from stagelens.base.errors import UsageError
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import make_config
from stagelens.host.host import make_host
from stagelens.testing import check_task_device
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


@pytest.mark.parametrize("settings", [{}, {"B": 2, "p": 0.5}, {"position": "fixed", "feature": False}])
def test_the_task_runs_on_any_device(settings):
    check_task_device(Regression(RegressionConfig(**SMALL, **settings)))


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


def test_every_probe_runs_or_says_why_not():
    task = Regression(RegressionConfig(**SMALL))
    probes = [name for name, _ in make_host().probes]
    recorder = sl.Recorder(task.build_model(), probes, eval_batch(task), task=task)
    for step in range(2):
        recorder.measure(step)
    assert recorder.problems == {}
    assert {"attention_sparsity", "relevant_attention", "weight_norms"} <= recorder.probes.keys()


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
