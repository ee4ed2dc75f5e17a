"""What the claims read off a timeline.

A head counts as learned from the step on at which its beta stays above 1: ten times the largest initial beta here.
"""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from stagelens import Run, Timeline, detect_stages
from stagelens.timelines import first_crossing
from stagelens_recall import theory

Floats = NDArray[np.float64]

ORDER, RESPONSES = 4, 4  # the paper's experiments (A.6)
LEARNED = 1.0  # a beta above this has left zero


def learned_at(timeline: Timeline) -> dict[int, float]:
    """Returns the step at which each head (from 1) was learned; heads that never were are missing."""
    betas = timeline.series("recall_circuit/beta")  # [step, head]
    times = {
        h: first_crossing(timeline.steps, column, LEARNED, rising=True, lasting=True)
        for h, column in enumerate(betas.T, start=1)
    }
    return {h: time for h, time in times.items() if time is not None}


def order_of_learning(timeline: Timeline) -> list[int]:
    """Returns the learned heads in the order in which they were learned."""
    times = learned_at(timeline)
    return sorted(times, key=lambda head: times[head])


def drops(timeline: Timeline, series: str = "loss") -> int:
    """Returns the number of transitions of the loss, or of another series."""
    return len(detect_stages(*timeline.scalar(series)).transitions)


def levels(timeline: Timeline, series: str = "loss") -> list[float]:
    """Returns the loss, or another series, on each plateau."""
    return [plateau.level for plateau in detect_stages(*timeline.scalar(series)).plateaus]


def plateau_indices(timeline: Timeline) -> list[int]:
    """Returns the index of one measurement per plateau of the loss: the one nearest to the plateau's middle."""
    steps, values = timeline.scalar("loss")
    transitions = [t.at for t in detect_stages(steps, values).transitions]
    edges = [float(steps[0]), *transitions, float(steps[-1])]
    return [int(np.abs(timeline.steps - (a + b) / 2).argmin()) for a, b in pairwise(edges)]


def active_heads(timeline: Timeline) -> list[str]:
    """Returns the heads whose beta has left zero on each plateau, such as `1,2`; `none` if there is none."""
    betas = timeline.series("recall_circuit/beta")[plateau_indices(timeline)]  # [plateau, head]
    return [",".join(str(h) for h, beta in enumerate(row, start=1) if beta > LEARNED) or "none" for row in betas]


def own_attention(timeline: Timeline) -> Floats:
    """Returns each head's attention to its own token, [plateau, head]."""
    mass = timeline.series("head_specialization/mass")[plateau_indices(timeline), 0]  # [plateau, head, group]
    return np.asarray(mass[:, range(mass.shape[1]), range(mass.shape[1])])


def matched_sets(timeline: Timeline) -> list[str]:
    """Returns the partial predictors f^N that the model is nearest to by KL divergence, in order.

    A predictor that is nearest at a single measurement does not count.
    """
    column, divergence = timeline.column("kl_to_references/kl"), timeline.series("kl_to_references/kl")
    nearest = [column.coordinate("reference")[i] for i in divergence.argmin(1)]
    visits = [(name, len(list(visit))) for name, visit in groupby(nearest)]
    return [name for name, _ in groupby(name for name, length in visits if length > 1)]


def farthest(one: Timeline, other: Timeline, name: str) -> float:
    """Returns the largest distance between head 1's `name` in two flows that are recorded at the same times."""
    return float(np.abs(one.series(name)[:, 0] - other.series(name)[:, 0]).max())


def drift(timeline: Timeline, form: str) -> float:
    """Returns the range of head 1's f(alpha) - beta^2/4; `form` is `proof` or `statement`."""
    return float(np.ptp(timeline.series(f"conserved/{form}")[:, 0]))


def escape_time(run: Run) -> float:
    """Returns the time at which the loss of a flow is half-way down its first drop; nan if it is never."""
    return float(run.manifest.events.get("escape", np.nan))


def loss_distance(one: Run, other: Run, h: int, slower: float = 1.0) -> float:
    """Returns the largest distance between two losses through jump h, as a fraction of its drop.

    The time of `one` is divided by `slower` first. The distance is nan if one of the two does not jump.
    """
    if not np.isfinite([escape_time(one), escape_time(other)]).all():
        return float("nan")
    drop = theory.plateau_loss(ORDER, RESPONSES, h - 1) - theory.plateau_loss(ORDER, RESPONSES, h)
    (times, losses), (others, expected) = one.timeline.scalar("loss"), other.timeline.scalar("loss")
    both = others <= times[-1] / slower
    return float(np.abs(np.interp(others[both] * slower, times, losses) - expected[both]).max() / drop)
