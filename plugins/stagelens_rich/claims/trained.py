"""The claims about the trained toy models: G1, G2, G5, G8 and G9."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stagelens import Check, Claim, Run
from stagelens.claims import Lab, at_least, at_most, close, equal, ordered, per_seed, reached, reported
from stagelens.timelines import first_crossing
from stagelens_rich import flow, theory
from stagelens_rich.claims.measures import PAPER, drops, first_layer_attention, growth, half_ways, stage_two, times_of
from stagelens_rich.losses import closed_form
from stagelens_rich.tasks.toy import PARTS
from stagelens_rich.theory import Setting


def phase_checks(runs: Mapping[int, Run], setting: Setting, where: str) -> Iterable[Check]:
    """Yields the checks of Figs. 1 and 3."""
    times = {seed: times_of(run) for seed, run in runs.items()}
    what = "names of the drops of log L_IH2, with a plateau between them"
    yield per_seed(equal, what, runs, list(flow.STAGES), where, of=drops)
    what = "time at which L_G4 is 1% of its start (T_I), then time at which L_IH2 is 1% (T_III)"
    yield per_seed(ordered, what, times, where, of=lambda t: reached([t.T_I, t.T_III]))
    what = "T_o (w_V2 learned), T_II (end of the plateau), T_III (induction head learned)"
    yield per_seed(ordered, what, times, where, of=lambda t: reached([t.T_o, t.T_II, t.T_III]))
    what = "times at which p and w_KQ are half-way to their values at T_III"
    yield per_seed(ordered, what, runs, where, of=lambda run: reached(half_ways(run)))
    for name, time in theory.expected_times(setting, pair=1)._asdict().items():
        found = reached([getattr(t, name) for t in times.values()])
        yield reported(f"{name} in each seed; the flow on the closed forms has {time:.0f}", found, "Theorem 4")


class FourPhases(Claim):
    id = "G1"
    title = "four phases, the 4-gram first"
    reference = "Fig. 1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from phase_checks(lab.each_seed("rich/toy"), PAPER, self.reference)


class PreviousToken(Claim):
    """Lemma 2 is about the limit. The time that it takes is reported."""

    id = "G2"
    title = "stage I: the first layer comes to attend to the previous token"
    reference = "Lemma 2"

    def checks(self, lab: Lab) -> Iterable[Check]:
        timeline = flow.solved(system="first-layer")
        t, p = timeline.scalar("p_first")
        gains = np.diff(np.interp(t[-1] / 10.0 ** np.arange(4)[::-1], t, p))
        what = "growth of p(1,1) while time grows tenfold, at the end of the flow; p = log t + c grows by log 10"
        yield close(what, gains[-1], np.log(10), 0.1, self.reference)
        yield reported("the same for each of the last three factors of ten in time", gains, self.reference)
        attention = timeline.scalar("previous_token")[1]
        yield at_least(f"attention to s - 1 at the end of the flow, t = {t[-1]:.2g}", attention[-1], 0.99, "Eq. 5")
        what = "attention to s - 1 at the end of Stage I, by SGD"
        yield per_seed(at_least, what, lab.each_seed("rich/toy"), 0.99, "Eq. 5", of=first_layer_attention)
        what = "the flow's attention to s - 1 at t = 10^4, the end of B.1's 100,000 steps at lr = 0.1"
        yield reported(what, float(np.interp(1e4, t, attention)), "B.1")
        when = reached(first_crossing(t, attention, 0.99, rising=True))
        yield reported("time at which the flow's attention reaches 0.99", when, "B.1")


class Growth(Claim):
    id = "G5"
    title = "w_KQ grows exponentially on the plateau"
    reference = "Theorem 4, phases II and III"

    def checks(self, lab: Lab) -> Iterable[Check]:
        line = growth(*flow.solved().scalar("w_KQ"), flow.solved_times().T_o, PAPER.w_star)
        what = "R2 of log w_KQ over t in the flow, from T_o until w = w*/2"
        yield at_least(what, reached(line.r2), 0.99, self.reference)
        what = "slope of log w_KQ over 2 h* h phi(w*^2)/(L-2), the rate at w = 0"
        yield reported(what, reached(line.slope / theory.growth_rate(PAPER)), "after Eq. 10")
        lines = {}
        for seed, run in lab.each_seed("rich/toy").items():
            times, _, w = stage_two(run)
            lines[seed] = growth(times, w, times_of(run).T_o, PAPER.w_star)
        what = "R2 of log w_KQ over t under SGD"
        yield per_seed(at_least, what, lines, 0.99, self.reference, of=lambda line: reached(line.r2))
        what = "slope under SGD over h* h phi(w*^2)/(L-2): two parameters w_Q, w_K grow half as fast as one w for both"
        slopes = reached([line.slope / theory.growth_rate(PAPER, 1) for line in lines.values()])
        yield reported(what, slopes, "Lemma 3, C.3.2")


class BooleanTokens(Claim):
    id = "G8"
    title = "Boolean tokens: the same order and phases"
    reference = "Fig. 3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = lab.each_seed("rich/toy", {"tokens": "boolean"})
        yield from phase_checks(runs, PAPER._replace(tokens="boolean"), self.reference)


class AdamEscapes(Claim):
    """The paper's rate of 0.1 for gradient descent is stable only if the loss is a mean over the D dimensions."""

    id = "G9"
    title = "Adam leaves the plateau that gradient descent stays on"
    reference = "Fig. 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for optimizer, judge, limit in (("gd", at_least, 0.99), ("adam", at_most, 0.01)):
            runs = lab.each_seed("rich/high-dim", {"optimizer": optimizer})
            steps = next(iter(runs.values())).experiment.config.steps
            left = {seed: _left_at_the_end(run) for seed, run in runs.items()}
            what = f"{optimizer}: L_IH2 after {steps} steps over its plateau"
            yield per_seed(judge, what, left, limit, self.reference, of=lambda parts: parts[1])
            what = f"{optimizer}: L_G4 after {steps} steps over its start"
            yield reported(what, [four_gram for four_gram, _ in left.values()], self.reference)
            what = f"{optimizer}: steps at which L_G4 and L_IH2 are halved"
            yield reported(what, [reached(_halved(run)) for run in runs.values()], self.reference)


def _halved(run: Run) -> list[float | None]:
    """Returns the steps at which L_G4 and L_IH2 are half of their start."""
    curves = (run.timeline.scalar(name) for name in PARTS)
    return [first_crossing(steps, values, values[0] / 2, rising=False) for steps, values in curves]


def _left_at_the_end(run: Run) -> tuple[float, float]:
    """Returns the closed forms of the last model: L_G4 over its start, L_IH2 over its plateau."""
    task: Any = run.experiment
    c = task.config
    start, end = (
        closed_form(run.model_at(step).double().second, c.alpha_star, c.score, c.L).detach() for step in (0, c.steps)
    )
    return float(end[0] / start[0]), float(end[1] / task.plateau())
