"""What the claims read off a timeline or a flow: a number, a list or a sequence of names.

A pattern I(k) is learned when some head puts more than half of its attention on it.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np

from stagelens import Run, Timeline, detect_stages
from stagelens.claims import NOT_REACHED, Value, reached
from stagelens.experiments import Floats
from stagelens.timelines import first_crossing, line_fit, local_slope
from stagelens_markov.flow import PARTED

LEARNED = 0.5  # of a head's attention, from which on a pattern is learned
LASTING = 3  # measurements that a phase lasts at least; near its threshold there are shorter ones
SMOOTHING = 0.2  # width, in log time, over which the slope of the loss is fitted
PROMINENT = 0.1  # of the steepest slope: the least prominence of a drop


def nearest_steps(timeline: Timeline) -> list[int]:
    """Returns the step at which the KL divergence from f_{A*_1:i} to the model is least, for i = 1..h."""
    divergence = timeline.series("kl_to_references/kl")  # [step, i]
    return [int(step) for step in timeline.steps[divergence.argmin(axis=0)]]


def rises_after(timeline: Timeline) -> list[float]:
    """Returns the last KL divergence from f_{A*_1:i} over its minimum, for i = 1..h-1."""
    divergence = timeline.series("kl_to_references/kl")[:, :-1]  # [step, i]
    return [float(ratio) for ratio in divergence[-1] / divergence.min(axis=0)]


def patterns(timeline: Timeline) -> tuple[str, ...]:
    """Returns the names I(1), I(2), ..."""
    *names, _rest = timeline.column("head_specialization/mass").coordinate("group")
    return tuple(names)


def times_learned(timeline: Timeline) -> dict[str, float]:
    """Returns the step at which each pattern is first learned, interpolated. Patterns never learned are left out."""
    mass = timeline.series("head_specialization/mass")[:, 0, :, :-1].max(axis=1)  # [step, group]
    found = [first_crossing(timeline.steps, largest, LEARNED, rising=True) for largest in mass.T]
    return {name: time for name, time in zip(patterns(timeline), found, strict=True) if time is not None}


def phase_sequence(timeline: Timeline) -> list[str]:
    """Returns the phases of head specialization in order, without those shorter than `LASTING` measurements."""
    labels = timeline.column("head_specialization/phase").labels
    codes = timeline.series("head_specialization/phase")[:, 0]
    visits = [(labels[int(code)], len(list(visit))) for code, visit in groupby(codes)]
    lasting = [name for name, length in visits if length >= LASTING]
    return [name for name, _ in groupby(lasting)]


def competitive(timeline: Timeline) -> Any:
    """Returns bool [step]: True in the competitive phase."""
    column = timeline.column("head_specialization/phase")
    return timeline.series("head_specialization/phase")[:, 0] == column.labels.index("competitive")


def leaders(timeline: Timeline) -> list[list[str]]:
    """Returns the group with the largest fraction of each head's attention, [step][head]."""
    labels = timeline.column("head_specialization/leader").labels
    return [[labels[int(code)] for code in heads] for heads in timeline.series("head_specialization/leader")[:, 0]]


def first_leaders(timeline: Timeline) -> list[str] | str:
    """Returns each head's group at the first competitive measurement."""
    phase = competitive(timeline)
    return leaders(timeline)[int(phase.argmax())] if phase.any() else "no competitive phase"


def fraction_together(timeline: Timeline) -> float:
    """Returns the fraction of the competitive phase's steps that pass before the first head leaves I(1)."""
    phase = np.flatnonzero(competitive(timeline))
    if not len(phase):
        return 0.0
    first, last = timeline.steps[phase[0]], timeline.steps[phase[-1]]
    groups = leaders(timeline)
    left = [at for at in phase if any(group != "I(1)" for group in groups[at])]
    together = timeline.steps[left[0]] if left else last
    return float((together - first) / max(last - first, 1))


def drop_times(timeline: Timeline) -> list[float]:
    """Returns the steps at which the excess loss falls fastest: the prominent peaks of its rate of fall in log time.

    The first drops of this task merge without a flat plateau between them, so the stage detector does not separate
    them. In log time an exponential decay has one peak, however long it lasts.
    """
    from scipy.signal import find_peaks

    steps, excess = timeline.scalar("excess")
    time, excess = np.log(steps[steps > 0]), excess[steps > 0]  # [measurement]
    at = np.linspace(time[0], time[-1], 400)
    rate = -local_slope(time, excess, at, SMOOTHING)
    peaks, _ = find_peaks(np.pad(rate, 1), prominence=PROMINENT * rate.max())  # the ends may be peaks too
    return [float(step) for step in np.exp(at[peaks - 1])]


def transitions(timeline: Timeline) -> list[float] | str:
    """Returns the steps at which the stage detector, which needs plateaus, finds drops of the excess loss."""
    return [stage.at for stage in detect_stages(*timeline.scalar("excess")).transitions] or "none"


def stages_at_best(timeline: Timeline) -> int:
    """Returns the i of the predictor f_{A*_1:i} nearest to the model at its best validation loss."""
    _, losses = timeline.scalar("loss")
    divergence = timeline.series("kl_to_references/kl")[int(losses.argmin())]  # [i]
    return int(divergence.argmin()) + 1


def feature_times(run: Run) -> Value:
    """Returns the time at which half of each feature's loss is gone, the most important feature first."""
    names = run.timeline.column("learned").coordinate("feature")
    found = [run.manifest.events.get(f"feature {j} learned") for j in names]
    return reached(found, by=run.timeline.steps[-1])


def time_ratios(times: list[float | str]) -> list[float | str]:
    """Returns each time over the one before, in words if one is missing."""
    return [b / a if isinstance(a, float) and isinstance(b, float) else NOT_REACHED for a, b in pairwise(times)]


def decomposition_error(run: Run) -> float:
    """Returns the largest |loss - sum of its (feature, position) parts|, over the first loss."""
    loss, parts = run.timeline.series("loss"), run.timeline.series("loss_parts").sum((1, 2))
    return float(np.abs(loss - parts).max() / loss[0])


def late_exponent(run: Run, name: str) -> float:
    """Returns the exponent of a series in time over the last factor of ten in time."""
    times, values = run.timeline.steps, run.timeline.series(name)
    late = times > times[-1] / 10
    return line_fit(np.log(times[late]), np.log(values[late])).slope


def until_parting(run: Run) -> tuple[Floats, Floats]:
    """Returns the times after 0 and the log(deviation / eps) until the heads part or the run ends."""
    times, deviation = run.timeline.steps, run.timeline.series("deviation")
    inside = (times > 0) & ~(times > parting_time(run))
    return times[inside], np.log(deviation[inside] / deviation[0])


def parting_time(run: Run) -> float:
    """Returns the time at which the heads part; nan if they do not."""
    return float(run.manifest.events.get("heads part", np.nan))


def growth_rate(run: Run) -> float:
    """Returns the least c with deviation <= eps exp(c t) until the heads part."""
    times, growth = until_parting(run)
    return float((growth / times).max())


def over_bound(run: Run, c: float) -> float:
    """Returns the largest deviation / (eps exp(c t)) until the heads part."""
    times, growth = until_parting(run)
    return float(np.exp((growth - c * times).max()))


def parting_exponent(starts: list[float], times: list[float]) -> float:
    """Returns the exponent of the parting time in log(PARTED / eps); nan if a time is missing."""
    return line_fit(np.log(np.log(PARTED / np.array(starts))), np.log(times)).slope
