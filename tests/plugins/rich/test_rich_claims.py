"""The claims of the rich plugin about the flow and the toy model: their measurements on curves, and their verdicts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stagelens import Reading
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.host.host import make_host
from stagelens.timelines.timeline import Timeline, pack
from stagelens_rich.claims import measures, optimizers, trained


def test_growth_is_read_between_the_start_and_half_of_w_star():
    t = np.linspace(0, 100, 201)
    w = np.minimum(0.01 * np.exp(0.05 * t), 0.5)
    w[t < 10] = 0.01  # before the plateau: not in the fit
    line = measures.growth(t, w, 10.0, 0.5)
    assert line.slope == pytest.approx(0.05, rel=1e-6) and line.r2 > 1 - 1e-9


def test_a_grid_changes_one_key_at_a_time():
    points = measures.grid({"a": 1, "b": 2}, a=(1, 5), b=(7,))
    assert points == [{"a": 1, "b": 2}, {"a": 5, "b": 2}, {"a": 1, "b": 7}]


def test_the_columns_are_theorem_4s_variables():
    point = {"L": 40, "sigma_init": np.exp(-3), "alpha_star": 2.0, "w_star": 0.3}
    assert measures.theorem_columns([point]) == {
        "L": [40],
        "log(1/sigma)": [pytest.approx(3)],
        "1+alpha*": [3.0],
        "w*": [0.3],
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The claims about flows, verified."""
    host = make_host()
    lab = Lab(host, tmp_path_factory.mktemp("cache"))
    return {c.ref.id: verify_claim(c, lab) for c in choose(host, ["rich"], ["G3", "G4", "G6", "G11"])}


@pytest.mark.parametrize("claim", ["G3", "G6"])
def test_the_claims_about_flows_hold(results, claim):
    result = results[claim]
    assert result.verdict == "holds", [check for check in result.checks if not check.holds] or result.error


def test_phase_one_differs_at_the_papers_size_and_holds_for_long_sequences(results):
    result = results["G11"]
    assert result.verdict == "differs"
    assert [check.holds for check in result.checks if check.judged] == [False, True]
    measured = {check.what: check.measured for check in result.checks}
    assert 30_000 < measured["smallest L at which it holds"] < 50_000


def test_phase_three_follows_the_theorem_and_phase_two_does_not_at_w_049(results):
    """There w_V2's own relaxation ends phase II, which does not depend on sigma."""
    result = results["G4"]
    assert result.verdict == "differs" and result.reason.startswith("paper:")
    judged = {check.what: check for check in result.checks if check.judged}
    assert len(judged) == 8
    assert all(check.holds for what, check in judged.items() if "T_III" in what)
    assert not judged["exponent of T_II in log(1/sigma)"].holds


def test_the_claims_at_b1_have_b1s_times():
    for settings in trained.B1.values():
        first, second = settings["first_steps"], settings["steps"] - settings["first_steps"]
        assert first * settings["first_lr"] == pytest.approx(1e4)
        assert second * settings["lr"] == pytest.approx(1e4, rel=0.01)
    for settings in optimizers.SETTINGS["gd"].values():
        assert settings["steps"] * settings["lr"] == pytest.approx(1e4, rel=0.001)


def falling(levels, steps=400):
    """A run in 100 dimensions whose L_IH2 has plateaus at these levels, in units of its plateau."""
    t, decades = np.arange(0, steps + 1), np.log10(levels)
    edges = np.linspace(0, steps, len(levels) + 1)[1:-1]
    falls = [fall / (1 + np.exp(-(t - edge) / 2)) for edge, fall in zip(edges, np.diff(decades), strict=True)]
    induction, four_gram = 10 ** (decades[0] + sum(falls)), 0.5 / (1 + t)
    parts = {"loss_4gram": four_gram, "loss_induction": induction}
    rows = [[Reading(name, float(values[i])) for name, values in parts.items()] for i in range(len(t))]
    timeline = Timeline([pack(int(step), row) for step, row in zip(t, rows, strict=True)])
    return SimpleNamespace(timeline=timeline, experiment=SimpleNamespace(plateau=lambda: 1.0))


@pytest.mark.parametrize(("levels", "expected"), [([400, 1, 1e-4], 1), ([400, 1, 0.3, 0.05, 1e-4], 3), ([400, 1], 0)])
def test_plateaus_between_falls_are_counted(levels, expected):
    assert optimizers.inner_plateaus(falling(levels)) == expected


def test_halves_are_those_of_the_start_or_of_the_plateau():
    run = falling([400, 1, 1e-4])
    first, start = optimizers.halved_parts(run)
    assert first == pytest.approx(1) and start == pytest.approx(400 / 3, abs=8)
    assert optimizers.halved_parts(run, plateau=True)[1] == pytest.approx(800 / 3, abs=8)


def test_every_claim_of_the_ledger_is_there_under_its_own_title():
    host = make_host()
    refs = {id: ref for id, ref in host.claims if host.claims.owners[id] == "rich"}
    assert list(refs) == [f"G{i}" for i in range(1, 12)]
    for id, ref in refs.items():
        if id != "G10":
            claim = ref.load()
            seeds = claim.seeds if isinstance(claim.seeds, int) else claim.seeds["quick"]
            assert (claim.id, claim.title) == (id, ref.title) and seeds >= 3
