"""The rich plugin's models and tasks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from stagelens import load, run
from stagelens.base.seeds import generator
from stagelens.experiments.training import Training
from stagelens_rich.config import HighDimConfig, RichToyConfig
from stagelens_rich.data.toy import induction_head, mixed_target, sample_tokens
from stagelens_rich.model import MixedTransformer
from stagelens_rich.tasks.toy import HighDim, LayerwiseSchedule, RichToy

SMALL = {"L": 8, "batch_size": 16, "eval_size": 32}


def by_hand(x, p_first, p, g, w_Q, w_K, h):
    """Eqs. 5 and 6 for one sequence x_1..x_L, written out with sums over s = 2..L-1."""
    L = len(x)
    X = dict(enumerate(x, start=1))

    def softmax(scores):
        total = sum(np.exp(value) for value in scores.values())
        return {key: np.exp(value) / total for key, value in scores.items()}

    y = {}
    for s in range(2, L + 1):
        attention = softmax({tau: -p_first * (s - 1 - tau) for tau in range(1, s)})
        y[s] = sum(X[tau] * a for tau, a in attention.items())
    keys = range(2, L)
    pi = softmax({s: -p * (L - 1 - s) for s in keys})
    rho = softmax({s: X[L] * w_Q * w_K * y[s] for s in keys})
    return g * sum(y[s] * pi[s] for s in keys), h * sum(X[s] * rho[s] for s in keys)


def test_the_model_is_equations_5_and_6():
    x = np.random.default_rng(0).normal(size=7)
    model = MixedTransformer(7, torch.full((1, 1), 0.7), torch.full((1, 1), -0.4), sigma=0.3, p_first=0.8)
    with torch.no_grad():
        model.second.p.fill_(0.5)
        model.second.w_V2.fill_(-0.2)
        said = model(torch.tensor(x, dtype=torch.float32)[None, :, None])[0, :, 0]
    assert said.tolist() == pytest.approx(by_hand(x, 0.8, 0.5, 0.3, 0.7, -0.4, -0.2), abs=1e-6)


def test_patterns_are_attention_over_the_tokens_that_eq_5_and_6_sum_over():
    task = RichToy(RichToyConfig(**SMALL))
    model = task.build_model()
    _, cache = model.run_with_cache(task.sample(3, generator(0)))
    first, second = (cache[f"blocks.{layer}.attn.hook_pattern"] for layer in (0, 1))
    assert first.shape == (1, 1, 8, 8) and second.shape == (3, 2, 1, 8)
    assert torch.equal(first[0, 0] > 0, torch.tril(torch.ones(8, 8), diagonal=-1) > 0)
    assert torch.allclose(first[0, 0, 1:].sum(-1), torch.ones(7))
    assert (second[..., [0, 7]] == 0).all() and torch.allclose(second.sum(-1), torch.ones(3, 2, 1))


def test_a_learned_model_has_no_loss():
    config = RichToyConfig(**SMALL, first_steps=0)
    task = RichToy(config)
    model = task.build_model()
    with torch.no_grad():
        for name, value in (("p", 40.0), ("w_V1", 0.5), ("w_V2", 0.5), ("W_Q", 0.49), ("W_K", 0.49)):
            getattr(model.second, name).fill_(value)
        assert task.loss(model, task.sample(50, generator(0))).item() < 1e-12


def test_the_target_mixes_the_token_three_back_with_an_induction_head():
    x = sample_tokens(4, 6, 2, "gaussian", generator(1))
    scores = torch.stack([0.3 * (x[:, 5] * x[:, s - 1]).sum(-1) for s in range(1, 5)], dim=1).softmax(1)
    head = sum(scores[:, [s - 1]] * x[:, s] for s in range(1, 5))
    assert torch.allclose(induction_head(x, 0.3), head, atol=1e-6)
    assert torch.allclose(mixed_target(x, 3.0, 0.3), torch.stack([0.75 * x[:, 3], 0.25 * head], dim=1), atol=1e-6)


def test_boolean_tokens_are_signs_in_equal_numbers():
    x = sample_tokens(2000, 10, 1, "boolean", generator(0))
    assert set(x.unique().tolist()) == {-1.0, 1.0} and abs(x.mean()) < 0.03


def test_each_stage_trains_its_own_layer():
    training = Training(RichToy(RichToyConfig(**SMALL, steps=4, first_steps=2, first_lr=10.0)))
    states = [{name: p.detach().clone() for name, p in training.model.named_parameters()}]
    for step in range(4):
        training.advance(step)
        states.append({name: p.detach().clone() for name, p in training.model.named_parameters()})
    moved = [{name for name in a if not torch.equal(a[name], b[name])} for a, b in pairwise(states)]
    second = {f"blocks.1.attn.{name}" for name in ("p", "w_V1", "w_V2", "W_Q", "W_K")}
    assert moved == [{"blocks.0.attn.p"}, {"blocks.0.attn.p"}, second, second]


def test_the_schedule_is_dense_after_each_start():
    schedule = LayerwiseSchedule(log=10, even=4, first=100)
    planned = schedule.planned(500)
    assert {0, 1, 2, 100, 101, 102, 500} <= set(planned) and planned == tuple(sorted(set(planned)))
    assert LayerwiseSchedule(log=10, even=4).planned(400) == tuple(s - 100 for s in planned if s >= 100)


def test_exact_and_sampled_gradients_agree_in_many_dimensions():
    exact, sampled = (HighDim(HighDimConfig(L=20, D=20, w_star=0.6, sigma_init=0.4, exact=e)) for e in (True, False))
    model = exact.build_model()
    with torch.no_grad():
        model.second.w_V1.fill_(0.3)
        model.second.w_V2.fill_(0.3)
    found = []
    for task, batch in ((exact, None), (sampled, sampled.sample(10_000, generator(0)))):
        model.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        second = model.second
        found.append((loss.item(), second.p.grad.item(), second.w_V1.grad.item(), second.w_V2.grad.item()))
    assert found[0] == pytest.approx(found[1], rel=0.04)


def test_vectors_are_the_diagonals_of_matrices():
    """The same output, closed form and gradients of what both have."""
    vector, matrix = (
        HighDim(HighDimConfig(L=12, D=5, weights=kind, sigma_init=0.3, optimizer="gd")) for kind in ("vector", "matrix")
    )
    one, other = vector.build_model(), matrix.build_model()
    assert one.second.W_Q.shape == (5,) and one.second.W_Q.norm().item() == pytest.approx(0.3, rel=1e-5)
    with torch.no_grad():
        other.second.W_Q.copy_(one.second.W_Q.diag())
        other.second.W_K.copy_(one.second.W_K.diag())
        batch = vector.sample(7, generator(0))
        assert torch.allclose(one(batch), other(batch), atol=1e-6)
        conserved = [next(iter(task.conserved(model).values())) for task, model in ((vector, one), (matrix, other))]
    for task, model in ((vector, one), (matrix, other)):
        task.loss(model, None).backward()
    assert vector.loss(one, None).item() == pytest.approx(matrix.loss(other, None).item(), rel=1e-5)
    assert torch.allclose(one.second.W_Q.grad, other.second.W_Q.grad.diag(), rtol=1e-4, atol=1e-8)
    assert conserved[0].item() == pytest.approx(conserved[1].item(), rel=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small version of Fig. 1, in steps that are large enough to see all phases."""
    settings = {"L": 12, "w_star": 0.6, "sigma_init": 0.05, "steps": 900, "first_steps": 200, "batch_size": 200}
    folder = tmp_path_factory.mktemp("runs")
    done = run("rich/toy", settings={**settings, "eval_size": 500}, runs=folder, report=False)
    return load(done.folder)


def test_a_run_has_both_losses_named_stages_and_scored_times(trained):
    timeline = trained.timeline
    parts = [timeline.scalar(name)[1] for name in ("loss_4gram", "loss_induction")]
    assert np.allclose(sum(parts), timeline.scalar("loss")[1], rtol=1e-5)
    names = [stage.name for stage in trained.stages() if stage.kind == "transition"]
    assert names == ["partial learning", "emergence"]
    scored = {found["name"]: found for found in trained.manifest.predictions}
    assert {"T_I", "T_o", "T_II", "T_III", "plateau"} <= set(scored)
    assert scored["T_III"]["error"] < 0.5 and scored["T_I"]["error"] < 0.3
    assert not trained.manifest.problems


def test_sgd_from_equal_weights_obeys_the_balance_law(trained):
    assert trained.timeline.series("conserved/value").max() < 1e-6


def test_the_flow_task_records_what_the_theorem_speaks_of(tmp_path):
    done = run("rich/flow", settings={"L": 20, "system": "five", "imbalance": 0.5}, runs=tmp_path, report=False)
    scored = {found["name"]: found["error"] for found in done.manifest.predictions}
    assert all(error is not None and error < 0.1 for name, error in scored.items() if name != "plateau")
    assert np.ptp(done.timeline.scalar("conserved/w_Q^2 - w_K^2")[1]) < 1e-9


def test_the_flow_falls_in_the_two_named_drops(tmp_path):
    stages = run("rich/flow", runs=tmp_path, report=False).stages()
    assert [stage.name for stage in stages if stage.kind == "transition"] == ["partial learning", "emergence"]


def test_the_first_layer_flow_grows_like_log_time(tmp_path):
    done = run("rich/flow", settings={"system": "first-layer"}, runs=tmp_path, report=False)
    t, p = done.timeline.scalar("p_first")
    assert np.interp(t[-1], t, p) - np.interp(t[-1] / 10, t, p) == pytest.approx(np.log(10), rel=0.03)
    assert done.timeline.scalar("previous_token")[1][-1] > 0.999
