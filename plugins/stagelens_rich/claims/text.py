"""The claim about a transformer on text: G10."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stagelens import Check, Claim
from stagelens.claims import Lab, ordered, per_seed, reached, reported
from stagelens_rich.claims.measures import changes_at_half_loss, half_times, layer_half_times, norm_growth

CUTS = (0.25, 0.5)  # earlier ends of the run, as fractions of its steps


class PositionsFirst(Claim):
    """Compares the half-times of ||p|| and of ||(W_K, W_Q)||, Frobenius norms over all layers and heads (Fig. 2).

    A half-time is the step from which on half of the change is over. Half of the last norm is judged too, but says
    less: (W_K, W_Q) starts at the norm of thousands of small numbers, and in a short run it may not double. The norms
    keep growing, so their last values depend on the run's length; the order must be the same for earlier ends.
    """

    id = "G10"
    title = "in a transformer on text, positions come before dot products"
    reference = "B.1, Fig. 2"

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = lab.each_seed("rich/text", probes=("position_norms",))
        found = {seed: run.timeline for seed, run in runs.items()}
        last, where = int(next(iter(found.values())).steps[-1]), self.reference

        def each(check: Callable[..., Check], what: str, measure: Callable[..., list[float]], *options: Any) -> Check:
            return per_seed(check, what, found, where, of=lambda timeline: reached(measure(timeline, *options)))

        yield each(ordered, "steps to half the change of ||p||, ||(W_K, W_Q)||", half_times)
        yield each(ordered, "steps to half the last value of ||p||, ||(W_K, W_Q)||", half_times, np.inf, 0.0)
        for end in (round(cut * last) for cut in CUTS):
            yield each(ordered, f"steps to half the change up to step {end}", half_times, end)
        yield each(reported, "last norm over first norm, of p and of (W_K, W_Q)", norm_growth)
        for layer in (0, 1):
            yield each(reported, f"layer {layer}: steps to half the change", layer_half_times, layer)
        what = "fraction of both changes that is over when the loss is half-way from the unigram's to its last"
        unigram = next(iter(runs.values())).experiment.ngrams["unigram"]  # type: ignore[attr-defined]
        yield each(reported, what, changes_at_half_loss, unigram)
