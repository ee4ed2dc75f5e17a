"""The claims about trained models: M1 to M9.

Each claim has one table of settings per budget. `quick` is a small chain, `long` has the paper's sizes with smaller
batches, `paper` has the paper's own. Thresholds are ours unless a comment says otherwise: the paper shows curves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from stagelens import Check, Claim, Timeline
from stagelens.claims import Lab, Value, at_least, close, equal, ordered, per_seed, reached, reported
from stagelens_markov.claims import measures

MINIMAL, FULL = "markov/minimal", "markov/full"
PROBES = ("head_specialization", "kl_to_references")
RISES = 1.1  # times its minimum: a KL divergence above it has risen again
TOGETHER = 0.5  # of the competitive phase's steps: every head attends most to I(1) for at least the larger part of it
NEARBY = 0.1  # relative: stages within it are at the same time

Budgets = Mapping[str, Mapping[str, Any]]
PRESETS = {"quick": "quick", "long": "paper", "paper": "paper"}  # the preset that a budget's settings change

# Smaller than the paper (d = 50, T = 20, batches of 3000), so that a run takes seconds on a laptop. What I(1), I(2) and
# I(3) add to the logits has nearly the paper's spread (2.8, 1.8 and 1.2; there 2.9, 1.7 and 1.0). Batches have 384 * 12
# tokens: with a quarter of them the gradient is so noisy that I(3) often takes more than a thousand steps.
QUICK: dict[str, Any] = {"d": 12, "T": 12, "m": 1.5, "b0": 6.0, "init_scale": 0.1, "steps": 900, "batch_size": 384}
QUICK |= {"lr": 0.03, "train_size": 4224, "eval_size": 512}
# The paper's sizes but for the batches (3,000 there), which make a run five times as fast. `patience` is ten passes
# over the 9,000 sequences, as in the preset. Smaller batches learn I(3) later, so there are 4,000 steps, not 2,000.
LONG: dict[str, Any] = {"batch_size": 600, "patience": 150, "steps": 4000, "eval_size": 1000}
# Why most claims differ at these sizes, found on seed 0 after seeds 10 to 12 had been judged.
TWO_PATTERNS = (
    "reading: at the paper's sizes the minimal model learns I(1) and I(2) only, and two heads stay on I(1). Seed 0 "
    "does the same with the preset `paper`, with u = 0.05, and in 6,000 steps on fresh data at a constant rate. C.1 "
    "does not give its u"
)
# Table 4's intervals of four lags and Table 3's feedforward layer. The rest is smaller than the paper (d = 50, T = 20,
# width 255, batches of 3,000, which take hours), and the start is that of the preset `quick`.
FULL_LONG: dict[str, Any] = {"d": 30, "T": 8, "d_model": 126, "batch_size": 500, "eval_size": 500, "patience": 0}
FULL_LONG |= {"init_scale": 0.1, "steps": 1000}
SIZES: Mapping[str, Budgets] = {
    MINIMAL: {"quick": QUICK, "long": LONG, "paper": {}},
    FULL: {"quick": {}, "long": FULL_LONG, "paper": {}},
}


def timelines(lab: Lab, task: str = MINIMAL, **changes: Any) -> dict[int, Timeline]:
    """Returns the timeline of each seed, of `task` with `changes` to the sizes of the lab's budget."""
    settings = {**SIZES[task][lab.budget], **changes}
    found = lab.each_seed(task, settings, preset=PRESETS[lab.budget], probes=PROBES)
    return {seed: run.timeline for seed, run in found.items()}


def follow_importance(
    found: Mapping[int, Timeline], task: str, reference: str, to: str = "f_{A*_1:i} (Eq. 3)"
) -> Iterator[Check]:
    """Yields two checks: the model is nearest to each reference in the order of importance, and then leaves it."""
    what = f"{task}: step at which the KL divergence from {to} is least, i = 1..h"
    yield per_seed(ordered, what, found, reference, of=measures.nearest_steps)
    what = f"{task}: last KL divergence from {to} in units of its least, i < h"
    yield per_seed(at_least, what, found, RISES, reference, of=measures.rises_after)


class FollowImportance(Claim):
    """The paper's Fig. 3 is of the full model, and Fig. 1 of the minimal one."""

    id, title, reference = "M1", "stages follow importance", "Fig. 3 left"
    reason = {"long": f"{TWO_PATTERNS}. The full model has the paper's order"}

    def checks(self, lab: Lab) -> Iterable[Check]:
        for task in (MINIMAL, FULL):
            yield from follow_importance(timelines(lab, task), task, self.reference)


class RestrictedContexts(Claim):
    """The references are models of another seed, with as many steps, and with keys beyond i intervals masked.

    The paper's Fig. 3 is of the full model. It needs four trainings for each seed, so budget long has its quick sizes.
    """

    id, title, reference = "M2", "stages follow models that see one interval, then two, then all", "Fig. 3 right"
    reason = {
        "quick": "size: seed 12 does not learn I(3) in 900 steps of a small chain; until then the order is the paper's"
    }

    full: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # preset of the full model, and changes to it
        "quick": ("quick", {}),
        "long": ("quick", {}),
        "paper": ("paper", {}),
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        contexts = {"compare": "contexts"}
        preset, size = self.full[lab.budget]
        runs = lab.each_seed(FULL, {**size, **contexts}, preset=preset, probes=PROBES)
        full = {seed: run.timeline for seed, run in runs.items()}
        for task, found in ((MINIMAL, timelines(lab, **contexts)), (FULL, full)):
            yield from follow_importance(found, task, self.reference, "the model with i intervals of context")


class CompeteThenCooperate(Claim):
    """In the competitive phase every head attends most to I(1): judged by the fraction of the phase in which it is so.

    The phase is the probe's: attention is sparse and the overlap of the heads is above one half. A head that leaves
    I(1) overlaps with the others for a while, so the statement cannot hold until the very end of the phase.
    """

    id, title, reference = "M3", "heads compete for the most important pattern, then cooperate", "Figs. 1, 2"
    reason = {
        "quick": "size: in seed 12 no head of the minimal model learns I(3) in 900 steps of a small chain. All else "
        "holds",
        "long": f"{TWO_PATTERNS}. The phases are the paper's, and all of the full model",
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        for task in (MINIMAL, FULL):
            yield from self.phases(timelines(lab, task), task)

    def phases(self, found: Mapping[int, Timeline], task: str) -> Iterable[Check]:
        """Yields the checks of one task."""
        where = self.reference
        what = f"{task}: phases that last {measures.LASTING} measurements or more"
        phases = {seed: measures.phase_sequence(timeline) or "none" for seed, timeline in found.items()}
        yield per_seed(equal, what, phases, ["diffuse", "competitive", "cooperative"], where)
        what = f"{task}: fraction of the competitive phase's steps in which every head attends most to I(1)"
        yield per_seed(at_least, what, found, TOGETHER, where, of=measures.fraction_together)
        coverage = {seed: t.series("head_specialization/coverage")[-1, 0] for seed, t in found.items()}
        what = f"{task}: coverage at the end: distinct largest groups / groups"
        yield per_seed(close, what, coverage, 1.0, 1e-6, where, relative=False)


class InitializationScale(Claim):
    """Counts the patterns learned at u = 0, and compares the step of the second pattern between scales."""

    id, title = "M4", "identical heads learn one pattern; a larger initialization separates them sooner"
    reference = "Fig. 4 left"
    reason = {
        "quick": "size: u = 0.1 is slower than u = 0.01 in seed 11 of a small chain; the other two seeds have the "
        "paper's order",
        "long": "size: the order is the paper's, but in 4,000 steps the second pattern is not learned with u = 0.01 in "
        "two of three seeds, nor with u = 0.1 in one of them",
    }
    scales = (1.0, 0.1, 0.01)  # u; the paper's values are in its figure only
    shorter: Budgets = {"quick": {"steps": 450}, "long": {}, "paper": {}}  # enough for two patterns

    def checks(self, lab: Lab) -> Iterable[Check]:
        counts = {seed: len(measures.times_learned(found)) for seed, found in timelines(lab, init_scale=0.0).items()}
        yield per_seed(equal, "patterns that are ever learned at u = 0", counts, 1, self.reference)
        base, shorter = SIZES[MINIMAL][lab.budget].get("init_scale"), self.shorter[lab.budget]
        by_scale = [timelines(lab, init_scale=u, **({} if u == base else shorter)) for u in self.scales]
        what = f"step at which a second pattern is learned, u = {', '.join(f'{u:g}' for u in self.scales)}"
        times = {seed: [self.second(found[seed]) for found in by_scale] for seed in lab.seeds}
        yield per_seed(ordered, what, times, self.reference)

    @staticmethod
    def second(timeline: Timeline) -> Value:
        """Returns the step at which the second pattern is learned."""
        times = sorted(measures.times_learned(timeline).values())
        return reached(times[1] if len(times) > 1 else None, by=timeline.steps[-1])


class ImportanceRatio(Claim):
    """Drops are counted where the loss falls fastest per step, at the paper's d, T, b0, lr and u.

    Smaller chains do not decide it: the first two drops merge in some seeds, and a third pattern is learned late in
    others. The paper says that the three stages of m = 1.3 are intertwined, so that ratio is reported.
    """

    id, title = "M5", "without an order of importance the loss falls in two drops, with one in three"
    reference = "Fig. 4 right"
    budget = "long"
    expected = {1.0: 2, 1.5: 3, 1.7: 3}  # drops at the ratio m, by the text of C.1
    intertwined = 1.3

    def checks(self, lab: Lab) -> Iterable[Check]:
        where = self.reference
        for m in (*self.expected, self.intertwined):
            found = timelines(lab, m=m)
            drops = {seed: measures.drop_times(timeline) for seed, timeline in found.items()}
            counts = {seed: len(times) for seed, times in drops.items()}
            what = f"drops of the excess loss at m = {m:g}"
            if m in self.expected:
                yield per_seed(equal, what, counts, self.expected[m], where)
            else:
                yield per_seed(reported, what, counts, where)
            steps = {seed: times or "none" for seed, times in drops.items()}
            yield per_seed(reported, f"steps of these drops at m = {m:g}", steps, where)
            learned = {seed: sorted(measures.times_learned(one).values()) or "none" for seed, one in found.items()}
            yield per_seed(reported, f"steps at which patterns are learned at m = {m:g}", learned, where)


class DatasetSize(Claim):
    """Counts the stages that are reached at the best validation loss, for several sizes of the training set."""

    id, title, reference = "M6", "fewer sequences, fewer stages before overfitting", "C.2, Fig. 5"
    reason = {
        "quick": "size: the time of I(3) scatters in a small chain; seed 12 has not learned it from the largest set by "
        "step 900"
    }
    # Training sequences (the paper's are in its figure only), and the steps after which the validation loss only rises.
    # All other claims use the last size.
    sizes: Mapping[str, Mapping[int, Mapping[str, Any]]] = {
        "quick": {384: {"steps": 300}, 1152: {"steps": 600}, 4224: {}},
        "long": {900: {"steps": 2000}, 3000: {}, 9000: {}},
        "paper": {3000: {}, 6000: {}, 9000: {}},
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        where = self.reference
        by_size = {n: timelines(lab, train_size=n, **changes) for n, changes in self.sizes[lab.budget].items()}
        sizes = ", ".join(map(str, by_size))
        stages = {seed: [measures.stages_at_best(found[seed]) for found in by_size.values()] for seed in lab.seeds}
        yield per_seed(reported, f"stages reached at the best validation loss with {sizes} sequences", stages, where)
        yield per_seed(at_least, "stages gained from each of these sizes to the next", stages, 0, where, of=np.diff)
        gained = {seed: numbers[-1] - numbers[0] for seed, numbers in stages.items()}
        yield per_seed(at_least, "stages gained from the smallest to the largest", gained, 1, where)
        best = {s: [float(found[s].scalar("excess")[1].min()) for found in by_size.values()] for s in lab.seeds}
        yield per_seed(reported, f"best excess validation loss with {sizes} sequences", best, where)


class FreshData(Claim):
    """Makes the checks of M1 with fresh sequences at every step."""

    id, title, reference = "M7", "fresh data at every step: the same stages", "C.3, Fig. 7"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from follow_importance(timelines(lab, train_size=0), MINIMAL, self.reference)


class ReversedOrder(Claim):
    """Intervals are named by importance, so I(1) is the furthest interval here. C.4 uses the full model.

    At quick sizes the intervals have 1, 2 and 3 lags, and m and b0 give what they add to the logits about the spread of
    the other claims. With lengths of 1, 2 and 4 the nearest interval is not learned in 900 steps by the minimal model.
    In the full model the nearest tokens also reach the output without attention. So the order of the intervals is
    judged by the predictors that the model comes near to. Attention decides only which interval is first.
    """

    id, title = "M8", "importance decides, not distance: the furthest interval can be first"
    reference = "C.4, Figs. 8, 9"
    reason = {
        "quick": "size: the full model learns the nearest, least important interval slowly. It has hardly left the "
        "predictor of two intervals after 1,000 steps of a small chain. The order is the paper's in both models"
    }
    paper: Mapping[str, Any] = {"intervals": [[13, 14], [9, 10, 11, 12], [1, 2, 3, 4, 5, 6, 7, 8]]}
    small: Mapping[str, Any] = {"intervals": [[6], [4, 5], [1, 2, 3]]}
    changes: Mapping[str, Budgets] = {
        MINIMAL: {"quick": {**small, "m": 1.25, "b0": 7.5}, "long": paper, "paper": paper},
        FULL: {
            "quick": {**small, "m": 1.28, "b0": 9.2, "steps": 1000},
            "long": {**paper, "steps": 1200},
            "paper": paper,
        },
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        where = self.reference
        for task, changes in self.changes.items():
            found = timelines(lab, task, **changes[lab.budget])
            yield from follow_importance(found, task, where)
            times = {seed: measures.times_learned(timeline) for seed, timeline in found.items()}
            order = {seed: sorted(learned, key=learned.__getitem__) or ["none"] for seed, learned in times.items()}
            what = f"{task}: order in which heads learn the intervals; I(1) is the furthest, I(h) the nearest"
            if task == MINIMAL:
                yield per_seed(equal, what, order, list(measures.patterns(found[lab.seeds[0]])), where)
            else:
                first = {seed: names[0] for seed, names in order.items()}
                yield per_seed(equal, f"{task}: interval that a head learns first", first, "I(1)", where)
                yield per_seed(reported, what, order, where)


class WeightDecay(Claim):
    """Compares the steps at which patterns are learned with and without weight decay."""

    id, title, reference = "M9", "weight decay makes almost no difference", "C.5"
    reason = {
        "quick": "size: seed 12 of a small chain learns I(3) neither with nor without it by step 900; all times are "
        "within 3%",
        "long": f"{TWO_PATTERNS}. The times of I(1) and I(2) are within 1%",
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        what = "steps at which I(1)..I(h) are learned without weight decay; expected: with it"
        decayed = {seed: self.steps(timeline) for seed, timeline in timelines(lab).items()}
        free = timelines(lab, weight_decay=0.0)
        yield per_seed(close, what, free, decayed, NEARBY, self.reference, of=self.steps)

    @staticmethod
    def steps(timeline: Timeline) -> Value:
        """Returns the step at which each pattern is learned."""
        times = measures.times_learned(timeline)
        return reached([times.get(name) for name in measures.patterns(timeline)])
