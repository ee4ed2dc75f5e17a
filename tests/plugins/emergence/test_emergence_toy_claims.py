"""What the claims S1 to S7 measure, on cases with a known answer; their registration; the README's commands."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import numpy as np
import pytest

import stagelens_emergence
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.host.host import make_host
from stagelens.sweeps.laws import fit_law
from stagelens.timelines.reading import Reading
from stagelens.timelines.timeline import Timeline, pack
from stagelens_emergence import theory
from stagelens_emergence.claims import toy as claims
from stagelens_emergence.theory import paper_flow, repetition_scale


def test_part_of_a_rise_is_found_between_records():
    values = [0.2, 0.2, 0.7, 1.2]
    timeline = Timeline([pack(10.0 * step, [Reading("w", value)]) for step, value in enumerate(values)])
    assert claims.rise_times(timeline, ["w"], 0.25) == pytest.approx([15])
    assert claims.rise_times(timeline, ["w"], 1.0) == pytest.approx([30])


def test_exponents_are_judged_and_intervals_reported():
    x, y = np.array([1, 2, 4, 8, 1, 2, 4, 8.0]), np.array([1, 1, 1, 1, 3, 3, 3, 3.0])
    law = fit_law({"T": x, "d": y}, 2 * x * np.sqrt(y))
    good = list(claims.exponent_checks(law, {"T": 1.0, "d": 0.5}, 0.01, 0.999, "here"))
    assert all(check.holds for check in good) and sum(check.judged for check in good) == 3
    bad = list(claims.exponent_checks(law, {"T": 1.0, "d": 0.45}, 0.03, 0.999, "here"))
    assert [check.what for check in bad if not check.holds] == ["exponent of d"]


def test_the_escape_of_the_linearized_system_is_found_without_the_formula():
    rate = 1e-3
    assert claims.linear_escape(0.2, rate) == pytest.approx(np.arcsinh(0.2 / rate) / (2 * rate), rel=1e-6)
    assert claims.linear_escape(0.2, rate) - theory.escape_time(0.2, rate, "main text") > 0.9 * log(2) / (2 * rate)


def test_the_early_distance_grows_with_the_square_of_time():
    near, far = (claims.early_distance(paper_flow(4096, 2**16), until)[1] for until in (0.2, 0.4))
    assert far / near == pytest.approx(4, rel=0.15)


def test_the_scale_of_cross_sample_repetition():
    assert repetition_scale(paper_flow(100, 16, 1, 0.0)) == pytest.approx(400)
    assert repetition_scale(paper_flow(100, 16, 1, 1.0)) == pytest.approx(100)  # the dimension is gone


def test_delays_pair_each_seed_with_its_own_reference():
    """By the seed, not by the order: seed 1 has not finished, and the references come in another order."""
    found, own = {0: 110.0, 1: "not reached by 9", 2: 330.0}, {2: 300.0, 1: 200.0, 0: 100.0}
    assert claims.delays(found, own, 10.0) == [1.0, "not reached by 9", 3.0]


def test_when_a_curve_has_settled():
    times = np.arange(5.0)
    assert claims.settling_time(times, np.array([1, 1, 0.01, 0, 0]), 0.02) == 2
    assert claims.settling_time(times, np.array([1, 0, 1, 0, 0]), 0.02) == 3
    assert claims.settling_time(times, np.zeros(5), 0.02) == 0  # it never leaves
    assert np.isnan(claims.settling_time(times, np.ones(5), 0.02))


@pytest.mark.parametrize(("id", "verdict"), [("S3", "holds"), ("S5", "differs"), ("S6", "differs")])
def test_claims_through_the_engine(tmp_path, id, verdict):
    host = make_host()
    (chosen,) = choose(host, ["emergence"], [id])
    result = verify_claim(chosen, Lab(host, tmp_path))
    assert result.verdict == verdict, result.error or [check.what for check in result.checks if not check.holds]


def test_the_escape_time_of_the_linearization_is_judged_against_the_plateau(tmp_path):
    host = make_host()
    (chosen,) = choose(host, ["emergence"], ["S6"])
    result = verify_claim(chosen, Lab(host, tmp_path))
    missed = {check.what: check.measured for check in result.checks if not check.holds}
    assert list(missed) == [
        "Eq. 6 at epsilon = 0.8, divided by the flow's plateau, T = 4096, d = 512",
        "largest of these ratios, divided by the smallest, over T = 128 to 2048, d = 16 to 256",
    ]
    x = 0.8 * 512**0.5 * 4096  # epsilon / lambda; the plateau lasts sqrt(pi/2) / lambda
    expected = np.log(x) / 2 / (np.pi / 2) ** 0.5
    assert next(iter(missed.values())) == pytest.approx(expected, rel=0.02)


def test_the_late_orders_differ_as_printed_and_hold_in_our_form(tmp_path):
    host = make_host()
    (chosen,) = choose(host, ["emergence"], ["S7"])
    result = verify_claim(chosen, Lab(host, tmp_path))
    missed = [check for check in result.checks if not check.holds]
    assert result.verdict == "differs" and [check.what for check in missed] == [
        "at w_inf: exponent of the entry for Delta a in e = 1 - B alpha, as printed"
    ]
    assert missed[0].measured == pytest.approx(2.0, abs=0.05)
    assert sum(check.sanity for check in result.checks) == 3


def test_in_context_repetition_divides_t_in_eq_14_and_only_its_root_does_in_the_model(tmp_path):
    host = make_host()
    (chosen,) = choose(host, ["emergence"], ["S4"])
    result = verify_claim(chosen, Lab(host, tmp_path))
    missed = [check for check in result.checks if not check.holds]
    assert result.verdict == "differs" and len(missed) == 1
    assert missed[0].what.startswith("the model of Eq. 2") and missed[0].measured == pytest.approx(-0.5, abs=0.03)


def test_claims_are_registered_under_their_own_titles():
    refs = {chosen.ref.id: chosen.ref for chosen in choose(make_host(), ["emergence"])}
    assert list(refs) == [f"S{number}" for number in range(1, 13)]
    for id in [f"S{number}" for number in range(1, 8)]:
        kind = refs[id].load()
        assert (kind.id, kind.title) == (id, refs[id].title) and kind.reference
        assert (kind.seeds if isinstance(kind.seeds, int) else min(kind.seeds.values())) >= 3


def test_probes_are_registered_as_they_are():
    for name, ref in make_host().probes:
        if ref.target.startswith("stagelens_emergence"):
            kind = ref.load()
            assert (kind.name, kind.gives, kind.default) == (name, tuple(ref.readings), ref.default)


def test_the_readme_has_a_command_for_each_figure():
    text = (Path(stagelens_emergence.__file__).parent / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`stagelens figure emergence (fig\d+)`", text)
    assert [f"fig{number}" for number in range(1, 18)] == [ref.name for ref in stagelens_emergence.plugin.figures]
    assert {ref.name for ref in stagelens_emergence.plugin.figures} == set(named)
    assert all(ref.paper and ref.claims for ref in stagelens_emergence.plugin.figures)


def test_the_part_of_w_across_the_target_delays_the_drop_as_in_descent():
    """The flow with a third variable against exact descent of the whole model from the same W."""
    import torch

    from stagelens_emergence.data.toy import relevant_moments, target_weights
    from stagelens_emergence.flow import flow_plateau
    from stagelens_emergence.losses import expected_loss
    from stagelens_emergence.model import ToyTransformer
    from stagelens_emergence.theory import across_flow, model_flow

    T, d, lr = 32, 16, 0.25
    stream = torch.Generator().manual_seed(0)
    target = target_weights(d, "unit", stream).double()
    W = torch.randn(d, d, generator=stream, dtype=torch.float64) / d**0.5
    model, moments = ToyTransformer(T, 1, W.clone(), target), relevant_moments(d, 0.0)
    along = float((W * target).sum() / target.norm())
    across = float((W.square().sum() - along**2) ** 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    first, step = float(expected_loss(model, moments).detach()), 0
    while float((loss := expected_loss(model, moments)).detach()) > 0.2 * first:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    with_across = flow_plateau(across_flow(T, d), w_init=[along, across])
    without = flow_plateau(model_flow(T, d), w_init=along)
    assert step * lr == pytest.approx(with_across, rel=0.01)
    assert without < 0.97 * with_across
