"""The claims about the trained toy model: G1, G2, G5 and G8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stagelens import Check, Claim, Run
from stagelens.claims import Lab, at_least, close, equal, ordered, per_seed, reached, reported
from stagelens.timelines import first_crossing
from stagelens_rich import flow, theory
from stagelens_rich.claims.measures import (
    PAPER,
    drops,
    first_layer_attention,
    growth,
    half_ways,
    halved,
    least_four_gram,
    stage_two,
    times_of,
)
from stagelens_rich.theory import Setting

PROBES = ("head_specialization", "weight_norms")  # what the checks read
# rich/toy at B.1's numbers, by budget. B.1 has lr 0.1 and 100,000 steps for each layer, so both layers train for a time
# (steps times lr) of 10^4. `quick` has the same times in larger steps and smaller batches; `long` has B.1's own steps.
B1 = {
    "quick": {"first_steps": 500, "first_lr": 20.0, "steps": 7200, "lr": 1.5},
    "long": {"first_steps": 100_000, "first_lr": 0.1, "steps": 200_000, "lr": 0.1, "batch_size": 1000},
}
# A run of 200,000 steps takes 8 minutes on a core. All start from the same parameters (Eq. 4); seeds differ in data.
SEEDS = {"quick": 3, "long": 2}
PREVIOUS = 0.99  # ours: attention of a learned first layer to the previous token; Lemma 2 has 1 in the limit


def at_b1(lab: Lab) -> dict[int, Run]:
    """Returns the runs of rich/toy at B.1's numbers, for each seed."""
    return lab.each_seed("rich/toy", lab.of_budget(B1), preset="quick", probes=PROBES)


def with_learned_layer(lab: Lab, settings: Mapping[str, Any] | None = None) -> dict[int, Run]:
    """Returns runs of rich/toy whose first layer trains 150 times longer than B.1: Stage II's theory has it learned."""
    return lab.each_seed("rich/toy", settings, preset="quick", probes=PROBES)


def phase_checks(runs: Mapping[int, Run], where: str, title: str = "") -> Iterable[Check]:
    """Yields the checks of Figs. 1 and 3; their names start with `title`."""
    times = {seed: times_of(run) for seed, run in runs.items()}
    what = f"{title}names of the drops of log L_IH2, with a plateau between them"
    yield per_seed(equal, what, runs, list(flow.STAGES), where, of=drops)
    what = f"{title}time at which L_G4 is half of its start, then time at which L_IH2 is half of its plateau"
    yield per_seed(ordered, what, runs, where, of=lambda run: reached(halved(run)))
    what = f"{title}time at which L_G4 is 1% of its start (T_I), then time at which L_IH2 is 1% (T_III)"
    yield per_seed(ordered, what, times, where, of=lambda t: reached([t.T_I, t.T_III]))
    what = f"{title}T_o (w_V2 learned), T_II (end of the plateau), T_III (induction head learned)"
    yield per_seed(ordered, what, times, where, of=lambda t: reached([t.T_o, t.T_II, t.T_III]))
    what = f"{title}times at which p and w_KQ are half-way to their values at T_III"
    yield per_seed(ordered, what, runs, where, of=lambda run: reached(half_ways(run)))


def phase_reports(runs: Mapping[int, Run], setting: Setting) -> Iterable[Check]:
    """Yields Theorem 4's times of trained runs, next to those of the flow."""
    times = [times_of(run) for run in runs.values()]
    for name, time in theory.expected_times(setting, pair=1)._asdict().items():
        found = reached([getattr(t, name) for t in times])
        yield reported(f"{name} in each seed; the flow on the closed forms has {time:.0f}", found, "Theorem 4")


class FourPhases(Claim):
    """Judges Fig. 1 twice: with a learned first layer, as Stage II's theory has it, and at B.1's own numbers."""

    id, title, reference = "G1", "four phases, the 4-gram first", "Fig. 1, B.1"
    reason = (
        "paper: with a learned first layer all phases are there. B.1's Stage I ends with an attention of 0.6 to the "
        "previous token. Then neither loss falls to 1% in Stage II; the order of the drops is the paper's"
    )

    seeds = SEEDS

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = with_learned_layer(lab)
        yield from phase_checks(runs, self.reference, "first layer learned: ")
        yield from phase_reports(runs, PAPER)
        paper = at_b1(lab)
        yield from phase_checks(paper, self.reference, "B.1's numbers: ")
        what = "B.1's numbers: least L_G4 over its start; e^(-2p) with B.1's p(1,1)"
        yield reported(what, [least_four_gram(run) for run in paper.values()], "B.1")


class PreviousToken(Claim):
    """Lemma 2 is about the limit; the text after it takes the limit as reached when Stage I ends. Both are judged."""

    id, title, reference = "G2", "stage I: the first layer comes to attend to the previous token", "Lemma 2, B.1"
    reason = (
        "paper: the limit is as Lemma 2 says, but p(1,1) grows like log t. B.1's 100,000 steps are a time of 10^4, and "
        "an attention of 0.99 takes 6 10^5"
    )
    seeds = SEEDS

    def checks(self, lab: Lab) -> Iterable[Check]:
        timeline = flow.solved(system="first-layer")
        t, p = timeline.scalar("p_first")
        gains = np.diff(np.interp(t[-1] / 10.0 ** np.arange(4)[::-1], t, p))
        what = "growth of p(1,1) while time grows tenfold, at the end of the flow; p = log t + c grows by log 10"
        yield close(what, gains[-1], np.log(10), 0.1, self.reference)
        yield reported("the same for each of the last three factors of ten in time", gains, self.reference)
        attention = timeline.scalar("previous_token")[1]
        yield at_least(f"attention to s - 1 at the end of the flow, t = {t[-1]:.2g}", attention[-1], PREVIOUS, "Eq. 5")
        for title, runs in (("Stage I 150 times longer than B.1's", with_learned_layer(lab)), ("B.1", at_b1(lab))):
            what = f"{title}: attention to s - 1 at the end of Stage I, by SGD"
            yield per_seed(at_least, what, runs, PREVIOUS, "after Lemma 2", of=first_layer_attention)
        what = "the flow's attention to s - 1 at t = 10^4, the end of B.1's 100,000 steps at lr = 0.1"
        yield reported(what, float(np.interp(1e4, t, attention)), "B.1")
        when = reached(first_crossing(t, attention, PREVIOUS, rising=True))
        yield reported("time at which the flow's attention reaches 0.99", when, "B.1")


class Growth(Claim):
    """Fits log w_KQ over time on the plateau, in the flow and under SGD."""

    id, title, reference = "G5", "w_KQ grows exponentially on the plateau", "Theorem 4, phases II and III"

    def checks(self, lab: Lab) -> Iterable[Check]:
        line = growth(*flow.solved().scalar("w_KQ"), flow.solved_times().T_o, PAPER.w_star)
        what = "R2 of log w_KQ over t in the flow, from T_o until w = w*/2"
        yield at_least(what, reached(line.r2), 0.99, self.reference)
        what = "slope of log w_KQ over 2 h* h phi(w*^2)/(L-2), the rate at w = 0"
        yield reported(what, reached(line.slope / theory.growth_rate(PAPER)), "after Eq. 10")
        lines = {}
        for seed, run in with_learned_layer(lab).items():
            times, _, w = stage_two(run)
            lines[seed] = growth(times, w, times_of(run).T_o, PAPER.w_star)
        what = "R2 of log w_KQ over t under SGD"
        yield per_seed(at_least, what, lines, 0.99, self.reference, of=lambda line: reached(line.r2))
        what = "slope under SGD over h* h phi(w*^2)/(L-2): two parameters w_Q, w_K grow half as fast as one w for both"
        slopes = reached([line.slope / theory.growth_rate(PAPER, 1) for line in lines.values()])
        yield reported(what, slopes, "Lemma 3, C.3.2")


class BooleanTokens(Claim):
    """Makes the checks of the phases with tokens +1 and -1."""

    id, title, reference = "G8", "Boolean tokens: the same order and phases", "Fig. 3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = with_learned_layer(lab, {"tokens": "boolean"})
        yield from phase_checks(runs, self.reference)
        yield from phase_reports(runs, PAPER._replace(tokens="boolean"))
