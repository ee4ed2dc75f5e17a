"""The closed forms of the rich plugin, against enumeration, finite differences, sampling and the flow itself."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from stagelens_rich import theory
from stagelens_rich.claims.sampling import SecondLayer, estimates, squared_errors
from stagelens_rich.flow import solved, solved_times
from stagelens_rich.losses import closed_form, mean_exponential
from stagelens_rich.model import MixedAttention
from stagelens_rich.theory import Setting

BOOLEAN = Setting(L=8, alpha_star=2.0, w_star=0.45, tokens="boolean")
STATES = [SecondLayer(0.01, 0.01, 0.01, 0.01), SecondLayer(0.7, 0.5, 0.3, 0.4), SecondLayer(2.0, 0.6, 0.6, 0.2)]


@pytest.mark.parametrize("at", STATES)
def test_the_closed_forms_are_means_over_all_boolean_sequences(at):
    every = torch.tensor(list(product((-1.0, 1.0), repeat=BOOLEAN.L)), dtype=torch.float64)
    means = {name: error.mean().item() for name, error in squared_errors(every, at, BOOLEAN).items()}
    assert theory.four_gram_loss(at.p, at.g, BOOLEAN) == pytest.approx(means["4-gram"], rel=1e-10)
    assert theory.induction_loss(at.w**2, at.h, BOOLEAN) == pytest.approx(means["exponential"], rel=1e-10)


def test_the_closed_forms_agree_with_sampled_gaussian_sequences():
    s, at = Setting(L=12, w_star=0.35), SecondLayer(0.5, 0.4, 0.2, 0.3)
    found = estimates(at, s, 200_000, seed=1)
    exact = {"4-gram": theory.four_gram_loss(at.p, at.g, s), "exponential": theory.induction_loss(at.w**2, at.h, s)}
    for name, value in exact.items():
        assert abs(found[name].mean - value) < 3.5 * found[name].error
        assert found[name].error < 0.01 * value


@pytest.mark.parametrize("s", [Setting(), Setting(L=300, alpha_star=3.0, w_star=0.3), BOOLEAN])
@pytest.mark.parametrize("at", STATES)
def test_the_rates_are_the_gradients(s, at):
    at = at._replace(w=min(at.w, s.w_star))
    step, v = 1e-5, at.w**2

    def falls(loss, x, y):
        return [
            (loss(*a, s) - loss(*b, s)) / (2 * step)
            for a, b in (((x - step, y), (x + step, y)), ((x, y - step), (x, y + step)))
        ]

    assert theory.four_gram_rates(at.p, at.g, s) == pytest.approx(falls(theory.four_gram_loss, at.p, at.g), rel=1e-4)
    expected = falls(theory.induction_loss, v + 2 * step, at.h)
    assert theory.induction_rates(v + 2 * step, at.h, s) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_the_mean_lag_is_the_papers_m_over_M():
    L, p = 40, 0.3
    s = np.arange(L - 2)
    assert theory.M(p, L) == pytest.approx(np.exp(-p * s).sum())
    assert theory.mean_lag(p, L) == pytest.approx((s * np.exp(-p * s)).sum() / np.exp(-p * s).sum())
    assert theory.mean_lag(1e-9, L) == pytest.approx(s.mean(), rel=1e-6)  # no cancellation where p is tiny


def test_the_first_layer_rate_is_the_gradient_of_its_loss():
    s, step = Setting(L=10, sigma=0.05), 1e-6
    loss = [theory.first_layer(0.8 + sign * step, 0.1, 0.3, s)[0] for sign in (1, -1)]
    assert theory.first_layer(0.8, 0.1, 0.3, s)[1] == pytest.approx((loss[1] - loss[0]) / (2 * step), rel=1e-6)
    assert theory.first_layer(30.0, 0.7, 0.4, s)[0] == pytest.approx(theory.four_gram_loss(0.7, 0.4, s), rel=1e-9)
    assert theory.previous_token(1.0, 4) == pytest.approx(1 / (1 + np.exp(-1) + np.exp(-2)))


@pytest.mark.parametrize(
    "settings", [{}, {"system": "five"}, {"w_star": 0.3}, {"L": 200, "alpha_star": 3.0}, {"tokens": "boolean"}]
)
def test_expected_times_are_those_of_the_flow(settings):
    s = Setting(**{key: value for key, value in settings.items() if key != "system"})
    expected = theory.expected_times(s, pair=1 if settings.get("system") == "five" else 2)
    found = solved_times(**settings)
    assert pytest.approx(expected.T_I, rel=0.06) == found.T_I  # 1/(4t) leaves out how it begins
    assert found[1:] == pytest.approx(expected[1:], rel=0.01)


def test_two_weights_grow_half_as_fast_as_one_for_both():
    one, two = (float(solved_times(system=system).T_III) for system in ("four", "five"))
    assert two == pytest.approx(2 * one, rel=0.03)
    t, w = solved().scalar("w_KQ")
    on = (t > 200) & (t < 600)
    slope = np.polyfit(t[on], np.log(w[on]), 1)[0]
    assert slope == pytest.approx(theory.growth_rate(Setting()), rel=0.01)


def test_the_induction_head_converges_at_the_linearized_rate():
    t, loss = solved(w_star=0.4).scalar("loss_induction")
    on = (loss < 1e-8) & (loss > 1e-13)
    slope = np.polyfit(t[on], np.log(loss[on]), 1)[0]
    assert -slope == pytest.approx(theory.late_rate(Setting(w_star=0.4)), rel=0.01)


def test_phase_times_follow_their_definitions():
    t = np.array([0.0, 1, 2, 3, 4, 5])
    four_gram = np.array([1.0, 0.5, 0.02, 0.0, 0, 0])
    induction = np.array([9.0, 6, 4, 4, 2, 0])
    h = np.array([0.0, 0.25, 0.5, 0.5, 0.5, 0.5])
    times = theory.phase_times(t, four_gram, induction, h, 0.5)
    assert times == pytest.approx((2.5, 2.0, 3.02, 4.98))
    assert theory.phase_times(t, four_gram + 1, induction + 9, h, 0.6) == (None, None, None, None)
    none = t[:0]  # stopped before Stage II
    assert theory.phase_times(none, none, none, none, 0.5) == (None, None, None, None)


def test_the_value_alone_ends_phase_two_above_w_046():
    """From w* = 0.47 on, the relaxation of h after T_o lowers L_IH2 by 1% without any growth of w."""
    settings = [Setting(w_star=w_star) for w_star in (0.46, 0.47)]
    left = [theory.induction_loss(0.0, s.h_plateau, s) / theory.induction_loss(0.0, s.h_star, s) for s in settings]
    assert left[0] > theory.AT_T_II > left[1]


def test_the_closed_form_with_matrices_is_that_of_one_dimension():
    s, at = Setting(L=20, w_star=0.4), SecondLayer(0.6, 0.3, 0.25, 0.35)
    weight = torch.full((1, 1), at.w, dtype=torch.float64)
    layer = MixedAttention(s.L, weight, weight.clone(), 0.0).double()
    with torch.no_grad():
        for name, value in (("p", at.p), ("w_V1", at.g), ("w_V2", at.h)):
            getattr(layer, name).fill_(value)
        found = closed_form(layer, s.alpha_star, s.w_star**2, s.L)
    expected = theory.four_gram_loss(at.p, at.g, s), theory.induction_loss(at.w**2, at.h, s)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def test_the_mean_exponential_is_lemma_7():
    torch.manual_seed(0)
    B = 0.1 * torch.randn(3, 3, dtype=torch.float64)
    x, y = torch.randn(2, 400_000, 3, dtype=torch.float64)
    drawn = torch.exp(((x @ B) * y).sum(-1))
    assert abs(drawn.mean() - mean_exponential(B)) < 4 * drawn.std() / len(x) ** 0.5
