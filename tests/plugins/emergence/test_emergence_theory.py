"""The reduced model against autograd, against the whole model, and against its own linearization."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
import torch

from stagelens.experiments.flow import integrate
from stagelens_emergence import theory
from stagelens_emergence.config import ReducedConfig
from stagelens_emergence.data.toy import relevant_moments, target_weights
from stagelens_emergence.flow import ReducedFlow, flow_plateau, flow_plateaus, trajectory
from stagelens_emergence.losses import expected_loss
from stagelens_emergence.model import ToyTransformer
from stagelens_emergence.theory import model_flow, paper_flow

PROBLEMS = [
    paper_flow(16, 9),
    paper_flow(16, 9, 3),
    paper_flow(16, 9, 1, 0.3),
    paper_flow(16, 9, 3, 0.6),
    paper_flow(5, 4, 5),
]


def whole_model(problem, w, delta_a):
    """The toy model in the state (w, Delta a), in float64."""
    W_star = target_weights(problem.d, "unit", torch.Generator().manual_seed(0))
    fractions = [w_g / r for w_g, r in zip(w, problem.norm, strict=True)]
    scale = torch.full((problem.d,), float(fractions[-1]), dtype=torch.float64)
    scale[0] = float(fractions[0])
    model = ToyTransformer(problem.T, problem.B, W_star * scale, W_star)
    with torch.no_grad():
        model.attention.a[-problem.B :] = delta_a
    return model


def states(problem):
    """Some w and Delta a, at the start and away from it."""
    norm = np.array(problem.norm)
    return [(0.0 * norm, 0.0), (0.3 * norm, 0.7), (1.2 * norm[::-1], 3.0)]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_reduced_loss_is_that_of_the_whole_model(problem):
    for w, delta_a in states(problem):
        whole = expected_loss(whole_model(problem, w, delta_a), relevant_moments(problem.d, problem.p))
        assert problem.loss(w, delta_a) == pytest.approx(whole.item(), rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradient_and_hessian_are_those_of_autograd(problem):
    sigma, norm = (torch.tensor(values, dtype=torch.float64) for values in (problem.sigma, problem.norm))

    def loss(state):
        w, delta_a = state[:-1], state[-1]
        m = problem.B / ((problem.T - problem.B) * torch.exp(-delta_a) + problem.B)
        noise = (1 - m) ** 2 * (w**2).sum() * problem.noise
        return 0.5 * (noise + (sigma * (m * w - norm) ** 2).sum())

    for w, delta_a in states(problem):
        state = torch.tensor([*w, delta_a], dtype=torch.float64)
        by_w, by_a = problem.gradient(w, delta_a)
        expected = torch.autograd.functional.jacobian(loss, state).numpy()
        np.testing.assert_allclose([*by_w, by_a], expected, atol=1e-14, rtol=1e-10)
        expected = torch.autograd.functional.hessian(loss, state).numpy()
        np.testing.assert_allclose(problem.hessian(w, delta_a), expected, atol=1e-14, rtol=1e-10)


@pytest.mark.parametrize("problem", PROBLEMS[:4])
def test_the_flow_of_the_whole_model_stays_in_the_reduced_space(problem):
    """Eqs. 7-8 projected: the gradient by W is along W* column by column, and that by a has two values."""
    w, delta_a = states(problem)[1]
    model = whole_model(problem, w, delta_a)
    expected_loss(model, relevant_moments(problem.d, problem.p)).backward()
    by_w, by_a = problem.gradient(w, delta_a)
    a = model.attention.a.grad
    assert a[: -problem.B].std() < 1e-15 and (problem.B == 1 or a[-problem.B :].std() < 1e-15)
    along = (model.W.grad * model.W_star).sum(0)  # [d]
    assert (model.W.grad - model.W_star * along).abs().max() < 1e-15
    assert along[0].item() * (1 if problem.split else sqrt(problem.d)) == pytest.approx(by_w[0], rel=1e-10)
    assert along[-1].item() * problem.norm[-1] == pytest.approx(by_w[-1], rel=1e-10)
    assert (a[-problem.B :].sum()).item() == pytest.approx(by_a, rel=1e-10)
    model = model_flow(problem.T, problem.d, problem.B, problem.p)  # Delta a = a_T - a_1: both follow their gradients
    assert model.velocity(w, delta_a)[1] == pytest.approx((a[0] - a[-1]).item(), rel=1e-10)


def test_eqs_7_and_8_are_the_gradients_of_the_expected_loss():
    """Written out by hand for every token, from a state without any symmetry."""
    T, d, B, p = 6, 4, 2, 0.3
    draw = torch.Generator().manual_seed(1)
    W_star = target_weights(d, "gaussian", draw)
    model = ToyTransformer(T, B, torch.randn(d, d, generator=draw, dtype=torch.float64), W_star)
    with torch.no_grad():
        model.attention.a.copy_(torch.randn(T, generator=draw, dtype=torch.float64))
    moments = relevant_moments(d, p)
    expected_loss(model, moments).backward()
    alpha, W, Sigma = model.alpha.detach(), model.W.detach(), torch.diag(moments.relevant)
    m = alpha[-B:].sum()
    by_W = m * (m * W - W_star) @ Sigma + (alpha[:-B] ** 2).sum() / d * W  # Eq. 7
    signal = torch.trace(W @ Sigma @ (m * W - W_star).T)
    by_alpha = torch.cat([alpha[:-B] / d * W.square().sum(), signal.expand(B)])  # Eq. 8
    by_a = alpha * (by_alpha - (alpha * by_alpha).sum())
    torch.testing.assert_close(model.W.grad, by_W)
    torch.testing.assert_close(model.attention.a.grad, by_a)


def test_the_equilibrium_is_where_the_gradient_by_w_vanishes():
    for problem in PROBLEMS:
        delta_a = np.linspace(-1, 8, 7)
        w = problem.equilibrium(problem.attention(delta_a))
        assert np.abs(problem.gradient(w, delta_a)[0]).max() < 1e-15


def test_two_and_three_variables_agree_without_repetition():
    two, three = paper_flow(64, 16, 2), paper_flow(64, 16, 2, variables=3)
    times = np.linspace(0, two.horizon(), 50)
    (w2, a2), (w3, a3) = trajectory(two, times), trajectory(three, times)
    np.testing.assert_allclose(a3, a2, atol=1e-4)
    np.testing.assert_allclose(three.projection(w3), two.projection(w2), rtol=1e-4, atol=1e-5)


def test_the_first_rate_is_eq_15s_and_a42s():
    assert paper_flow(100, 25, 4).rate == pytest.approx(4 / (5 * 100))
    assert paper_flow(100, 25, 4, variables=3).rate == pytest.approx(4 / (5 * 100))
    problem = paper_flow(4096, 400, 1, 0.3)
    assert problem.rate == pytest.approx(theory.repetition(0.3, 400) / (20 * 4096), rel=0.01)  # for large d
    offset, matrix = problem.linearization()
    assert np.linalg.norm(offset) == pytest.approx(problem.rate)
    assert np.linalg.eigvalsh(matrix)[-1] == pytest.approx(problem.rate, rel=0.03)  # for large T and d


def test_the_linearization_solves_eq_15():
    rate, time, h = 0.01, 130.0, 1e-3
    w, a = theory.linear_w(time, rate), theory.linear_delta_a(time, rate)
    slope = [(f(time + h, rate) - f(time - h, rate)) / (2 * h) for f in (theory.linear_w, theory.linear_delta_a)]
    assert slope == pytest.approx([rate * (1 + a), rate * w], rel=1e-8)
    assert theory.linear_loss(time, rate) == pytest.approx(0.5 - rate * w * (1 + a))


def test_the_escape_time_is_when_the_linear_loss_is_there():
    rate = 1e-4
    for lost in (0.01, 0.8):
        time = theory.escape_time(lost, rate)
        assert theory.linear_loss(time, rate) == pytest.approx(0.5 * (1 - lost), rel=1e-9)
        assert theory.escape_time(lost, rate, "appendix") == pytest.approx(time, rel=1e-4)
        assert theory.escape_time(lost, rate, "main text") == pytest.approx(time - np.log(2) / (2 * rate), rel=1e-4)


def test_the_plateau_law_is_reached_from_above_as_t_grows():
    ratios = [flow_plateau(paper_flow(T, 64)) * paper_flow(T, 64).rate / sqrt(pi / 2) for T in (64, 512, 4096)]
    assert ratios == sorted(ratios, reverse=True) and 1 < ratios[-1] < 1.03


def test_in_the_model_the_plateau_shortens_with_the_root_of_b():
    one, four = model_flow(4096, 64, 1), model_flow(4096, 64, 4)
    assert one.rate / four.rate == pytest.approx(0.5, rel=1e-3)
    assert flow_plateau(one) / flow_plateau(four) == pytest.approx(2, rel=0.05)
    assert flow_plateau(four) == pytest.approx(four.plateau_law(), rel=0.1)


def test_late_eigenvalues():
    problem, e = paper_flow(512, 64), 1e-3
    delta_a = np.log((problem.T - 1) * (1 - e) / e)
    hessian = problem.hessian(problem.equilibrium(1 - e), delta_a)
    np.testing.assert_allclose(np.linalg.eigvalsh(hessian), theory.late_eigenvalues(problem, 1 - e), rtol=0.01)


# --- the plateau ---


def test_the_flow_gives_its_plateau_as_an_event_and_as_a_reading():
    for settings in ({"T": 64, "d": 16}, {"T": 64, "d": 16, "p": 0.4, "B": 2}, {"T": 64, "d": 16, "w_init": 0.5}):
        flow = ReducedFlow(ReducedConfig(**settings, points=40))
        solved = integrate(flow)
        alone = flow_plateau(flow.problem, w_init=flow.config.w_init)
        assert solved.events["plateau_length"] == pytest.approx(alone, rel=1e-6)
        last = {reading.name: reading.values for reading in solved.readings[-1]}
        assert last["plateau_length"] == solved.events["plateau_length"] and last["loss"] < 0.1
        assert not any(reading.name == "plateau_length" for reading in solved.readings[0])


def test_the_flow_can_stop_at_the_end_of_the_plateau():
    solved = integrate(ReducedFlow(ReducedConfig(T=64, d=16, until="plateau", points=10)))
    names = {reading.name: reading.values for reading in solved.readings[-1]}
    assert names["plateau_length"] == solved.measurements[-1].step
    assert names["loss"] == pytest.approx(0.1, rel=1e-6)


def test_a_plateau_that_outlasts_the_flow_has_no_length():
    assert np.isnan(flow_plateau(paper_flow(64, 16), time=10.0))
    assert np.isnan(flow_plateau(paper_flow(64, 16, 1, 1.0)))  # the other columns are never seen
    solved = integrate(ReducedFlow(ReducedConfig(T=64, d=16, time=10.0, points=10)))
    assert solved.events == {} and all(r.name != "plateau_length" for r in solved.readings[-1])


def test_repetition_shortens_the_plateau():
    plain, bursty, repeated = flow_plateaus([paper_flow(512, 64), paper_flow(512, 64, 4), paper_flow(512, 64, 1, 0.3)])
    assert plain / bursty == pytest.approx(4, rel=0.05)
    assert plain / repeated == pytest.approx(theory.repetition(0.3, 64), rel=0.1)


def test_every_token_may_be_the_relevant_one():
    assert flow_plateau(paper_flow(8, 16, 8)) == pytest.approx(
        16 * np.log(sqrt(5)), rel=1e-5
    )  # (w/sqrt(d) - 1)^2 = 1/5
