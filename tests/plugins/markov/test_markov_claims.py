"""The claims of the minimal architecture on timelines written by hand, which agree or disagree with the paper."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stagelens.claims import BUDGETS, Claim
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.host.host import make_host
from stagelens.timelines.reading import Reading
from stagelens.timelines.timeline import Timeline, pack
from stagelens_markov import plugin
from stagelens_markov.claims import flow as claims_of_the_flow, measures, trained as claims

STEPS = np.arange(0, 1001, 5)
GROUPS = ["I(1)", "I(2)", "I(3)", "rest"]
PHASES = ("diffuse", "competitive", "cooperative")


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -50, 50)))


def history(learned=(20.0, 200.0, 600.0), together=True, nearest=(60, 400, 1000), levels=None, best=1000) -> Timeline:
    """Three heads that start spread out, turn to I(1) at learned[0] and, but for the first, to I(k) at learned[k - 1].

    `learned` None: that head stays on I(1). With `together` False head 3 never turns to I(1). The KL divergence from
    f_{A*_1:i} is least at nearest[i - 1]. The excess loss falls to the next of `levels` at each learned time.
    The validation loss is least at step `best`.
    """
    times = [time for time in learned if time is not None]
    levels = levels if levels is not None else [*[1.0, 0.5, 0.2, 0.0][: len(times)], 0.0]
    measurements = []
    for step in STEPS:
        mass = np.full((3, 4), 0.02)
        for head in range(3):
            first = sigmoid((step - learned[0]) / 2)
            own = 0.0 if not head or learned[head] is None else sigmoid((step - learned[head]) / 2)
            stays = 0.0 if head == 2 and not together else 1.0
            mass[head] += 0.92 * np.array([first * (1 - own) * stays, 0, 0, 0])
            mass[head, head] += 0.92 * first * own
            mass[head, 3] += 0.92 - (mass[head].sum() - 0.08)
        leader = mass.argmax(-1)
        parted = sum(step > time for time in times[1:])
        phase = 0 if step < learned[0] else 1 if not parted else 2
        excess = levels[0] + sum(
            (after - before) * sigmoid((step - time) / 3)
            for before, after, time in zip(levels, levels[1:], times, strict=False)
        )
        measurements.append(
            pack(
                float(step),
                [
                    Reading("excess", excess),
                    Reading("loss", 1 + abs(step - best) / 1000),
                    Reading("kl_to_references/kl", 0.1 + np.abs(step - np.array(nearest)) / 1000, ("reference",)),
                    Reading("head_specialization/mass", mass[None], ("layer", "head", "group"), {"group": GROUPS}),
                    Reading("head_specialization/leader", leader[None], ("layer", "head"), labels=tuple(GROUPS)),
                    Reading("head_specialization/phase", np.array([phase]), ("layer",), labels=PHASES),
                    Reading("head_specialization/coverage", np.array([len({*leader} - {3}) / 3]), ("layer",)),
                ],
            )
        )
    return Timeline(measurements)


class WrittenLab:
    """Gives timelines written by hand, by what is changed in the config."""

    budget = "quick"
    seeds = (0, 1, 2)

    def __init__(self, timeline, **changed):
        self.timeline, self.changed = timeline, changed

    def each_seed(self, task, settings, preset, probes):
        if task in self.changed:
            return {seed: SimpleNamespace(timeline=self.changed[task]) for seed in self.seeds}
        for key, value in settings.items():
            if f"{key}={value}" in self.changed and value != claims.SIZES[task]["quick"].get(key):
                return {seed: SimpleNamespace(timeline=self.changed[f"{key}={value}"]) for seed in self.seeds}
        return {seed: SimpleNamespace(timeline=self.timeline) for seed in self.seeds}


def verdicts(claim: type[Claim], timeline: Timeline, **changed: Timeline) -> list[bool]:
    """Whether each judged check holds."""
    return [check.holds for check in claim().checks(WrittenLab(timeline, **changed)) if check.judged]


def test_the_times_at_which_patterns_are_learned_are_interpolated():
    times = measures.times_learned(history(learned=(21.0, 203.0, None)))
    assert times == {"I(1)": pytest.approx(21, abs=1), "I(2)": pytest.approx(203, abs=1)}


def test_stages_in_the_order_of_importance_hold_and_others_differ():
    claim = claims.FreshData
    assert verdicts(claim, history()) == [True, True]
    assert verdicts(claim, history(nearest=(400, 60, 1000))) == [False, True]
    assert verdicts(claim, history(nearest=(60, 60, 1000))) == [False, True]
    assert verdicts(claim, history(nearest=(60, 1000, 1000))) == [False, False]  # it never leaves f_{A*_1:2}


@pytest.mark.parametrize("claim", [claims.FollowImportance, claims.RestrictedContexts])
def test_importance_orders_the_stages_of_both_models(claim):
    late = history(nearest=(400, 60, 1000))
    assert verdicts(claim, history()) == [True, True, True, True]
    assert verdicts(claim, history(), **{claims.FULL: late}) == [True, True, False, True]
    assert verdicts(claim, late, **{claims.FULL: history()}) == [False, True, True, True]


def test_competition_then_cooperation():
    def of_minimal(timeline):
        return verdicts(claims.CompeteThenCooperate, timeline, **{claims.FULL: history()})

    assert of_minimal(history()) == [True, True, True, True, True, True]
    assert of_minimal(history(learned=(20, 200, None)))[:3] == [True, True, False]
    assert of_minimal(history(learned=(20, None, None)))[:3] == [False, True, False]
    assert of_minimal(history(together=False))[1] is False
    assert of_minimal(history(learned=(2000.0, None, None)))[:3] == [False, False, False]
    diffuse = {claims.FULL: history(learned=(2000.0, None, None))}
    assert verdicts(claims.CompeteThenCooperate, history(), **diffuse) == [True, True, True, False, False, False]


def test_the_fraction_of_the_competitive_phase_in_which_all_heads_attend_to_one_interval():
    assert measures.fraction_together(history()) == pytest.approx(1.0, abs=0.05)
    assert measures.fraction_together(history(together=False)) == 0.0
    assert measures.fraction_together(history(learned=(2000.0, None, None))) == "no competitive phase"

    class Leaving(Timeline):
        """Head 2 leaves I(1) at step 60, while the phase lasts from 20 to 200."""

        def series(self, name):
            values = super().series(name).copy()
            if name == "head_specialization/leader":
                values[60 // 5 :, 0, 1] = 1.0
            return values

    assert measures.fraction_together(Leaving(history()._measurements)) == pytest.approx(40 / 180, abs=0.05)


def test_a_visit_of_one_measurement_is_no_phase():
    class Flickering(Timeline):
        def series(self, name):
            values = super().series(name).copy()
            if name == "head_specialization/phase":
                values[100, 0] = 1.0
            return values

    whole = history()
    assert whole.series("head_specialization/phase")[100, 0] == 2.0
    assert measures.phase_sequence(Flickering(whole._measurements)) == list(PHASES)


def test_initialization_scale():
    one = history(learned=(20, None, None))
    slow, slower = history(learned=(20, 300, 700)), history(learned=(20, 400, 900))
    scales = {"init_scale=0.0": one, "init_scale=1.0": history(), "init_scale=0.01": slower}
    assert verdicts(claims.InitializationScale, slow, **scales) == [True, True]
    assert verdicts(claims.InitializationScale, slow, **scales | {"init_scale=0.0": slower}) == [False, True]
    assert verdicts(claims.InitializationScale, slow, **scales | {"init_scale=1.0": slower}) == [True, False]
    assert verdicts(claims.InitializationScale, slow, **scales | {"init_scale=0.01": one}) == [True, False]


def test_the_number_of_drops_follows_the_ratio_of_importance():
    two = history(learned=(60.0, 500.0, 501.0), levels=[1.0, 0.5, 0.25, 0.0])
    three = history(learned=(60.0, 300.0, 700.0))

    def verdict(first, others):
        lab = WrittenLab(others, **{"m=1.0": first})
        lab.budget = "long"
        return [check.holds for check in claims.ImportanceRatio().checks(lab) if check.judged]

    assert verdict(two, three) == [True, True, True]
    assert verdict(three, two) == [False, False, False]


def test_a_drop_is_counted_per_step_and_a_decay_once():
    """Two drops of which the second is twenty times as slow: in log time both are as steep."""

    def drops(curve):
        steps = np.arange(0, 4001, 10.0)
        return measures.drop_times(SimpleNamespace(scalar=lambda _: (steps, curve(steps))))

    assert drops(lambda step: np.exp(-step / 300)) == [pytest.approx(10, rel=0.1)]
    found = drops(lambda step: sigmoid((100 - step) / 10) + sigmoid((2000 - step) / 200))
    assert found == [pytest.approx(100, rel=0.15), pytest.approx(2000, rel=0.15)]


def test_fewer_sequences_may_not_reach_more_stages():
    one, two, three = history(best=60), history(best=400), history(best=1000)
    assert [measures.stages_at_best(timeline) for timeline in (one, two, three)] == [1, 2, 3]

    def verdict(smallest, middle, largest):
        return verdicts(claims.DatasetSize, largest, **{"train_size=384": smallest, "train_size=1152": middle})

    assert verdict(one, two, three) == [True, True]
    assert verdict(one, one, two) == [True, True]
    assert verdict(two, one, three) == [False, True]
    assert verdict(three, three, three) == [True, False]


def test_the_furthest_interval_must_come_first():
    assert verdicts(claims.ReversedOrder, history()) == [True] * 6
    swapped = verdicts(claims.ReversedOrder, history(learned=(20, 600, 200)))
    assert (swapped[2], swapped[5]) == (False, True)  # of the full model, attention decides the first one only
    assert verdicts(claims.ReversedOrder, history(learned=(20, 200, None)))[2] is False
    none = verdicts(claims.ReversedOrder, history(learned=(2000, None, None)))
    assert (none[2], none[5]) == (False, False)


def test_weight_decay_may_move_the_stages_by_a_tenth():
    decayed = history(learned=(20, 200, 600))
    near, far = history(learned=(20.5, 215, 560)), history(learned=(20, 200, 700))
    assert verdicts(claims.WeightDecay, decayed, **{"weight_decay=0.0": near}) == [True]
    assert verdicts(claims.WeightDecay, decayed, **{"weight_decay=0.0": far}) == [False]
    assert verdicts(claims.WeightDecay, decayed, **{"weight_decay=0.0": history(learned=(20, 200, None))}) == [False]


def test_every_claim_runs_from_training_to_verdict(tmp_path, monkeypatch):
    """At these sizes nothing is learned. No claim may be an error, and the numbers it cites must be in its checks."""
    tiny = {"d": 4, "T": 3, "steps": 10, "batch_size": 8, "train_size": 16, "eval_size": 8}
    full = tiny | {"d_model": 12, "intervals": [[1, 2], [3, 4], [5, 6]]}
    monkeypatch.setattr(
        claims, "SIZES", {claims.MINIMAL: dict.fromkeys(BUDGETS, tiny), claims.FULL: dict.fromkeys(BUDGETS, full)}
    )
    monkeypatch.setattr(claims.RestrictedContexts, "full", {"quick": ("quick", full)})
    monkeypatch.setattr(claims.InitializationScale, "shorter", {"quick": {}})
    monkeypatch.setattr(claims.DatasetSize, "sizes", {"quick": {8: {}, 16: {}}})
    reversed_order = {"quick": claims.ReversedOrder.small}
    monkeypatch.setattr(claims.ReversedOrder, "changes", dict.fromkeys((claims.MINIMAL, claims.FULL), reversed_order))
    trained = [ref.id for ref in plugin.claims if ".trained:" in ref.target]
    host = make_host()
    results = [verify_claim(chosen, Lab(host, tmp_path), seeds=1) for chosen in choose(host, claims=trained)]
    assert {result.id: result.error for result in results} == dict.fromkeys(trained, "")
    assert [result.id for result in results if result.verdict == "needs budget"] == ["M5"]
    assert all(check.reference == result.reference for result in results for check in result.checks)
    made = len(list(tmp_path.glob("runs/*/run.json")))
    assert made == 12  # both models, contexts of both, u = 0, 1, .01, 8 sequences, fresh data, both reversed, no decay
    (chosen,) = choose(host, claims=["M5"])
    result = verify_claim(chosen, Lab(host, tmp_path, "long"), seeds=1)
    assert (result.error, result.verdict) == ("", "differs")


def test_references_agree_with_the_classes():
    for ref in plugin.claims:
        claim = ref.load()
        assert (claim.id, claim.title) == (ref.id, ref.title)
        assert claim.reference


@pytest.mark.parametrize(("rate", "holds"), [(0.5, True), (2.0, False)])
def test_the_bound_of_theorem_2_can_fail(rate, holds):
    """A deviation that grows faster than exp(c t) exceeds the bound, and its heads separate too early."""
    times = np.linspace(0, 8, 50)
    series = {"deviation": 1e-6 * np.exp(rate * times)}
    manifest = SimpleNamespace(events={"heads part": np.log(0.1 / 1e-6) / rate})
    run = SimpleNamespace(timeline=SimpleNamespace(steps=times, series=series.__getitem__), manifest=manifest)
    c = 1.0
    assert (measures.over_bound(run, c) <= claims_of_the_flow.Deviations.rounding) is holds
    assert (measures.earliest_parting(run, c) >= 1) is holds
    assert measures.growth_rate(run) == pytest.approx(rate)


def test_missing_times_are_strings_and_not_zero():
    assert measures.time_ratios([1.0, 3.0, "not by 9"]) == [3.0, "not reached"]
    assert np.isnan(measures.parting_exponent([1e-5, 1e-6], [10.0, float("nan")]))
