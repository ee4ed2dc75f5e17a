"""The tasks: attention against the formula, training against exact descent, and what a run records."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from stagelens.base.seeds import generator
from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training
from stagelens_linear_icl import theory
from stagelens_linear_icl.data import examples, full_moments, sample_sequences
from stagelens_linear_icl.flow import LinearFlow, descend
from stagelens_linear_icl.losses import exact_loss, loss_of
from stagelens_linear_icl.model import (
    AllBlocksAttention,
    HeadWeights,
    InContextRegressor,
    SeparateAttention,
    initial_weights,
    product,
    stack,
    token_frame,
)
from stagelens_linear_icl.tasks import RawSequences, Separate


def task(kind, preset="quick", seed=0, **settings):
    given = [f"{key}={value}" for key, value in settings.items()]
    return kind(make_config(kind.Config, kind.presets, preset, given), seed)


def attention_by_hand(X, W_V, W_K, W_Q):
    """Eq. 2's first line for one sequence, columns as tokens: the last row of the sum over heads, [N+1]."""
    N = X.shape[1] - 1
    return sum(v @ X @ X.T @ k.T @ q @ X / N for v, k, q in zip(W_V, W_K, W_Q, strict=True))


@pytest.mark.parametrize("rank", [1, 2])
def test_attention_is_that_of_equation_2(rank):
    covariance = task(Separate).covariance
    sequences = sample_sequences(covariance, 7, 5, generator(0, "eval"))
    attention = AllBlocksAttention(initial_weights(3, rank, 4, 1.0, 0))
    with torch.no_grad():
        for parameter in attention.parameters():  # no zero blocks
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    said = attention(sequences.tokens)[:, 0]
    for X, ours in zip(sequences.tokens.mT, said, strict=True):
        expected = attention_by_hand(X, attention.W_V, attention.W_K, attention.W_Q)[-1]
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_with_varying_lengths_each_query_is_answered_from_the_tokens_before_it(kind):
    sequences = sample_sequences(task(Separate).covariance, 6, 3, generator(0, "eval"))
    every = AllBlocksAttention(initial_weights(2, 2, 4, 1.0, 0), kind, every=True)
    with torch.no_grad():
        every.W_V.normal_(generator=torch.Generator().manual_seed(1))
        every.W_K.normal_(generator=torch.Generator().manual_seed(2))
    last = AllBlocksAttention(initial_weights(2, 2, 4, 1.0, 0), kind)
    last.load_state_dict(every.state_dict())
    said = every(sequences.tokens)
    assert said.shape == (3, 6)
    for n in range(2, 8):
        shorter = type(sequences)(sequences.x[:, :n], sequences.y[:, :n])
        torch.testing.assert_close(said[:, n - 2], last(shorter.tokens)[:, 0])


def test_softmax_weights_sum_to_one_and_scores_are_products_of_keys_and_queries():
    model = InContextRegressor(AllBlocksAttention(initial_weights(2, 1, 4, 1.0, 0), "softmax"), 7, torch.zeros(5, 4, 4))
    tokens = sample_sequences(task(Separate).covariance, 7, 4, generator(0, "eval")).tokens
    _, cache = model.run_with_cache(tokens)
    pattern = cache["blocks.0.attn.hook_pattern"]
    assert pattern.shape == (4, 2, 1, 8)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(4, 2, 1).double())
    scores = torch.einsum("nqhe,nkhe->nhqk", cache["blocks.0.attn.hook_q"], cache["blocks.0.attn.hook_k"])
    torch.testing.assert_close(cache["blocks.0.attn.hook_attn_scores"], scores)
    assert cache["blocks.0.attn.hook_v"].shape == (4, 8, 2, 1) and cache["blocks.0.attn.hook_z"].shape == (4, 1, 2, 1)


def test_the_token_frame_keeps_scores_and_shows_keys_where_they_point():
    W_K = torch.randn(3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frame = token_frame(W_K)
    torch.testing.assert_close(frame.mT @ frame, torch.eye(2).double().expand(3, 2, 2))
    shown = frame @ W_K  # (K^T K)^(1/2): symmetric, and its square is K^T K
    torch.testing.assert_close(shown, shown.mT)
    torch.testing.assert_close(shown @ shown, W_K.mT @ W_K)


@pytest.mark.parametrize(("steps", "settings"), [(1000, {}), (150, {"R": 2, "loss": "next-token", "w_init": 1.0})])
def test_training_on_sequences_with_zero_blocks_is_exact_descent(steps, settings):
    """Same data, same start, same rate: the same loss."""
    shared = {"P": 60, "N": 9, "steps": steps, "w_init": 0.5, **settings}
    raw = Training(task(RawSequences, batch_size=60, lr=0.4, blocks="zero", **shared))
    exact = task(Separate, lr=0.4, **shared)
    losses = []
    for step in range(steps):
        raw.advance(step)
        losses.append(raw.loss.item())
    path = descend(stack([exact.start()]), exact.moments, 0.4, steps - 1, record=range(steps))
    np.testing.assert_allclose(losses, path.loss[:, 0], rtol=1e-5)
    assert losses[-1] < 0.8 * losses[0]


def test_the_trainer_takes_the_same_steps_as_the_stack():
    exact = task(Separate, P=50, steps=300, w_init=0.5, R=2)
    training = Training(exact)
    for step in range(300):
        training.advance(step)
    path = descend(stack([exact.start()]), exact.moments, exact.config.lr, 300, record=[300])
    for ours, theirs in zip(training.model.attention.core(), path.weights, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs[0, 0], atol=1e-12)


@pytest.mark.parametrize(("kind", "settings"), [(Separate, {}), (RawSequences, {"batch_size": 20, "eval_size": 4000})])
def test_with_a_training_set_loss_is_the_populations_and_train_loss_is_its_own(kind, settings, tmp_path):
    """Theory's levels are the population's, so they belong to `loss`."""
    shared = {"P": 20, "steps": 30, "w_init": 1.0, "lr": 0.1, **settings}
    run = sl.run(kind, settings=shared, runs=tmp_path, report=False, probes=["weight_norms"])
    problem, loss, train = run.experiment, run.timeline.scalar("loss"), run.timeline.scalar("train_loss")
    assert {p["series"] for p in run.predictions if p["kind"] == "level"} == {"loss"}
    exact = task(Separate, **{**shared, "eval_size": 64, "batch_size": 20})
    for step in (0, 10, 30):
        model = run.model_at(step)
        weights = [part.detach().numpy() for part in model.attention.core()]
        expected = loss_of(product(HeadWeights(*weights)), exact.population)
        measured = loss[1][list(loss[0]).index(step)]
        if kind is Separate:
            assert measured == pytest.approx(expected, rel=1e-9)
        else:  # 4,000 sequences, and blocks in addition to those of Eq. 2
            assert measured == pytest.approx(expected, rel=0.1)
    before = run.model_at(29)  # the loss on the training set is that before the last step
    assert train[1][-1] == pytest.approx(problem.loss(before, problem.batches("cpu")(29)).item(), rel=1e-5)
    assert abs(train[1][-1] / loss[1][-1] - 1) > 1e-3  # so few sequences are not the population


def test_the_loss_on_sequences_is_the_exact_one_and_hooks_can_change_it():
    exact = task(Separate, w_init=1.0)
    model = exact.build_model()
    batch = exact.sample(40, generator(0, "eval"))
    torch.testing.assert_close(exact.loss(model, batch), exact.loss(model, exact.population))
    nothing = [("blocks.0.attn.hook_z", lambda z, hook: torch.zeros_like(z))]
    with model.hooks(fwd_hooks=nothing):
        ablated = exact.loss(model, batch)
    y = batch.y[:, -1]
    said = model(batch.tokens)[:, 0]
    gain = y.square().mean() - (y - said).square().mean()
    torch.testing.assert_close(ablated - exact.loss(model, batch), gain)


def test_zero_blocks_that_are_frozen_stay_zero_and_others_move():
    for blocks, moves in (("zero", False), ("trained", True)):
        training = Training(task(RawSequences, P=30, batch_size=30, N=5, w_init=1.0, blocks=blocks))
        for step in range(5):
            training.advance(step)
        assert (float(training.model.attention.zero_blocks()) > 0) is moves


def test_fresh_batches_and_passes_over_the_set():
    fresh = task(RawSequences, P=0, batch_size=10).batches("cpu")
    assert not torch.equal(fresh(0).x, fresh(1).x)
    passes = task(RawSequences, P=20, batch_size=10).batches("cpu")
    assert passes(0).x.shape[0] == 10
    whole = task(RawSequences, P=20, batch_size=20).batches("cpu")
    assert torch.equal(whole(0).x, whole(7).x) and whole(0).x.shape[0] == 20


def test_eigenvectors_stay_the_same_between_seeds_and_starts_do_not():
    one, other = task(Separate, seed=0), task(Separate, seed=1)
    np.testing.assert_array_equal(one.covariance.eigenvectors, other.covariance.eigenvectors)
    assert not np.array_equal(one.start().v, other.start().v)
    turned = task(Separate, eigenvectors=1)
    assert not np.array_equal(one.covariance.eigenvectors, turned.covariance.eigenvectors)


def test_a_start_has_the_size_of_equation_20():
    weights = stack([initial_weights(8, 2, 4, 0.3, seed) for seed in range(200)])
    for part in weights:  # Eq. 21
        squared = (part**2).reshape(200, -1).sum(-1)
        assert np.mean(squared) == pytest.approx(0.3**2, rel=0.1)


def test_spectra_are_lists_power_laws_and_matrices():
    np.testing.assert_allclose(task(Separate, D=3, spectrum="power:2").lam, np.array([36, 9, 4]) / 49)
    matrix = task(Separate, D=2, spectrum="[[2,1],[1,2]]").covariance
    np.testing.assert_allclose(matrix.eigenvalues, [3, 1])
    np.testing.assert_allclose(matrix.matrix, [[2, 1], [1, 2]], atol=1e-12)
    np.testing.assert_allclose(task(Separate, D=2, spectrum="0.1,0.5").lam, [0.5, 0.1])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Fig. 1 with large steps."""
    settings = {"lr": 1.0, "steps": 1500, "w_init": 0.2, "eval_size": 64}
    return sl.run("linear-icl", settings=settings, seed=0, runs=tmp_path_factory.mktemp("runs"), report=False)


def test_a_run_has_plateaus_at_the_levels_of_theory(run):
    assert run.manifest.status == "finished" and not run.manifest.problems
    whole = {name for name in run.manifest.skipped if "/" not in name}
    assert whole == {"induction", "kl_to_references", "loss_by_position"}
    levels = [p for p in run.predictions if p["kind"] == "level"]
    assert len(levels) == 5 and all(p["error"] < 0.03 for p in levels), levels
    assert run.final["loss"] == pytest.approx(
        theory.plateau_losses(np.array([0.4, 0.3, 0.2, 0.1]), 1 / 31)[4], rel=1e-3
    )


def test_a_run_counts_the_principal_components(run):
    count = run.timeline.series("principal_components/count")
    assert count[0] == 0 and count[-1] == 4 and (np.diff(count) >= 0).all()
    assert {0, 1, 2, 3, 4} == set(count)


def test_a_run_aligns_keys_with_the_eigenvectors(run):
    reference = run.timeline["qk_alignment/reference"]
    assert list(reference.coords["direction"].values) == ["e1", "e2", "e3", "e4"]
    last = reference.isel(step=-1, layer=0).sel(side="key")
    assert (last.max("head") > 0.98).all()
    ours = run.timeline["principal_components/key"].isel(step=-1)
    np.testing.assert_allclose(last.values, ours.values, atol=1e-6)


def test_a_run_follows_the_flow_and_the_scalar_equation(run):
    named = {p["name"]: p for p in run.predictions}
    assert {"gradient flow", "drop 1", "drop 4"} <= named.keys()
    assert any(name.startswith("v of head") for name in named)
    times = {m: named[f"drop {m}"] for m in (1, 4)}
    for found in times.values():  # an estimate of the order of magnitude
        assert 0.1 < found["measured"] / found["expected"] < 10


def test_a_run_nearly_conserves_what_the_flow_conserves(run):
    assert run.timeline.series("conserved/value").shape[-1] == 8
    change = np.abs(run.timeline.series("conserved/value") - run.timeline.series("conserved/value")[0])
    assert change.max() < 0.05


def test_a_flow_is_recorded_under_the_same_names(tmp_path):
    found = sl.run("linear-icl/flow", settings={"time": 300, "points": 30, "R": 2}, runs=tmp_path, report=False)
    assert found.manifest.status == "finished", found.manifest.error
    assert {"loss", "principal_components/count", "principal_components/value", "conserved/drift"} <= set(
        found.timeline
    )
    assert found.timeline.series("conserved/drift").max() < 1e-3
    assert isinstance(found.experiment, LinearFlow)


def test_examples_of_the_last_token_are_those_of_equation_2():
    sequences = sample_sequences(task(Separate).covariance, 5, 2, generator(0, "eval"))
    beta, x, y = examples(sequences)
    torch.testing.assert_close(beta[0, 0], sum(sequences.y[0, n] * sequences.x[0, n] for n in range(5)) / 5)
    assert torch.equal(x[:, 0], sequences.x[:, -1]) and torch.equal(y[:, 0], sequences.y[:, -1])


def test_separate_attention_has_the_zero_blocks():
    W_V, W_K, W_Q = SeparateAttention(initial_weights(2, 2, 3, 1.0, 0)).matrices()
    assert not W_V[:, :-1].any() and not W_K[..., -1].any() and not W_Q[..., -1].any()


def test_the_exact_loss_of_all_blocks_is_that_of_the_sequences():
    raw = task(RawSequences, N=6, R=2, w_init=1.0)
    model = raw.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
    sequences = raw.sample(30, generator(0, "train"))
    torch.testing.assert_close(
        exact_loss(model.attention.tensor(), full_moments(sequences)), raw.loss(model, sequences)
    )


def test_a_whitened_training_set_has_mean_zero_and_unit_task_vectors():
    made = task(Separate, P=400, whiten=True)
    x, y = made.training_set
    assert x.mean(0).abs().max() < 1e-12
    w = torch.linalg.lstsq(x, y[..., None]).solution.squeeze(-1)  # y = w^T x exactly, [n, D]
    torch.testing.assert_close(torch.cov(w.T), torch.eye(4, dtype=torch.float64), atol=1e-8, rtol=0)
    assert w.mean(0).abs().max() < 1e-8


def test_values_start_as_much_smaller_as_the_config_says():
    small, whole = task(Separate, value_init=0.25).start(), task(Separate).start()
    np.testing.assert_allclose(small.v, whole.v / 4)
    np.testing.assert_array_equal(small.k, whole.k)


def test_published_values_train_as_the_authors_code_does():
    """Their network sums over the context. Its descent from small entries at 0.02 is ours with the preset's values."""
    config = task(Separate, "paper", P=200, steps=300).config
    made = Separate(config, seed=3)
    N, start = config.N, made.start()
    entry = N ** (-1 / 3)
    theirs = HeadWeights(*(entry * part for part in start))
    power, cross, second = made.moments
    summed = type(made.moments)(power, N * cross, N**2 * second)  # beta is the sum over the context
    ours = descend(stack([start]), made.moments, config.lr, 300, [0, 300])
    sums = descend(stack([theirs]), summed, 0.02, 300, [0, 300])
    np.testing.assert_allclose(sums.loss, ours.loss, rtol=1e-9)
    many = Separate(config.model_copy(update={"H": 4000}), seed=0)
    assert config.H == 5 and many.start().k.std() * np.sqrt(4000 / 5) * entry == pytest.approx(0.01, rel=0.02)
    assert many.start().v.std() * np.sqrt(4000 / 5) * entry == pytest.approx(0.01, rel=0.03)
