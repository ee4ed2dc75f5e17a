"""The claim about a transformer on text: G10."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stagelens import Check, Claim, Run, Timeline
from stagelens.claims import Lab, at_most, ordered, per_seed, reached, reported
from stagelens_rich.claims.measures import (
    changes_at_half_loss,
    fall_kept,
    first_above,
    half_time,
    half_times,
    layer_half_times,
    norm_growth,
)

CORPUS_ENVIRONMENT = "STAGELENS_CORPUS"  # a text file on which the claim is judged, too
CUTS = (0.25, 0.5)  # earlier ends of the run, as fractions of its steps
PROBES = ("position_norms",)
PREVIOUS = 0.5  # ours: score of a previous-token head
KEPT = 0.5  # ours: largest fraction of the loss' fall that may be left if the fall is due to W_K and W_Q
# By budget. `quick` is the preset. `long` has the paper's learning rate, and so more steps; its sizes are the preset's.
SETTINGS: Mapping[str, Mapping[str, Any]] = {"quick": {"steps": 800}, "long": {"steps": 2400, "lr": 0.1}}


class PositionsFirst(Claim):
    """Judges two statements of Fig. 2's caption: p is learned before (W_K, W_Q), and the loss escapes as these are.

    The first compares the half-times of ||p|| and of ||(W_K, W_Q)||, Frobenius norms over all layers and heads. A
    half-time is the step from which on half of the change is over. Half of the last norm is judged too, but says
    less: (W_K, W_Q) starts at the norm of thousands of small numbers, and in a short run it may not double. The norms
    keep growing, so their last values depend on the run's length; the order must be the same for earlier ends.

    The second is judged by a training in which W_K and W_Q keep their initial values. If the loss leaves the plateau
    because they are learned, it must stay there without them.

    Section 2 hides a query's own token; a standard transformer sees it. The first statement is judged for both, the
    second for section 2's.
    """

    id = "G10"
    title = "in a transformer on text, positions come before dot products, and the loss escapes as these are learned"
    reference = "B.1, Fig. 2"
    reason = (
        "size: positions come first, but the loss escapes with p: it falls as far if W_K and W_Q are frozen. No "
        "induction head forms in models and texts of this size"
    )

    def checks(self, lab: Lab) -> Iterable[Check]:
        settings = lab.of_budget(SETTINGS)
        hidden = {**settings, "own_token": False}
        runs = lab.each_seed("rich/text", hidden, probes=PROBES)
        yield from self._order("own token masked", runs)
        yield from self._escape("own token masked", runs, without_dot_products(lab, hidden))
        yield from self._order("own token seen", lab.each_seed("rich/text", settings, probes=PROBES))
        if file := os.environ.get(CORPUS_ENVIRONMENT):
            yield from self._on_file(lab, {**hidden, "corpus": file})

    def _order(self, title: str, runs: Mapping[int, Run]) -> Iterable[Check]:
        """Yields the checks that p comes before (W_K, W_Q), and reports growth and layers."""
        found = {seed: run.timeline for seed, run in runs.items()}
        last = int(next(iter(found.values())).steps[-1])

        def each(check: Callable[..., Check], what: str, measure: Callable[..., list[float]], *options: Any) -> Check:
            measured = {seed: reached(measure(timeline, *options)) for seed, timeline in found.items()}
            return per_seed(check, f"{title}: {what}", measured, self.reference)

        yield each(ordered, "steps to half the change of ||p||, ||(W_K, W_Q)||", half_times)
        yield each(ordered, "steps to half the last value of ||p||, ||(W_K, W_Q)||", half_times, np.inf, 0.0)
        for end in (round(cut * last) for cut in CUTS):
            yield each(ordered, f"steps to half the change up to step {end}", half_times, end)
        yield each(reported, "last norm over first norm, of p and of (W_K, W_Q)", norm_growth)
        for layer in (0, 1):
            yield each(reported, f"layer {layer}: steps to half the change", layer_half_times, layer)
        what = "fraction of both changes that is over when the loss is half-way from the unigram's to its last"
        yield each(reported, what, changes_at_half_loss, unigram_of(runs))

    def _escape(self, title: str, runs: Mapping[int, Run], frozen: Mapping[int, Run]) -> Iterable[Check]:
        """Yields the checks that the loss leaves the unigram's level as W_K and W_Q are learned."""
        unigram = unigram_of(runs)

        def loss_half_time(timeline: Timeline) -> float:
            return half_time(*timeline.scalar("loss"), start=unigram)

        found = {seed: run.timeline for seed, run in runs.items()}
        what = f"{title}: steps to half the change of ||p||, and to half the loss' fall from the unigram's"
        halves = {seed: [half_times(timeline)[0], loss_half_time(timeline)] for seed, timeline in found.items()}
        yield per_seed(ordered, what, halves, self.reference, of=reached)
        end = int(next(iter(frozen.values())).timeline.steps[-1])
        what = f"{title}: part of the loss' fall below the unigram's that is left at step {end} if W_K, W_Q are frozen"
        kept = {seed: fall_kept(found[seed], run.timeline, unigram) for seed, run in frozen.items()}
        yield per_seed(at_most, what, kept, KEPT, self.reference, of=reached)

    def _on_file(self, lab: Lab, settings: Mapping[str, Any]) -> Iterable[Check]:
        """Yields the same checks on the text of a file, and reports the steps of its events."""
        runs = lab.each_seed("rich/text", settings, probes=(*PROBES, "induction"))
        title = Path(settings["corpus"]).name
        yield from self._order(title, runs)
        yield from self._escape(title, runs, without_dot_products(lab, settings))
        unigram = unigram_of(runs)
        what = f"{title}: step at which the loss falls below the unigram's, {unigram:.3f}"
        under = {seed: first_above(run.timeline, "loss", unigram, rising=False) for seed, run in runs.items()}
        yield per_seed(reported, what, under, self.reference, of=reached)
        what = f"{title}: step at which a head's previous-token score exceeds {PREVIOUS}"
        heads = {seed: first_above(run.timeline, "induction/previous_token", PREVIOUS) for seed, run in runs.items()}
        yield per_seed(reported, what, heads, self.reference, of=reached)


def without_dot_products(lab: Lab, settings: Mapping[str, Any]) -> dict[int, Run]:
    """Returns runs of half the length in which W_K and W_Q keep their initial values."""
    half = {**settings, "steps": settings["steps"] // 2, "frozen": "dot-products"}
    return lab.each_seed("rich/text", half, probes=PROBES)


def unigram_of(runs: Mapping[int, Run]) -> float:
    """Returns the unigram's loss on the held-out text of these runs."""
    return float(next(iter(runs.values())).experiment.ngrams["unigram"])
