"""What the paper states about the minimal architecture, measured: M1, M3, M4, M5, M7 and M9.

The functions above the claims read one number or one list off a timeline; the claims say what it should be. A pattern
I(k) counts as learned when some head puts more than half of its attention on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
from scipy.signal import find_peaks

from stagelens.claims import Check, Claim, at_least, close, equal, in_every_seed, ordered, reported
from stagelens.lab import Lab
from stagelens.runs import Run
from stagelens.stages import detect_stages
from stagelens.timeline import Timeline

TASK = "markov/minimal"
PROBES = ("head_specialization", "kl_to_references")

# Smaller than the paper (d = 50, T = 20, batches of 3000), so that a run takes seconds on a laptop. What I(1), I(2) and
# I(3) add to the logits has nearly the paper's spread (2.8, 1.8 and 1.2; there 2.9, 1.7 and 1.0). Batches have 384 * 12
# tokens: with a quarter of them the gradient is so noisy that I(3) often takes more than a thousand steps.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "quick": {
        "d": 12,
        "T": 12,
        "m": 1.5,
        "b0": 6.0,
        "init_scale": 0.1,
        "steps": 900,
        "batch_size": 384,
        "lr": 0.03,
        "train_size": 4224,
        "eval_size": 512,
    },
    "paper": {},
}
LEARNED = 0.5  # of a head's attention
LASTING = 3  # measurements; shorter visits to a phase happen at its threshold
RISES = 1.1  # times its minimum: what a KL divergence must exceed to have risen again
SMOOTHING = 0.2  # in log time, the width within which the slope of the loss is fitted
PROMINENT = 0.1  # of the steepest fall: what a maximum of the rate of fall must stand out by to be a drop


def runs(lab: Lab, **changes: Any) -> dict[int, Run]:
    """The task with `changes` to the sizes of the lab's budget, for each seed."""
    return lab.each_seed(TASK, {**SIZES[lab.budget], **changes}, probes=PROBES)


def nearest_steps(timeline: Timeline) -> list[int]:
    """For i = 1..h, the step at which the KL divergence from f_{A*_1:i} to the model is least."""
    divergence = timeline.series("kl_to_references/kl")  # [step, i]
    return [int(step) for step in timeline.steps[divergence.argmin(axis=0)]]


def rises_after(timeline: Timeline) -> list[float]:
    """For i = 1..h-1, the last KL divergence from f_{A*_1:i} in units of its least."""
    divergence = timeline.series("kl_to_references/kl")[:, :-1]  # [step, i]
    return [float(ratio) for ratio in divergence[-1] / divergence.min(axis=0)]


def patterns(timeline: Timeline) -> tuple[str, ...]:
    """I(1), I(2), ..., by name."""
    *names, _rest = timeline.column("head_specialization/mass").coordinate("group")
    return tuple(names)


def times_learned(timeline: Timeline) -> dict[str, float]:
    """When each pattern was first learned, interpolated between measurements; what never was is left out."""
    mass = timeline.series("head_specialization/mass")[:, 0, :, :-1].max(axis=1)  # [step, group]
    steps = timeline.steps.astype(float)
    times = {}
    for name, largest in zip(patterns(timeline), mass.T, strict=True):
        if (largest > LEARNED).any():
            at = int((largest > LEARNED).argmax())
            before = max(at - 1, 0)
            share = (LEARNED - largest[before]) / (largest[at] - largest[before]) if at else 0.0
            times[name] = float(steps[before] + share * (steps[at] - steps[before]))
    return times


def phase_sequence(timeline: Timeline) -> list[str]:
    """The phases of head specialization in order, without visits shorter than `LASTING` measurements."""
    labels = timeline.column("head_specialization/phase").labels
    codes = timeline.series("head_specialization/phase")[:, 0]
    visits = [(labels[int(code)], len(list(visit))) for code, visit in groupby(codes)]
    lasting = [name for name, length in visits if length >= LASTING]
    return [name for name, _ in groupby(lasting)]


def competitive(timeline: Timeline) -> Any:
    """bool [step]: the competitive phase."""
    column = timeline.column("head_specialization/phase")
    return timeline.series("head_specialization/phase")[:, 0] == column.labels.index("competitive")


def leaders(timeline: Timeline) -> list[list[str]]:
    """[step][head]: the group with the largest share of the head's attention."""
    labels = timeline.column("head_specialization/leader").labels
    return [[labels[int(code)] for code in heads] for heads in timeline.series("head_specialization/leader")[:, 0]]


def times_of_drops(timeline: Timeline) -> list[float]:
    """When the excess loss falls fastest, drop by drop: the prominent maxima of its rate of fall per e-fold of time.

    The first drops of this task merge into each other: the loss between them slows down, but no plateau is flat. A
    maximum of the rate needs no plateau. The rate per e-fold, not per step, is what has one maximum in an exponential
    decay, however long it lasts.
    """
    steps, excess = timeline.scalar("excess")
    there = steps > 0
    time, values = np.log(steps[there]), excess[there]  # [measurement]
    grid = np.linspace(time[0], time[-1], 400)
    weight = np.exp(-(((grid[:, None] - time) / SMOOTHING) ** 2) / 2) * np.gradient(time)  # [grid, measurement]
    weight /= weight.sum(axis=1, keepdims=True)
    offset = time - (weight @ time)[:, None]  # a weighted straight line at each point of the grid
    rate = -(weight * offset) @ values / (weight * offset**2).sum(axis=1)
    peaks, _ = find_peaks(np.pad(rate, 1), prominence=PROMINENT * rate.max())  # the ends may be peaks too
    return [float(moment) for moment in np.exp(grid[peaks - 1])]


def transitions(timeline: Timeline) -> list[float] | str:
    """When the stage detector, which asks for plateaus, sees the excess loss fall."""
    return [stage.at for stage in detect_stages(*timeline.scalar("excess")).transitions] or "none"


def follow_importance(found: Mapping[int, Run], reference: str) -> Iterator[Check]:
    """The model comes near f_{A*_1:1}, then f_{A*_1:2}, ..., and leaves all but the last again."""
    timelines = {seed: run.timeline for seed, run in found.items()}
    what = "step at which the KL divergence from f_{A*_1:i} (Eq. 3) is least, i = 1..h"
    yield in_every_seed({seed: ordered(what, nearest_steps(t), reference) for seed, t in timelines.items()})
    what = "last KL divergence from f_{A*_1:i} in units of its least, i < h"
    yield in_every_seed({seed: at_least(what, rises_after(t), RISES, reference) for seed, t in timelines.items()})


class FollowImportance(Claim):
    id = "M1"
    title = "stages follow importance"
    reference = "Fig. 3 left"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from follow_importance(runs(lab), self.reference)


class CompeteThenCooperate(Claim):
    """Where "in the competitive phase every head's largest group is I(1)" is looked at.

    The phase ends when the heads' overlap falls to one half, and it falls because heads leave I(1): a head that has
    begun to leave still overlaps with the others for a while. So the statement cannot be meant of every moment of the
    phase as the probe defines it. It is judged where the phase begins, before any head could have left, and the share
    of the phase during which all heads stay is reported beside it.
    """

    id = "M3"
    title = "heads compete for the most important pattern, then cooperate"
    reference = "Figs. 1, 2"

    def checks(self, lab: Lab) -> Iterable[Check]:
        timelines = {seed: run.timeline for seed, run in runs(lab).items()}
        where = self.reference

        what = f"phases that last {LASTING} measurements or more"
        expected = ["diffuse", "competitive", "cooperative"]
        yield in_every_seed({s: equal(what, phase_sequence(t), expected, where) for s, t in timelines.items()})

        what = "each head's largest group where the competitive phase begins"
        yield in_every_seed({s: equal(what, *self._at_the_start(t), where) for s, t in timelines.items()})
        what = "share of the competitive phase's steps by which no head has left I(1)"
        yield in_every_seed({s: reported(what, self._share_together(t), where) for s, t in timelines.items()})

        what = "coverage at the end: distinct largest groups / groups"
        coverage = {s: t.series("head_specialization/coverage")[-1, 0] for s, t in timelines.items()}
        yield in_every_seed({s: close(what, c, 1.0, 1e-6, where, relative=False) for s, c in coverage.items()})

    @staticmethod
    def _at_the_start(timeline: Timeline) -> tuple[Any, list[str]]:
        """The heads' largest groups at the first competitive measurement, and what they should be."""
        everywhere, phase = leaders(timeline), competitive(timeline)
        measured = everywhere[int(phase.argmax())] if phase.any() else "no competitive phase"
        return measured, ["I(1)"] * len(everywhere[0])

    @staticmethod
    def _share_together(timeline: Timeline) -> float:
        """How far into the competitive phase, as a share of its steps, the first head leaves I(1)."""
        phase = np.flatnonzero(competitive(timeline))
        if not len(phase):
            return 0.0
        first, last = timeline.steps[phase[0]], timeline.steps[phase[-1]]
        groups = leaders(timeline)
        left = [at for at in phase if any(group != "I(1)" for group in groups[at])]
        together = timeline.steps[left[0]] if left else last
        return float((together - first) / max(last - first, 1))


class InitializationScale(Claim):
    id = "M4"
    title = "identical heads learn one pattern; a larger initialization parts them sooner"
    reference = "Fig. 4 left"
    scales = (1.0, 0.1, 0.01)  # u

    def checks(self, lab: Lab) -> Iterable[Check]:
        alone = {seed: run.timeline for seed, run in runs(lab, init_scale=0.0).items()}
        what = "patterns that are ever learned at u = 0"
        yield in_every_seed({s: equal(what, len(times_learned(t)), 1, self.reference) for s, t in alone.items()})

        by_scale = [runs(lab, init_scale=scale) for scale in self.scales]
        what = f"step at which a second pattern is learned, u = {', '.join(f'{u:g}' for u in self.scales)}"
        yield in_every_seed(
            {
                seed: ordered(what, [self.second(found[seed].timeline) for found in by_scale], self.reference)
                for seed in lab.seeds
            }
        )

    @staticmethod
    def second(timeline: Timeline) -> float | str:
        """When the second pattern was learned."""
        times = sorted(times_learned(timeline).values())
        return times[1] if len(times) > 1 else f"not by step {timeline.steps[-1]}"


class ImportanceRatio(Claim):
    """At quick sizes it differs at m = 1: the first drop runs into the second in some seeds, in others a third pattern
    comes late. With u = 0.01 the heads stay alike for longer, and two of three seeds show the paper's two drops.
    """

    id = "M5"
    title = "without an order of importance the loss falls in two drops, with one in three"
    reference = "Fig. 4 right"
    expected = {1.0: 2, 1.5: 3, 1.7: 3}  # drops at the ratio m
    longer = {"quick": {1.7: {"steps": 1600}}, "paper": {}}  # the larger the ratio, the later I(3) is learned

    def checks(self, lab: Lab) -> Iterable[Check]:
        for m, number in self.expected.items():
            found = runs(lab, m=m, **self.longer[lab.budget].get(m, {}))
            timelines = {seed: run.timeline for seed, run in found.items()}
            times = {seed: times_of_drops(timeline) for seed, timeline in timelines.items()}
            what = f"drops of the excess loss at m = {m:g}"
            yield in_every_seed({s: equal(what, len(times[s]), number, self.reference) for s in times})
            what = f"steps of these drops at m = {m:g}"
            yield in_every_seed({s: reported(what, times[s], self.reference) for s in times})
            what = f"steps at which patterns are learned at m = {m:g}"
            learned = {s: sorted(times_learned(t).values()) or "none" for s, t in timelines.items()}
            yield in_every_seed({s: reported(what, learned[s], self.reference) for s in times})
            what = f"transitions between plateaus, by the stage detector, at m = {m:g}"
            yield in_every_seed({s: reported(what, transitions(t), self.reference) for s, t in timelines.items()})


class FreshData(Claim):
    id = "M7"
    title = "fresh data at every step: the same stages"
    reference = "C.3, Fig. 7"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from follow_importance(runs(lab, train_size=0), self.reference)


class WeightDecay(Claim):
    id = "M9"
    title = "weight decay makes almost no difference"
    reference = "C.5"

    def checks(self, lab: Lab) -> Iterable[Check]:
        decayed, free = runs(lab), runs(lab, weight_decay=0.0)
        what = "steps at which I(1)..I(h) are learned without weight decay; expected: with it"
        yield in_every_seed(
            {
                seed: close(what, self.times(free[seed]), self.times(decayed[seed]), 0.1, self.reference)
                for seed in lab.seeds
            }
        )

    @staticmethod
    def times(run: Run) -> list[float | str]:
        times = times_learned(run.timeline)
        return [times.get(name, "never") for name in patterns(run.timeline)]
