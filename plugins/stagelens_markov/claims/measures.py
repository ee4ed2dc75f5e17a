"""What the claims read off a timeline or a flow: a number, a list or a sequence of names.

A pattern I(k) is learned when some head puts more than half of its attention on it.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np

from stagelens import Run, Timeline
from stagelens.claims import NOT_REACHED, Value, reached
from stagelens.experiments import Floats, recording_times, solve
from stagelens.timelines import first_crossing, line_fit, local_slope
from stagelens_markov import theory
from stagelens_markov.flow import PARTED

LEARNED = 0.5  # of a head's attention, from which on a pattern is learned
LASTING = 3  # measurements that a phase lasts at least; near its threshold there are shorter ones
SMOOTHING = 0.2  # width, in log time, over which the slope of the loss is fitted
FASTER = 1.5  # how many times as fast as before it the loss falls in a drop, at least
SLOWEST = 0.01  # of the fastest fall: a slower one is a plateau, and differences below it are noise


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


def fraction_together(timeline: Timeline) -> Value:
    """Returns the fraction of the competitive phase's steps in which every head attends most to I(1).

    A measurement counts for the steps until the next one.
    """
    phase = competitive(timeline)
    if not phase.any():
        return "no competitive phase"
    together = np.array([all(group == "I(1)" for group in groups) for groups in leaders(timeline)])
    lasts = np.diff(timeline.steps, append=timeline.steps[-1] + 1)  # the last measurement counts as one step
    return float(lasts[phase & together].sum() / lasts[phase].sum())


def drop_times(timeline: Timeline) -> list[float]:
    """Returns the steps at which the excess loss falls fastest: peaks of its fall per step, each after a slowdown.

    A drop counts if the loss falls `FASTER` times as fast as at the slowest point before it. An exponential decay only
    slows down, so it is one drop. The slope is fitted in log time, because early measurements are closer together. The
    first drops of this task merge without a plateau between them, so the stage detector does not separate them.
    """
    from scipy.signal import find_peaks

    steps, excess = timeline.scalar("excess")
    time, excess = np.log(steps[steps > 0]), excess[steps > 0]  # [measurement]
    at = np.linspace(time[0], time[-1], 400)
    speed = -local_slope(time, excess, at, SMOOTHING) / np.exp(at)  # per step
    log_speed = np.log(np.maximum(speed, SLOWEST * speed.max()))
    ends = log_speed.min() - 1  # below every speed, so that the first and the last point may be peaks too
    peaks, _ = find_peaks(np.pad(log_speed, 1, constant_values=ends), prominence=np.log(FASTER))
    return [float(step) for step in np.exp(at[peaks - 1])]


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


def last_position(run: Run) -> float:
    """Returns the number, from 1 on, of the position with the largest attention of identical heads at the end."""
    return float(run.timeline.series("attention")[-1, 0, :-1].argmax() + 1)  # the last entry is all other positions


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


def theory_rate(run: Run) -> float:
    """Returns Theorem 2's c: the largest rate of deviations on the path of identical heads during the run."""
    flow: Any = run.experiment
    h, T, H = flow.config.h, flow.config.T, flow.config.n_heads

    def rate(_: float, state: Floats) -> Floats:
        return np.concatenate(theory.symmetric_rates(state[:h], state[h:], flow.G, H))

    start = np.concatenate([np.zeros(h), np.full(T, 1 / T)])
    times = recording_times(flow.config.time, even=500, log=500, first=1e-3)
    path = solve(rate, start, times, rtol=1e-10, atol=1e-14).states
    return max(theory.deviation_rate(state[:h], state[h:], flow.G, H) for state in path)


def earliest_parting(run: Run, c: float) -> float:
    """Returns the parting time in units of the shortest one that eps exp(c t) allows; infinite if they do not part."""
    shortest = np.log(PARTED / run.timeline.series("deviation")[0]) / c
    time = parting_time(run)
    return float(time / shortest) if np.isfinite(time) else float("inf")


def over_bound(run: Run, c: float) -> float:
    """Returns the largest deviation / (eps exp(c t)) until the heads part."""
    times, growth = until_parting(run)
    return float(np.exp((growth - c * times).max()))


def parting_exponent(starts: list[float], times: list[float]) -> float:
    """Returns the exponent of the parting time in log(PARTED / eps); nan if a time is missing."""
    return line_fit(np.log(np.log(PARTED / np.array(starts))), np.log(times)).slope
