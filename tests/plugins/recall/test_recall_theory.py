"""The recall plugin's mathematics against enumeration, sampling, autograd and scipy."""

from __future__ import annotations

from itertools import product
from math import factorial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.integrate import solve_ivp
from torch.nn.functional import one_hot

from stagelens_recall import data, losses, theory
from stagelens_recall.model import SimplifiedTransformer


def random_model(order: int, heads: int, seed: int = 0, scale: float = 1.0) -> SimplifiedTransformer:
    stream = torch.Generator().manual_seed(seed)
    betas = tuple((0.3 + torch.rand(heads, generator=stream)).tolist())
    return SimplifiedTransformer(order, betas, scale, stream).double()


def parameters(model: SimplifiedTransformer) -> tuple[np.ndarray, np.ndarray]:
    return model.w.detach().numpy(), model.beta.detach().numpy()


# --- data ---


def test_a_sequence_holds_every_permutation_once_and_ends_with_the_answer():
    sequences = data.sample_sequences(3, 5, 40, torch.Generator().manual_seed(0))
    assert sequences.shape == (40, data.context_length(3) + 1) == (40, factorial(4) + 3 + 1)
    maps, queries = data.maps_of(sequences, 3), data.queries_of(sequences, 3)
    context = data.all_permutations(3)
    for sequence, f, query in zip(sequences, maps, queries, strict=True):
        blocks = sequence[: factorial(4)].reshape(6, 4)
        assert torch.equal(blocks[:, :3], context) and torch.equal(blocks[:, 3], f)
        (where,) = (context == query).all(-1).nonzero()
        assert f[where] == sequence[-1]
    assert set(maps.flatten().tolist()) == {3, 4, 5, 6, 7}


def test_the_example_of_the_documentation_is_a_sequence():
    """01A 10B | 10? B"""
    sequences = data.sample_sequences(2, 2, 100, torch.Generator().manual_seed(0)).tolist()
    assert "01A 10B | 10? B" in (data.__doc__ or "") and [0, 1, 2, 1, 0, 3, 1, 0, 3] in sequences


def test_maps_and_queries_are_uniform():
    sequences = data.sample_sequences(3, 4, 6000, torch.Generator().manual_seed(0))
    share = one_hot(data.maps_of(sequences, 3) - 3, 4).double().mean((0, 1))
    assert torch.allclose(share, torch.full((4,), 0.25, dtype=torch.double), atol=0.01)
    place = data.asked_in(data.queries_of(sequences, 3)).double().mean(0)
    assert torch.allclose(place, torch.full((6,), 1 / 6, dtype=torch.double), atol=0.02)


def test_the_partial_predictor_counts_the_responses_of_permutations_that_match():
    # 012A 021B 102C 120A 201B 210C, asked 120: token 1 from the end is 0, shared with 210 (C)
    sequence = torch.tensor([[0, 1, 2, 3, 0, 2, 1, 4, 1, 0, 2, 5, 1, 2, 0, 3, 2, 0, 1, 4, 2, 1, 0, 5, 1, 2, 0, 3]])
    assert data.response_reference(sequence, 3, 6, (1,)).exp()[0].tolist() == [0, 0, 0, 0.5, 0, 0.5]
    assert data.response_reference(sequence, 3, 6, (1, 2)).exp()[0].tolist() == [0, 0, 0, 1, 0, 0]
    assert torch.allclose(data.response_reference(sequence, 3, 6, ()).exp()[0, 3:], torch.full((3,), 1 / 3))


# --- the exact loss ---


@pytest.mark.parametrize("order, heads", [(2, 1), (3, 2), (4, 3), (4, 4)])
def test_one_query_represents_all_pairs_of_permutations(order, heads):
    model = random_model(order, heads)
    queries = data.all_permutations(order)
    log_s = model(queries)
    each = [losses.mean_dot_product(log_s[[i]], data.asked_in(queries[[i]]), 4).item() for i in range(len(queries))]
    assert np.ptp(each) < 1e-14
    assert each[0] == pytest.approx(theory.population_loss(*parameters(model), 4), abs=1e-14)


@pytest.mark.parametrize("order, responses", [(2, 2), (2, 5), (3, 2), (3, 3)])
def test_the_exact_losses_equal_the_mean_over_every_map(order, responses):
    """All |R|^(k!) maps, each with every query, through the probability of the right response."""
    model = random_model(order, order - 1)
    s = model(data.all_permutations(order)[:1]).exp()[0].detach().numpy()
    probability = [s[np.array(f) == f[0]].sum() for f in product(range(responses), repeat=len(s))]
    query = data.all_permutations(order)[:1]
    asked, log_s = data.asked_in(query), model(query)
    assert losses.mean_dot_product(log_s, asked, responses).item() == pytest.approx(1 - np.mean(probability), abs=1e-13)
    expected = -np.mean(np.log(probability))
    assert losses.mean_cross_entropy(log_s, asked, responses).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", ["dot-product", "cross-entropy"])
def test_the_sampled_loss_is_within_three_standard_errors_of_the_exact_one(kind):
    model = random_model(4, 3, scale=1.0)
    sequences = data.sample_sequences(4, 4, 20_000, torch.Generator().manual_seed(5))
    probability = losses.answer_probability(model(data.queries_of(sequences, 4)), sequences, 4).detach()
    each = 1 - probability if kind == "dot-product" else -probability.log()
    query = data.all_permutations(4)[:1]
    mean = losses.mean_dot_product if kind == "dot-product" else losses.mean_cross_entropy
    exact = mean(model(query), data.asked_in(query), 4).item()
    assert abs(each.mean().item() - exact) < 3 * each.std().item() / len(each) ** 0.5
    assert losses.answer_loss(probability.log(), kind).item() == pytest.approx(each.mean().item())


def test_the_simplified_model_is_a_windowed_two_layer_attention_over_the_sequence():
    """A0-A3 written over tokens, position by position, as A.2 has them."""
    k, model = 3, random_model(3, 2)
    w, beta = parameters(model)
    sequences = data.sample_sequences(k, 4, 5, torch.Generator().manual_seed(2)).numpy()
    for sequence in sequences:
        tokens, end = sequence[:-1], len(sequence) - 1
        scores, answers = [], []
        for t in range(k, end):
            if tokens[t] < k:
                continue
            score = 0.0
            for h in range(1, len(beta) + 1):
                pattern = np.exp(w[h - 1]) / np.exp(w[h - 1]).sum()
                fetched = sum(pattern[i - 1] * np.eye(k)[tokens[t - i]] for i in range(1, k + 1))
                score += beta[h - 1] ** 2 * np.eye(k)[tokens[end - h]] @ (np.eye(k) - 1 / k) @ fetched
            scores.append(score)
            answers.append(tokens[t])
        s = np.exp(scores) / np.exp(scores).sum()
        expected = s[np.array(answers) == sequence[-1]].sum()
        batch = torch.tensor(sequence[None])
        measured = losses.answer_probability(model(data.queries_of(batch, k)), batch, k).item()
        assert measured == pytest.approx(expected, abs=1e-12)


# --- theory ---


def test_the_plateaus_of_order_four():
    assert [theory.plateau_loss(4, 4, j) for j in range(5)] == [0.71875, 0.625, 0.375, 0, 0]


@pytest.mark.parametrize("matched", [0, 1, 2, 3])
def test_the_plateaus_are_the_losses_of_the_partial_predictors(matched):
    query = data.all_permutations(4)[:1]
    log_s = data.recall_reference(query, tuple(range(1, matched + 1))).double()
    asked = data.asked_in(query)
    expected = theory.plateau_loss(4, 4, matched)
    assert losses.mean_dot_product(log_s, asked, 4).item() == pytest.approx(expected, abs=1e-7)
    expected = theory.plateau_cross_entropy(4, 4, matched)
    assert losses.mean_cross_entropy(log_s, asked, 4).item() == pytest.approx(expected, abs=1e-6)


def test_the_cross_entropy_of_the_first_plateau_approaches_log_r_as_permutations_grow():
    assert theory.plateau_cross_entropy(8, 4, 0) == pytest.approx(np.log(4), abs=1e-4)
    assert theory.plateau_cross_entropy(4, 4, 3) == 0


@given(st.integers(2, 5), st.integers(2, 6), st.integers(0, 1000))
def test_the_population_gradient_is_autograds(order, responses, seed):
    model = random_model(order, max(1, order - 1), seed)
    query = data.all_permutations(order)[:1]
    losses.mean_dot_product(model(query), data.asked_in(query), responses).backward()
    d_w, d_beta = theory.population_gradient(*parameters(model), responses)
    assert np.allclose(d_w, model.w.grad.numpy(), atol=1e-14)
    assert np.allclose(d_beta, model.beta.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize("order, gain", [(2, 1.0), (3, 1.0), (4, 1.0), (4, 1.25), (5, 1.2)])
def test_theorem_31_is_the_population_gradient_on_its_manifold(order, gain):
    alpha, beta, shift = 0.7, 0.9, 0.3
    w = np.zeros((order - 1, order))
    w[0], w[0, 0] = shift, alpha + shift
    betas = np.zeros(order - 1)
    betas[0] = beta
    d_w, d_beta = theory.population_gradient(w, betas, 4, gain)
    d_alpha, rate = theory.first_jump_rates(alpha, beta, order, 4, gain)
    assert d_w[0, 1] - d_w[0, 0] == pytest.approx(d_alpha, rel=1e-12)
    assert -d_beta[0] == pytest.approx(rate, rel=1e-12)
    assert np.ptp(d_w[0, 1:]) < 1e-16 and not d_w[1:].any() and not d_beta[1:].any()
    loss = theory.population_loss(w, betas, 4, gain)
    assert theory.first_jump_loss(alpha, beta, order, 4, gain) == pytest.approx(loss, abs=1e-14)


@given(st.integers(2, 8), st.floats(0.01, 4), st.floats(0.01, 4))
def test_the_proofs_sign_conserves_and_the_statements_does_not(order, alpha, beta):
    d_alpha, d_beta = theory.first_jump_rates(alpha, beta, order, 4)
    step = 1e-5
    rates = []
    for sign in (1, -1):
        slope = (theory.f(alpha + step, order, sign) - theory.f(alpha - step, order, sign)) / (2 * step)
        rates.append(slope * d_alpha - beta * d_beta / 2)
    size = abs(beta * d_beta / 2)
    assert abs(rates[0]) < 1e-5 * size
    assert abs(rates[1]) > 0.1 * size


@given(st.integers(2, 5), st.integers(0, 1000))
def test_every_head_keeps_the_differential_relation_of_beta_and_w(order, seed):
    """d(beta^2) = (4/k) (sum e^w) d(sum e^-w) off the theorem's manifold too; and the sum of w never moves."""
    model = random_model(order, max(1, order - 1), seed)
    w, beta = parameters(model)
    d_w, d_beta = theory.population_gradient(w, beta, 4)
    assert np.allclose(d_w.sum(1), 0, atol=1e-14)
    right = 4 / order * np.exp(w).sum(1) * (-np.exp(-w) * d_w).sum(1)
    assert np.allclose(2 * beta * d_beta, right, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("epsilon", [0.3, 0.03])
def test_the_escape_time_is_that_of_the_integrated_equations(epsilon):
    expected = theory.escape_time(epsilon, 4, 4)
    half = (theory.plateau_loss(4, 4, 0) + theory.plateau_loss(4, 4, 1)) / 2

    def crossing(t, y):
        return theory.first_jump_loss(y[0], y[1], 4, 4) - half

    crossing.terminal = True
    solved = solve_ivp(
        lambda t, y: theory.first_jump_rates(y[0], y[1], 4, 4), (0, 2 * expected), [0, epsilon],
        events=crossing, rtol=1e-10, atol=1e-13, method="DOP853",
    )  # fmt: skip
    assert solved.t_events[0][0] == pytest.approx(expected, rel=1e-6)


def test_the_escape_time_approaches_its_law_as_beta_shrinks():
    ratio = [theory.escape_time(e, 4, 4) / theory.escape_law(e, 4, 4) for e in (0.1, 0.01, 0.001)]
    assert ratio[0] < ratio[1] < ratio[2] < 1
    assert ratio[2] == pytest.approx(1, abs=0.002)


def test_alpha_on_the_first_plateau_follows_the_tangent():
    epsilon = 1e-3
    end = 0.9 * theory.escape_law(epsilon, 4, 4)
    solved = solve_ivp(
        lambda t, y: theory.first_jump_rates(y[0], y[1], 4, 4), (0, end), [0, epsilon], rtol=1e-10, atol=1e-14
    )
    assert solved.y[0, -1] == pytest.approx(theory.small_alpha(end, epsilon, 4, 4), rel=0.02)


def test_the_conserved_quantity_is_the_same_for_tensors_and_arrays():
    model = random_model(4, 3)
    w, beta = parameters(model)
    found = theory.conserved(theory.alpha_of(model.w), model.beta, 4, xp=torch)
    assert np.allclose(found.detach().numpy(), theory.conserved(theory.alpha_of(w), beta, 4), atol=1e-12)
