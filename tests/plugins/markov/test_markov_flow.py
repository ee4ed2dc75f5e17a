"""The regression variant: formulas against finite differences and each other, the flow, and claims M10 to M13."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from stagelens.base.errors import UsageError
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.experiments.config import make_config
from stagelens.experiments.flow import integrate
from stagelens.host.host import make_host
from stagelens.timelines.reading import Reading
from stagelens.timelines.timeline import Timeline, pack
from stagelens_markov import theory
from stagelens_markov.claims import flow as theorems, measures
from stagelens_markov.config import MarkovFlowConfig
from stagelens_markov.flow import RegressionFlow, deviation, negative_start, ordered_start

SCALES = np.array([2.5, 1.4, 0.8])


@pytest.fixture
def point():
    """v [head, feature], s [head, position] and G, at random: four heads, three features, five positions."""
    random = np.random.default_rng(0)
    return random.normal(size=(4, 3)), random.dirichlet(np.ones(5), size=4), theory.target(SCALES, 5)


def flow(seed=0, **settings):
    return RegressionFlow(MarkovFlowConfig(**{"T": 6, "time": 50.0, "points": 60, **settings}), seed)


def series(trajectory, name):
    return np.array([next(r.array() for r in readings if r.name == name) for readings in trajectory.readings])


def softmax(q):
    return np.exp(q) / np.exp(q).sum(-1, keepdims=True)


def test_the_rates_are_minus_the_gradient_of_the_loss(point):
    v, s, G = point
    q, small = np.log(s), 1e-6
    d_v, d_q = theory.score_rates(v, s, G)
    for array, rate in ((v, d_v), (q, d_q)):
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + small
            above = theory.tensor_loss(v, softmax(q), G)
            array[place] = before - small
            below = theory.tensor_loss(v, softmax(q), G)
            array[place] = before
            assert rate[place] == pytest.approx(-(above - below) / (2 * small), abs=1e-7)


def test_attention_moves_as_the_softmax_of_its_scores(point):
    v, s, G = point
    _, d_s = theory.rates(v, s, G)
    _, d_q = theory.score_rates(v, s, G)
    small = 1e-6
    moved = (softmax(np.log(s) + small * d_q) - softmax(np.log(s) - small * d_q)) / (2 * small)
    assert np.allclose(d_s, moved, atol=1e-8)
    assert np.allclose(d_s.sum(1), 0, atol=1e-14)


def test_the_loss_is_the_sum_of_its_parts_and_of_the_matrices_norm(point):
    v, s, G = point
    assert theory.loss_parts(v, s, G).sum() == pytest.approx(theory.tensor_loss(v, s, G), rel=1e-12)
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(16, 3)))[0].T  # V*_j as vectors, orthonormal
    P = np.einsum("kj,ja,ki->ai", v, basis, s)
    full = np.einsum("ji,ja->ai", G, basis)
    assert ((full - P) ** 2).sum() / 2 == pytest.approx(theory.tensor_loss(v, s, G), rel=1e-12)


def test_equal_heads_move_by_the_symmetric_flow(point):
    v, s, G = point
    together = theory.rates(np.tile(v[0], (4, 1)), np.tile(s[0], (4, 1)), G)
    alone = theory.symmetric_rates(v[0], s[0], G, 4)
    for all_heads, one in zip(together, alone, strict=True):
        assert np.allclose(all_heads, one, atol=1e-13)


@pytest.mark.parametrize("positions", [[0, 1, 2], [0, 0, 0], [2, 1, 0], [0, 0, 1], [1, 4, 4]])
def test_heads_on_single_positions_are_fixed_points(positions):
    G = theory.target(SCALES, 5)
    v, s = theory.fixed_point(G, positions)
    for rate in theory.rates(v, s, G):
        assert np.abs(rate).max() < 1e-12
    missing = sum(scale**2 / 2 for j, scale in enumerate(SCALES) if j not in positions)
    assert theory.tensor_loss(v, s, G) == pytest.approx(missing, abs=1e-12)


def test_plateaus_lose_one_feature_after_the_other():
    assert theory.plateau_losses(np.array([2.0, 1.0])) == pytest.approx([2.5, 0.5, 0.0])


def test_the_expansion_at_the_uniform_start_against_the_flow():
    """The error is of the next order: it falls by 2^3 or more for s where t is halved, and by 2^2 for V."""
    G, H = theory.target(SCALES, 5), 3

    def numeric(t):
        def rate(_, y):
            return np.concatenate(theory.symmetric_rates(y[:3], y[3:], G, H))

        start = np.concatenate([np.zeros(3), np.full(5, 0.2)])
        return np.split(solve_ivp(rate, (0, t), start, "DOP853", rtol=1e-12, atol=1e-15).y[:, -1], [3])

    errors = [[np.abs(a - b).max() for a, b in zip(numeric(t), theory.early(t, G), strict=True)] for t in (0.1, 0.05)]
    assert errors[0][0] / errors[1][0] > 3.5 and errors[0][1] / errors[1][1] > 7
    grown = theory.early(0.1, G)[1] - 0.2
    assert grown.argmax() == 0 and (np.diff(grown[:3]) < 0).all()  # in the order of importance


def test_attention_to_other_positions_fades_by_the_power_law():
    """Of each position as far as its neighbours are alike; the sum over the many positions without a feature."""
    solved = integrate(flow(system="symmetric", T=40, time=1e5))
    rest = series(solved, "attention")[-1, 0, -1]
    expected = 37 * theory.late_attention(1e5, flow().scales, 3, 40, 10)
    assert rest == pytest.approx(expected, rel=0.05)


def test_theorem_1_from_random_ordered_starts():
    for seed in range(3):
        distance = series(integrate(flow(seed, system="symmetric", start="ordered", time=1e5)), "distance")
        assert distance[-1] < 1e-2 and (np.diff(distance[30:]) < 0).all()


def test_a_negative_start_fulfils_eq_6_and_ends_at_another_position():
    for seed in range(3):
        v, s = negative_start(3, 7, 10.0, np.random.default_rng(seed))
        assert (v < 0).all() and (np.diff(v) < 0).all() and (np.diff(s[:3]) < 0).all()
        assert s.sum() == pytest.approx(1) and (s > 0).all()
        ended = integrate(flow(seed, system="symmetric", start="negative", time=1e6))
        assert series(ended, "attention")[-1, 0, :3].argmax() > 0  # and Theorem 1 says 0


def test_an_ordered_start_is_one():
    for seed in range(20):
        v, s = ordered_start(3, 7, np.random.default_rng(seed))
        assert v.argmax() == 0 and s[:3].argmax() == 0 and s.sum() == pytest.approx(1) and (v >= 0).all()


def test_the_full_flow_learns_everything_in_order_and_meets_the_predicted_levels():
    task = flow(time=1000.0, points=300)
    solved = integrate(task)
    times = [solved.events[f"feature {j} learned"] for j in (1, 2, 3)]
    assert times == sorted(times) and "heads part" in solved.events
    losses = series(solved, "loss")
    levels = [prediction.expected for prediction in task.predictions()]
    assert losses[0] == pytest.approx(levels[0], rel=1e-3) and losses[-1] < 1e-3 * levels[0]
    assert np.abs(losses - series(solved, "loss_parts").sum((1, 2))).max() < 1e-9 * losses[0]
    assert np.allclose(series(solved, "attention").sum(-1), 1, atol=1e-6)


def test_a_head_alone_learns_the_first_feature_only():
    solved = integrate(flow(heads=1, time=1000.0))
    assert solved.events.keys() == {"feature 1 learned"}
    assert series(solved, "loss")[-1] == pytest.approx(flow().predictions()[1].expected, rel=0.02)


def test_noise_lifts_the_loss_and_nothing_else():
    plain, noisy = integrate(flow(time=5.0)), integrate(flow(time=5.0, noise=3.0))
    assert np.allclose(series(noisy, "loss") - series(plain, "loss"), 1.5)
    assert np.array_equal(series(noisy, "attention"), series(plain, "attention"))


def test_smaller_deviations_are_the_same_ones_scaled():
    large, small = flow(eps=1e-6).initial(), flow(eps=1e-10).initial()
    assert deviation(large) == pytest.approx(100 * deviation(small))
    assert flow(eps=0.0).initial()["s"] == pytest.approx(np.full((3, 6), 1 / 6))


def test_a_feature_is_learned_when_half_of_its_loss_is_gone():
    """Its part of the loss at its own position, read from the recorded parts at the time of its event."""
    solved = integrate(flow(time=400.0, points=800))
    parts = series(solved, "loss_parts")  # [time, feature, position]
    for j in range(3):
        at = np.interp(solved.events[f"feature {j + 1} learned"], [m.step for m in solved.measurements], parts[:, j, j])
        assert at == pytest.approx(parts[0, j, j] / 2, rel=0.02)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("h=0", "config key 'h': got 0"),
        ("m=0", "config key 'm': got 0"),
        ("T=2", "h=3 features need a position each, and T=2"),
        ("eps=0.1", "can make attention negative"),
        ("noise=-1", "config key 'noise': got -1"),
    ],
)
def test_bad_settings_are_one_line(setting, message):
    with pytest.raises(UsageError, match=message) as caught:
        make_config(MarkovFlowConfig, RegressionFlow.presets, "quick", [setting])
    assert "\n" not in str(caught.value)


def test_proposition_1_by_autograd_on_a_finite_population():
    assert max(max(theorems.gradient_errors(seed)) for seed in range(5)) < 1e-12


def test_the_exponent_of_the_separation_time_distinguishes_log_from_log_squared():
    starts = [1e-5, 1e-6, 1e-7, 1e-8]
    growth = np.log(0.1 / np.array(starts))
    assert measures.parting_exponent(starts, list(3 * growth)) == pytest.approx(1)
    assert measures.parting_exponent(starts, list(growth**2)) == pytest.approx(2)


def test_the_rate_of_a_deviation_that_grows_exponentially():
    times = np.linspace(0, 10, 50)
    timeline = Timeline([pack(float(t), [Reading("deviation", 1e-6 * np.exp(0.7 * t))]) for t in times])
    run = SimpleNamespace(timeline=timeline, manifest=SimpleNamespace(events={"heads part": 9.0}))
    assert measures.growth_rate(run) == pytest.approx(0.7)
    assert measures.over_bound(run, 0.7) == pytest.approx(1)
    assert measures.over_bound(run, 0.5) > 1


def test_the_theorems_run_to_a_verdict(tmp_path, monkeypatch):
    """With two features and four positions; the numbers are those of the claims at other sizes."""
    small = {"h": 2, "T": 4, "points": 60}
    monkeypatch.setattr(theorems, "SIZES", {**small, "time": 400.0})
    monkeypatch.setattr(theorems, "NEAR", {**small, "rtol": 1e-9, "atol": 1e-13})
    monkeypatch.setattr(theorems, "EPSILONS", (1e-8, 1e-10, 1e-12))
    host = make_host()
    results = {
        id: verify_claim(choose(host, claims=[id])[0], Lab(host, tmp_path), seeds=1)
        for id in ("M10", "M11", "M12", "M13")
    }
    assert {id: result.error for id, result in results.items()} == dict.fromkeys(results, "")
    assert {id: result.verdict for id, result in results.items()} == dict.fromkeys(results, "holds")
    assert [check.what for check in results["M10"].checks if check.sanity] == [
        "loss minus the sum of its (feature, position) parts, in units of the first loss"
    ]
    c, excess, parting, least, law, *_ = results["M12"].checks
    assert not c.judged and c.measured > max(least.measured[0])
    assert excess.judged and parting.judged and law.measured[0] > 1.5 and not law.judged


def test_the_rate_of_deviations_bounds_the_flow_of_small_ones():
    """The norm of the Jacobian against finite differences: no small deviation of the heads grows faster."""
    G = theory.target(np.array([3.0, 2.0]), 5)
    random = np.random.default_rng(0)
    v, s = random.normal(size=2), random.dirichlet(np.ones(5))
    c = theory.deviation_rate(v, s, G, 3)
    d_v0, d_s0 = theory.symmetric_rates(v, s, G, 3)
    fastest = 0.0
    for _ in range(300):
        W, z = random.normal(size=(3, 2)), random.normal(size=(3, 5))
        z -= z.mean(1, keepdims=True)
        size = 1e-6 / max(np.linalg.norm(W, axis=1).max(), np.linalg.norm(z, axis=1).max())
        d_v, d_s = theory.rates(v + size * W, s + size * z, G)
        growth = max(np.linalg.norm(d_v - d_v0, axis=1).max(), np.linalg.norm(d_s - d_s0, axis=1).max())
        fastest = max(fastest, growth / 1e-6)
    assert 0.2 * c < fastest <= c * (1 + 1e-4)
