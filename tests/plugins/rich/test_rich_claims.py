"""The rich plugin's claims about the flow and the toy model: what they read off curves, and their verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.host.host import make_host
from stagelens_rich.claims import measures


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


@pytest.mark.parametrize("claim", ["G3", "G4", "G6"])
def test_the_claims_about_flows_hold(results, claim):
    result = results[claim]
    assert result.verdict == "holds", [check for check in result.checks if not check.holds] or result.error


def test_phase_one_differs_at_the_papers_size_and_holds_for_long_sequences(results):
    result = results["G11"]
    assert result.verdict == "differs"
    assert [check.holds for check in result.checks if check.judged] == [False, True]
    measured = {check.what: check.measured for check in result.checks}
    assert 30_000 < measured["smallest L at which it holds"] < 50_000


def test_phase_two_by_its_definition_does_not_follow_at_w_049(results):
    """There it is w_V2's own relaxation that ends it, which knows nothing of sigma."""
    measured = {check.what: check.measured for check in results["G4"].checks}
    (found,) = [value for what, value in measured.items() if what.startswith("exponents of T_II") and "same" in what]
    assert abs(found[1]) < 0.9


def test_every_claim_of_the_ledger_is_there_under_its_own_title():
    host = make_host()
    refs = {id: ref for id, ref in host.claims if host.claims.owners[id] == "rich"}
    assert list(refs) == [f"G{i}" for i in range(1, 12)]
    for id, ref in refs.items():
        if id != "G10":
            claim = ref.load()
            assert (claim.id, claim.title) == (id, ref.title) and claim.seeds >= 3
