"""Claim G10: what a transformer on text learns first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from stagelens import Check, Claim, Timeline
from stagelens.claims import Lab, in_every_seed, ordered, reached, reported
from stagelens_rich.text_probes import Floats, half_time

FIGURE = "B.1, Fig. 2"
CUTS = (0.25, 0.5)  # of the run
Pair = list[float]  # of p, of (W_K, W_Q)


class PositionsFirst(Claim):
    """Half-times of ||p|| and of ||(W_K, W_Q)||, the Frobenius norms over all layers and heads (Fig. 2).

    A half-time is the step from which on half of the change is over. The half of the last norm is judged too, but says
    less: (W_K, W_Q) starts at the norm of thousands of small numbers, and in a short run it need not double. Norms go
    on growing, so that the last value depends on when a run ends; the order must be the same for earlier ends.
    """

    id = "G10"
    title = "in a transformer on text, positions come before dot products"
    reference = FIGURE

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = lab.each_seed("rich/text", probes=("position_norms",))
        timelines = {seed: run.timeline for seed, run in runs.items()}
        last = int(next(iter(timelines.values())).steps[-1])
        yield _first_p("steps to half the change of ||p||, ||(W_K, W_Q)||", timelines)
        yield _first_p("steps to half the last ||p||, ||(W_K, W_Q)||", timelines, start=0.0)
        for cut in CUTS:
            end = round(cut * last)
            yield _first_p(f"half the change, had the run ended at step {end}", timelines, end=end)
        yield _told("last norm / first, of p, (W_K, W_Q)", {s: growth(t) for s, t in timelines.items()})
        for layer in (0, 1):
            what = f"layer {layer}: steps to half the change"
            yield _told(what, {s: layer_half_times(t, layer) for s, t in timelines.items()})
        what = "share of the changes where the loss is half-way from the unigram's to its last"
        losses = {seed: run.experiment.ngrams["unigram"] for seed, run in runs.items()}  # type: ignore[attr-defined]
        yield _told(what, {s: shares_below(t, losses[s]) for s, t in timelines.items()})


def _first_p(what: str, timelines: Mapping[int, Timeline], end: float = np.inf, start: float | None = None) -> Check:
    found = {seed: half_times(timeline, end, start) for seed, timeline in timelines.items()}
    return in_every_seed({seed: ordered(what, reached(times), FIGURE) for seed, times in found.items()})


def _told(what: str, found: Mapping[int, Pair]) -> Check:
    return in_every_seed({seed: reported(what, reached(values), FIGURE) for seed, values in found.items()})


def norms(timeline: Timeline) -> list[Floats]:
    """||p|| and ||(W_K, W_Q)|| at each step, [step] each."""
    return [timeline.scalar(f"position_norms/all_{name}")[1] for name in ("p", "kq")]


def half_times(timeline: Timeline, end: float = np.inf, start: float | None = None) -> Pair:
    """`half_time` of both norms over the steps up to `end`."""
    steps = timeline.steps[timeline.steps <= end]
    return [half_time(steps, values[: len(steps)], start) for values in norms(timeline)]


def layer_half_times(timeline: Timeline, layer: int) -> Pair:
    """`half_time` of the norms of one layer."""
    heads = [timeline.series(f"position_norms/{name}")[:, layer] for name in ("p", "kq")]  # [step, head] each
    return [half_time(timeline.steps, np.linalg.norm(values, axis=1)) for values in heads]


def growth(timeline: Timeline) -> Pair:
    """The last norm in units of the first."""
    return [float(values[-1] / values[0]) for values in norms(timeline)]


def shares_below(timeline: Timeline, level: float) -> Pair:
    """How much of each norm's change is over when the loss is half-way from `level` to its last value, for good."""
    there = half_time(*timeline.scalar("loss"), start=level)
    changes = [(values - values[0]) / (values[-1] - values[0]) for values in norms(timeline)]
    return [float(np.interp(there, timeline.steps, change)) for change in changes]
