"""The claims of the recall plugin: their measurements on timelines, and the verdicts that are quick to compute."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stagelens import Reading
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.host.host import make_host
from stagelens.timelines.timeline import Timeline, pack
from stagelens_recall import theory
from stagelens_recall.claims import measures

HEADS = {"recall_head": [1, 2, 3]}
LEARNED = {1: 200, 2: 100, 3: 300}  # the step at which each head of `staircase` learns


def staircase() -> Timeline:
    """Three heads learn at steps 100, 200 and 300, in the order 2, 1, 3; each turns to its own token."""
    steps = np.arange(0, 401, 4)
    rng = np.random.default_rng(0)
    measurements = []
    for step in steps:
        on = [step >= LEARNED[h] for h in (1, 2, 3)]
        loss = [0.71875, 0.625, 0.375, 0.0][sum(on)] + 1e-4 * rng.normal()
        mass = np.where(np.eye(3, 5), 0.25 + 0.7 * np.array(on)[:, None], 0.1)
        mass = np.stack([mass, np.full((3, 5), np.nan)])  # [layer, head, group]
        names = {"group": ["token 1", "token 2", "token 3", "token 4", "rest"]}
        readings = [
            Reading("loss", loss),
            Reading("recall_circuit/beta", np.where(on, 4.0, 0.05), ("recall_head",), HEADS),
            Reading("head_specialization/mass", mass, ("layer", "head", "group"), names),
        ]
        measurements.append(pack(int(step), readings))
    return Timeline(measurements)


def test_the_order_of_learning_is_read_off_the_betas():
    timeline = staircase()
    assert measures.order_of_learning(timeline) == [2, 1, 3]
    part = (1.0 - 0.05) / (4.0 - 0.05)  # of the way from 0.05 to 4 between two measurements, beta passes 1
    assert measures.learned_at(timeline) == pytest.approx({h: t - 4 + 4 * part for h, t in LEARNED.items()})


def test_plateaus_are_read_between_the_drops():
    timeline = staircase()
    assert measures.levels(timeline) == pytest.approx([0.71875, 0.625, 0.375, 0], abs=1e-3)
    assert measures.active_heads(timeline) == ["none", "2", "1,2", "1,2,3"]
    assert measures.own_attention(timeline)[1] == pytest.approx([0.25, 0.95, 0.25])


def test_a_head_that_falls_back_has_not_learned():
    timeline = staircase()
    betas = timeline.series("recall_circuit/beta").copy()
    betas[-1, 2] = 0.0
    measurements = [
        pack(int(step), [Reading("recall_circuit/beta", row, ("recall_head",), HEADS)])
        for step, row in zip(timeline.steps, betas, strict=True)
    ]
    assert measures.order_of_learning(Timeline(measurements)) == [2, 1]


def test_partial_predictors_are_named_in_the_order_in_which_they_are_passed():
    names = {"reference": ["nothing", "token 1", "token 2"]}
    nearest = [0, 0, 0, 2, 1, 1, 1, 1]  # a single visit to token 2 does not count
    measurements = [
        pack(step, [Reading("kl_to_references/kl", 1.0 - np.eye(3)[place], ("reference",), names)])
        for step, place in enumerate(nearest)
    ]
    assert measures.matched_sets(Timeline(measurements)) == ["nothing", "token 1"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The claims about flows, verified."""
    host = make_host()
    lab = Lab(host, tmp_path_factory.mktemp("cache"))
    chosen = choose(host, ["recall"], ["R3", "R4", "R5", "R6", "R7", "R8"])
    return {claim.ref.id: verify_claim(claim, lab) for claim in chosen}


@pytest.mark.parametrize("claim", ["R3", "R4", "R5", "R6", "R7"])
def test_the_theorems_hold(results, claim):
    result = results[claim]
    assert result.verdict == "holds", [check for check in result.checks if not check.holds] or result.error


def test_the_numbers_decide_between_the_papers_forms(results):
    measured = {check.what: check.measured for check in results["R4"].checks + results["R5"].checks}
    assert measured["the form that the flow supports"] == "without Eq. 4's factor 2"
    assert measured["the sign that is conserved"] == "proof"
    (eq4,) = [value for what, value in measured.items() if "with Eq. 4's Xi" in what]
    assert eq4 == pytest.approx(0.5, rel=1e-6)


def test_later_jumps_agree_only_if_settled_tokens_are_masked(results):
    result = results["R8"]
    assert result.verdict == "differs"
    literal = [check for check in result.checks if "largest distance of its loss" in check.what]
    assert len(literal) == 2 and not any(check.holds for check in literal)
    stretch = [check.measured for check in result.checks if "its time over that" in check.what]
    assert stretch == pytest.approx([4 / 3, 2], rel=0.02)
    masked = [check for check in result.checks if "settled tokens masked" in check.what]
    assert len(masked) == 2 and all(check.holds for check in masked)


def test_log_log_t_is_distinguished_from_the_other_laws(results):
    """The same numbers with alpha = log t or t^.01 fail: the claim can differ."""
    from stagelens_recall.claims.flow import LAWS, LateGrowth, residual_variance

    t = np.geomspace(1e12, 1e100, 500)
    for name in ("log t", "t^.01"):
        alpha = LAWS[name](t)
        assert residual_variance(LAWS[name](t), alpha) < 1e-9
        assert residual_variance(LAWS["log log t"](t), alpha) > 100 * residual_variance(LAWS[name](t), alpha)
        slopes = [np.ptp(LAWS[name](np.array(ends))) / np.ptp(np.log(np.log(ends))) for ends in LateGrowth.RANGES]
        assert (np.diff(np.log(slopes)) > np.log(1.9)).all()  # it doubles, so that no two are within 15% of 1
    worse = [check.measured for check in results["R7"].checks if "residual variance" in check.what]
    assert len(worse) == 2 and min(worse) > LateGrowth.WORSE
    assert [check.sanity for check in results["R7"].checks if "conservation law" in check.what] == [True]


def test_rescaled_curves_agree_and_unscaled_ones_do_not():
    t = np.linspace(0, 100, 1001)
    step = theory.plateau_loss(4, 4, 1) - theory.plateau_loss(4, 4, 2)

    def flow(at):
        loss = theory.plateau_loss(4, 4, 1) - step / (1 + np.exp(-(t - at) / (at / 20)))
        readings = [[Reading("loss", float(value))] for value in loss]
        measured = Timeline([pack(float(time), values) for time, values in zip(t, readings, strict=True)])
        return SimpleNamespace(timeline=measured, manifest=SimpleNamespace(events={"escape": float(at)}))

    late, early = flow(40.0), flow(20.0)
    assert measures.loss_distance(late, early, 2) > 0.9
    assert measures.loss_distance(late, early, 2, slower=2.0) < 1e-3


def test_every_claim_of_the_ledger_is_there_under_its_own_title():
    host = make_host()
    refs = {id: ref for id, ref in host.claims if host.claims.owners[id] == "recall"}
    assert list(refs) == [f"R{i}" for i in range(1, 10)]
    for id, ref in refs.items():
        claim = ref.load()
        assert (claim.id, claim.title) == (id, ref.title) and claim.seeds >= 3
