"""What the claims read off a timeline: a number, a list or a sequence of names.

A pattern I(k) counts as learned when some head puts more than half of its attention on it.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from scipy.signal import find_peaks

from stagelens import Timeline, detect_stages

LEARNED = 0.5  # of a head's attention
LASTING = 3  # measurements; shorter visits to a phase happen at its threshold
SMOOTHING = 0.2  # in log time, the width within which the slope of the loss is fitted
PROMINENT = 0.1  # of the steepest fall: what a maximum of the rate of fall must stand out by to be a drop


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


def stages_at_best(timeline: Timeline) -> int:
    """i of the predictor f_{A*_1:i} that is nearest to the model where its validation loss is best."""
    _, losses = timeline.scalar("loss")
    divergence = timeline.series("kl_to_references/kl")[int(losses.argmin())]  # [i]
    return int(divergence.argmin()) + 1
