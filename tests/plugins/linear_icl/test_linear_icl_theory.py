"""The paper's formulas against numbers: Monte Carlo, autograd, quadrature and descent itself."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
import torch

from stagelens.base.seeds import generator
from stagelens_linear_icl import theory
from stagelens_linear_icl.data import (
    covariance_of,
    examples,
    mean_inverse_length,
    moments_of,
    population_moments,
    random_covariance,
    sample_sequences,
)
from stagelens_linear_icl.flow import LinearFlow, descend, gradient_flow, largest_rate
from stagelens_linear_icl.losses import exact_loss, loss_of, rates, sharpness
from stagelens_linear_icl.model import InContextRegressor, SeparateAttention, initial_weights, product, stack
from stagelens_linear_icl.predictions import FlowReference, ValueCurve
from stagelens_linear_icl.tasks import Separate

LAM = np.array([0.4, 0.3, 0.2, 0.1])
N = 31


@pytest.fixture(scope="module")
def covariance():
    return random_covariance(LAM, generator(0, "eigenvectors"))


@pytest.fixture(scope="module")
def population(covariance):
    return population_moments(covariance, 1 / N)


def test_eigenvectors_are_orthonormal_and_make_the_matrix(covariance):
    e = covariance.eigenvectors
    np.testing.assert_allclose(e @ e.T, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance.matrix)[::-1], LAM, atol=1e-12)
    np.testing.assert_allclose(covariance.root @ covariance.root, covariance.matrix, atol=1e-12)
    again = covariance_of(covariance.matrix)
    np.testing.assert_allclose(np.abs(np.sum(again.eigenvectors * e, axis=1)), 1, atol=1e-9)


def test_sequences_are_regression_problems(covariance):
    x, y = sample_sequences(covariance, 9, 20, generator(1, "train"))
    assert x.shape == (20, 10, 4) and y.shape == (20, 10)
    w = torch.linalg.lstsq(x, y[..., None]).solution
    torch.testing.assert_close((x @ w).squeeze(-1), y)


@pytest.mark.parametrize("every", [False, True])
def test_moments_of_many_sequences_are_those_of_the_population(covariance, every):
    """Eqs. 16-19 and 23, for fixed and for varying lengths."""
    length = 5
    sampled = moments_of(sample_sequences(covariance, length, 200_000, generator(2, "train")), every)
    exact = population_moments(covariance, mean_inverse_length(length, every))
    for ours, closed in zip(sampled, exact, strict=True):
        assert float((ours - closed).norm() / closed.norm()) < 0.02


def test_the_mean_inverse_length_of_varying_contexts_is_harmonic():
    assert mean_inverse_length(4) == 0.25
    assert mean_inverse_length(4, every=True) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_levels_of_equation_5_are_those_of_figure_1():
    np.testing.assert_allclose(theory.plateau_losses(LAM, 1 / N), [1, 0.6406, 0.3774, 0.2098, 0.1360], atol=5e-5)


def test_with_long_contexts_a_drop_is_an_eigenvalue():
    levels = theory.plateau_losses(LAM, 1e-9)
    np.testing.assert_allclose(-np.diff(levels), LAM, rtol=1e-6)


def test_equation_12_is_the_loss_of_the_optimum_for_varying_lengths(covariance):
    inverse_length = mean_inverse_length(8, every=True)
    moments = population_moments(covariance, inverse_length)
    best = np.linalg.solve(moments.second.numpy(), moments.cross.numpy().ravel()).reshape(4, 4)
    assert loss_of(best, moments) == pytest.approx(theory.plateau_losses(LAM, inverse_length)[4], rel=1e-9)
    np.testing.assert_allclose(best, theory.fixed_point(covariance, range(4), inverse_length), atol=1e-9)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_set_of_eigenvectors_is_a_fixed_point(covariance, population, rank):
    """Eqs. 3, 4, 29 and 46: no gradient, and the loss that theory says."""
    for learned in chain.from_iterable(combinations(range(4), m) for m in range(5)):
        weights = theory.fixed_point_weights(covariance, learned, 1 / N, heads=4, rank=rank)
        np.testing.assert_allclose(product(weights), theory.fixed_point(covariance, learned, 1 / N), atol=1e-12)
        assert max(np.abs(rate).max() for rate in rates(weights, population)) < 1e-14
        expected = theory.fixed_point_loss(LAM, learned, 1 / N)
        assert loss_of(product(weights), population) == pytest.approx(expected, rel=1e-12)
        for conserved in theory.conserved(*weights).values():
            np.testing.assert_allclose(conserved, 0, atol=1e-12)


def test_a_settled_value_is_a_fixed_point_of_equation_7(covariance):
    for d in range(4):
        v = theory.settled_value(LAM, d, 1 / N)
        assert theory.value_rate(np.array(v), LAM, d, 1 / N) == pytest.approx(0, abs=1e-14)
        assert theory.fixed_point_weights(covariance, [d], 1 / N, heads=1).v[0] == pytest.approx(v)


def test_equation_8_is_what_the_model_says_on_a_plateau(covariance):
    sequences = sample_sequences(covariance, N, 50, generator(3, "eval"))
    weights = theory.fixed_point_weights(covariance, [0, 1], 1 / N, heads=3)
    model = InContextRegressor(SeparateAttention(weights), N, torch.zeros(5, 4, 4))
    beta, x, _ = examples(sequences)
    expected = theory.regression(covariance, 2, 1 / N, beta[:, 0].numpy(), x[:, 0].numpy())
    np.testing.assert_allclose(model(sequences.tokens)[:, 0].detach().numpy(), expected, atol=1e-12)


def test_equation_37_is_the_inverse_of_equation_7():
    times = np.linspace(0, 40, 200)
    curve = theory.value_curve(times, 0.2, LAM, 1, 1 / N)
    elapsed = theory.value_time(curve, LAM, 1, 1 / N) - theory.value_time(curve[:1], LAM, 1, 1 / N)
    np.testing.assert_allclose(elapsed, times, rtol=1e-5, atol=1e-5)


def test_equation_38_is_equation_37_from_a_small_value():
    for value in (1e-3, 1e-4):
        half = theory.settled_value(LAM, 0, 1 / N) / 2
        start, end = (float(theory.value_time(np.array(v), LAM, 0, 1 / N)) for v in (value, half))
        assert theory.plateau_duration(LAM[0], value) == pytest.approx(end - start, rel=10 * value)


def test_the_flow_keeps_equations_44_and_50(population):
    for rank in (1, 3):
        weights = initial_weights(3, rank, 4, 0.5, seed=1)
        path = gradient_flow(weights, population, np.linspace(0, 200, 5), rtol=1e-11, atol=1e-13)
        assert loss_of(product(path), population)[-1] < 0.5  # something was learned
        for name, values in theory.conserved(*path).items():
            drift = np.abs(values - theory.conserved(*weights)[name]).max()
            assert drift < 1e-6 * np.abs(theory.conserved(*weights)[name]).max(), name
    shapes = {name: values.shape for name, values in theory.conserved(*initial_weights(3, 2, 4, 0.5, seed=1)).items()}
    assert shapes == {"k.k - q.q": (3, 2), "k.k - v^2": (3,)}


def test_rates_are_half_the_negative_gradient(covariance):
    """Eqs. 24 and 45 against autograd on the moments of a finite set."""
    moments = moments_of(sample_sequences(covariance, N, 100, generator(4, "train")))
    weights = initial_weights(3, 2, 4, 1.0, seed=0)
    model = InContextRegressor(SeparateAttention(weights), N, torch.zeros(5, 4, 4))
    exact_loss(model.product(), moments).backward()
    gradients = [getattr(model.attention, name).grad.numpy() for name in "vkq"]
    for rate, gradient in zip(rates(weights, moments), gradients, strict=True):
        np.testing.assert_allclose(rate, -gradient / 2, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 3])
def test_descent_of_a_stack_is_descent_of_each_seed(population, rank):
    starts = [initial_weights(4, rank, 4, 0.3, seed) for seed in range(3)]
    together = descend(stack(starts), population, 0.2, 300)
    for index, start in enumerate(starts):
        alone = descend(stack([start]), population, 0.2, 300)
        np.testing.assert_allclose(together.loss[:, index], alone.loss[:, 0], rtol=1e-12)
    np.testing.assert_allclose(together.loss, loss_of(product(together.weights), population))


def test_descent_follows_the_flow_at_a_small_rate(population):
    start = initial_weights(4, 1, 4, 0.5, seed=0)
    path = descend(stack([start]), population, 0.004, 10_000)
    followed = loss_of(product(gradient_flow(start, population, path.times)), population)
    assert np.abs(path.loss[:, 0] - followed).max() < 4e-3
    assert followed[-1] < 0.7


def test_sharpness_is_the_largest_eigenvalue_of_the_hessian(covariance, population):
    weights = theory.fixed_point_weights(covariance, range(4), 1 / N, heads=4)
    flat = torch.from_numpy(np.concatenate([part.ravel() for part in weights]))

    def loss(parameters):
        v, k, q = parameters.split([4, 16, 16])
        return exact_loss((v[:, None] * k.reshape(4, 4)).T @ q.reshape(4, 4), population)

    hessian = torch.autograd.functional.hessian(loss, flat)
    assert sharpness(weights, population) == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-9)


@pytest.mark.parametrize("w_init", [0.3, 4.0])
def test_the_largest_rate_separates_descent_that_converges_from_descent_that_diverges(covariance, population, w_init):
    start = initial_weights(4, 1, 4, w_init, seed=0)
    settled = theory.fixed_point_weights(covariance, range(4), 1 / N, heads=4)
    rate = largest_rate(start, settled, population)
    good = descend(stack([start]), population, 0.7 * rate, 3000)
    bad = descend(stack([start]), population, 3 * rate, 3000, record=range(0, 3001, 10))
    assert good.loss[-1] < good.loss[0]
    assert not np.isfinite(bad.loss[-1]).all() or bad.loss[-1] > bad.loss[0]


def test_the_curve_of_a_head_starts_at_its_value_and_settles_with_its_sign():
    problem = LinearFlow(LinearFlow.Config())
    for sign in (1, -1):
        curve = ValueCurve(problem, d=1, begin=10.0, value=sign * 0.3, per_step=0.5)
        found = curve(np.array([4.0, 20.0, 30.0, 1e4]))  # times 2 (before it begins), 10, 15 and 5000
        settled = theory.settled_value(problem.lam, 1, problem.inverse_length)
        np.testing.assert_allclose(found[[0, 1, 3]], sign * np.array([0.3, 0.3, settled]), rtol=1e-6)
        elapsed = [theory.value_time(np.abs(v), problem.lam, 1, problem.inverse_length) for v in found[1:3]]
        assert elapsed[1] - elapsed[0] == pytest.approx(5.0, rel=1e-5)  # Eq. 37


@pytest.mark.parametrize(("lr", "steps"), [(0.5, 8000), (0.02, 10_000)])
def test_the_predicted_loss_is_that_of_the_flow_at_every_step(lr, steps):
    task = Separate(Separate.Config(lr=lr, steps=steps))
    curve = FlowReference.of(task, 2 * lr * steps).loss_curve(2 * lr).expected
    measured = np.arange(1, steps + 1, 7)
    times = np.append(0.0, 2 * lr * measured)
    weights = gradient_flow(task.start(), task.population, times, rtol=1e-10)
    exact = loss_of(product(weights), task.population)
    np.testing.assert_allclose(curve(measured), exact[1:], atol=1e-3 * np.ptp(exact))  # it was off by 12e-3
