"""The claims about trained models: M1 to M9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from stagelens import Check, Claim, Timeline
from stagelens.claims import Lab, Value, at_least, close, equal, ordered, per_seed, reached, reported
from stagelens_markov.claims import measures

TASK = "markov/minimal"
PROBES = ("head_specialization", "kl_to_references")
RISES = 1.1  # times its minimum: a KL divergence above it has risen again

# Smaller than the paper (d = 50, T = 20, batches of 3000), so that a run takes seconds on a laptop. What I(1), I(2) and
# I(3) add to the logits has nearly the paper's spread (2.8, 1.8 and 1.2; there 2.9, 1.7 and 1.0). Batches have 384 * 12
# tokens: with a quarter of them the gradient is so noisy that I(3) often takes more than a thousand steps.
QUICK: dict[str, Any] = {"d": 12, "T": 12, "m": 1.5, "b0": 6.0, "init_scale": 0.1, "steps": 900, "batch_size": 384}
QUICK |= {"lr": 0.03, "train_size": 4224, "eval_size": 512}
SIZES: Mapping[str, Mapping[str, Any]] = {"quick": QUICK, "paper": {}}  # changes to the preset, for each budget


def timelines(lab: Lab, **changes: Any) -> dict[int, Timeline]:
    """Returns the timeline of each seed, of the task with `changes` to the sizes of the lab's budget."""
    found = lab.each_seed(TASK, {**SIZES[lab.budget], **changes}, probes=PROBES)
    return {seed: run.timeline for seed, run in found.items()}


def follow_importance(found: Mapping[int, Timeline], reference: str, to: str = "f_{A*_1:i} (Eq. 3)") -> Iterator[Check]:
    """Yields two checks: the model is nearest to each reference in the order of importance, and then leaves it."""
    what = f"step at which the KL divergence from {to} is least, i = 1..h"
    yield per_seed(ordered, what, found, reference, of=measures.nearest_steps)
    what = f"last KL divergence from {to} in units of its least, i < h"
    yield per_seed(at_least, what, found, RISES, reference, of=measures.rises_after)


class FollowImportance(Claim):
    id, title, reference = "M1", "stages follow importance", "Fig. 3 left"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from follow_importance(timelines(lab), self.reference)


class RestrictedContexts(Claim):
    """The references are models with the same start, data and steps, but with keys beyond i intervals masked."""

    id, title, reference = "M2", "stages follow models that see one interval, then two, then all", "Fig. 3 right"

    def checks(self, lab: Lab) -> Iterable[Check]:
        found = timelines(lab, compare="contexts")
        yield from follow_importance(found, self.reference, "the model with i intervals of context")


class CompeteThenCooperate(Claim):
    """In the competitive phase every head attends most to I(1): judged at the beginning of the phase.

    The phase ends when the heads' overlap falls to one half, which it does because heads leave I(1). A head that begins
    to leave overlaps with the others for a while, so the statement cannot hold until the end of the phase. The fraction
    of the phase that passes before the first head leaves is reported.
    """

    id, title, reference = "M3", "heads compete for the most important pattern, then cooperate", "Figs. 1, 2"

    def checks(self, lab: Lab) -> Iterable[Check]:
        found, where = timelines(lab), self.reference
        what = f"phases that last {measures.LASTING} measurements or more"
        phases = {seed: measures.phase_sequence(timeline) or "none" for seed, timeline in found.items()}
        yield per_seed(equal, what, phases, ["diffuse", "competitive", "cooperative"], where)
        mass = {seed: timeline.series("head_specialization/mass") for seed, timeline in found.items()}
        expected = {seed: ["I(1)"] * values.shape[2] for seed, values in mass.items()}
        what = "each head's largest group at the beginning of the competitive phase"
        yield per_seed(equal, what, found, expected, where, of=measures.first_leaders)
        what = "fraction of the competitive phase's steps before the first head leaves I(1)"
        yield per_seed(reported, what, found, where, of=measures.fraction_together)
        coverage = {seed: t.series("head_specialization/coverage")[-1, 0] for seed, t in found.items()}
        what = "coverage at the end: distinct largest groups / groups"
        yield per_seed(close, what, coverage, 1.0, 1e-6, where, relative=False)


class InitializationScale(Claim):
    id, title = "M4", "identical heads learn one pattern; a larger initialization separates them sooner"
    reference = "Fig. 4 left"
    scales = (1.0, 0.1, 0.01)  # u
    shorter: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {"steps": 450}, "paper": {}}  # enough for two

    def checks(self, lab: Lab) -> Iterable[Check]:
        counts = {seed: len(measures.times_learned(found)) for seed, found in timelines(lab, init_scale=0.0).items()}
        yield per_seed(equal, "patterns that are ever learned at u = 0", counts, 1, self.reference)
        base, shorter = SIZES[lab.budget].get("init_scale"), self.shorter[lab.budget]
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
    """At quick sizes it differs at m = 1: the first two drops merge in some seeds, a third pattern is learned late in
    others. With u = 0.01 heads stay alike for longer, and two of three seeds show the paper's two drops.
    """

    id, title = "M5", "without an order of importance the loss falls in two drops, with one in three"
    reference = "Fig. 4 right"
    expected = {1.0: 2, 1.5: 3, 1.7: 3}  # drops at the ratio m
    longer = {"quick": {1.7: {"steps": 1600}}, "paper": {}}  # the larger the ratio, the later I(3) is learned

    def checks(self, lab: Lab) -> Iterable[Check]:
        where = self.reference
        for m, number in self.expected.items():
            found = timelines(lab, m=m, **self.longer[lab.budget].get(m, {}))
            drops = {seed: measures.drop_times(timeline) for seed, timeline in found.items()}
            counts = {seed: len(times) for seed, times in drops.items()}
            yield per_seed(equal, f"drops of the excess loss at m = {m:g}", counts, number, where)
            steps = {seed: times or "none" for seed, times in drops.items()}
            yield per_seed(reported, f"steps of these drops at m = {m:g}", steps, where)
            learned = {
                seed: sorted(measures.times_learned(timeline).values()) or "none" for seed, timeline in found.items()
            }
            yield per_seed(reported, f"steps at which patterns are learned at m = {m:g}", learned, where)
            what = f"transitions between plateaus, by the stage detector, at m = {m:g}"
            yield per_seed(reported, what, found, where, of=measures.transitions)


class DatasetSize(Claim):
    id, title, reference = "M6", "fewer sequences, fewer stages before overfitting", "C.2, Fig. 5"
    # Training sequences, and the steps after which the validation loss only rises. All other claims use the last size.
    sizes: ClassVar[Mapping[str, Mapping[int, Mapping[str, Any]]]] = {
        "quick": {384: {"steps": 300}, 1152: {"steps": 600}, 4224: {}},
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
    id, title, reference = "M7", "fresh data at every step: the same stages", "C.3, Fig. 7"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from follow_importance(timelines(lab, train_size=0), self.reference)


class ReversedOrder(Claim):
    """Intervals are named by importance, so I(1) is the furthest interval here.

    At quick sizes the intervals have 1, 2 and 3 lags, and m and b0 give what they add to the logits about the spread of
    the other claims. With lengths of 1, 2 and 4 the nearest interval is not learned in 900 steps.
    """

    id, title = "M8", "importance decides, not distance: the furthest interval can be first"
    reference = "C.4, Figs. 8, 9"
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"intervals": [[6], [4, 5], [1, 2, 3]], "m": 1.25, "b0": 7.5},
        "paper": {"intervals": [[13, 14], [9, 10, 11, 12], [1, 2, 3, 4, 5, 6, 7, 8]]},
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        found = timelines(lab, **self.changes[lab.budget])
        yield from follow_importance(found, self.reference)
        times = {seed: measures.times_learned(timeline) for seed, timeline in found.items()}
        order = {seed: sorted(learned, key=learned.__getitem__) or "none" for seed, learned in times.items()}
        what = "order in which intervals are learned; I(1) is the furthest, I(h) the nearest"
        yield per_seed(equal, what, order, list(measures.patterns(found[lab.seeds[0]])), self.reference)


class WeightDecay(Claim):
    id, title, reference = "M9", "weight decay makes almost no difference", "C.5"

    def checks(self, lab: Lab) -> Iterable[Check]:
        what = "steps at which I(1)..I(h) are learned without weight decay; expected: with it"
        decayed = {seed: self.steps(timeline) for seed, timeline in timelines(lab).items()}
        free = timelines(lab, weight_decay=0.0)
        yield per_seed(close, what, free, decayed, 0.1, self.reference, of=self.steps)

    @staticmethod
    def steps(timeline: Timeline) -> Value:
        """Returns the step at which each pattern is learned."""
        times = measures.times_learned(timeline)
        return reached([times.get(name) for name in measures.patterns(timeline)])
