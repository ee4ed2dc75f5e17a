"""Stages of several curves of one task: the transitions that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stagelens.base import UsageError
from stagelens.stages.axis import AxisName
from stagelens.stages.detect import Stage, Stages, detect_stages
from stagelens.stages.pieces import Array


@dataclass(frozen=True)
class GroupTransition:
    """One transition in a group of series: when it happens (median, and the 16th and 84th percentiles), in how many."""

    at: float
    low: float
    high: float
    drop: float  # the median
    count: int
    times: tuple[float | None, ...]  # [series], None where the transition was not seen


@dataclass(frozen=True)
class StageGroup:
    """The transitions that a group of series shares, and the stages of each series."""

    transitions: tuple[GroupTransition, ...]
    series: tuple[Stages, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [asdict(transition) | {"times": list(transition.times)} for transition in self.transitions]


def detect_group(
    steps: ArrayLike,
    series: Sequence[ArrayLike] | Array,
    *,
    axis: AxisName = "auto",
    min_drop: float = 0.01,
    significance: float = 3.0,
) -> StageGroup:
    """Transitions that a group of series (the seeds of one run) share. steps: [point]; series: [series, point].

    The group has as many transitions as most of its series have. A series with more or fewer is matched to them, in
    order, by the levels from and to which they lead. Levels belong to the task, times to the seed.
    """
    if len(series) == 0:
        raise UsageError("no series was given; give at least one list of values")
    all_stages = tuple(
        detect_stages(steps, values, axis=axis, min_drop=min_drop, significance=significance) for values in series
    )
    counts = [len(stages.transitions) for stages in all_stages]
    usual = max(set(counts), key=lambda count: (counts.count(count), count))
    ends = np.array([_ends(stages) for stages, count in zip(all_stages, counts, strict=True) if count == usual])
    reference = np.median(ends, axis=0)  # [transition, 2]
    matched = [_match(stages, reference) for stages in all_stages]
    return StageGroup(tuple(_spread(column) for column in zip(*matched, strict=True)), all_stages)


def _ends(stages: Stages) -> Array:
    """Levels before and after each transition, [transition, 2]."""
    return np.array([[t.level + t.drop, t.level] for t in stages.transitions]).reshape(-1, 2)


def _match(stages: Stages, reference: Array) -> list[Stage | None]:
    """For each reference transition the series' own one, in order, so that the levels agree best."""
    ends, transitions = _ends(stages), stages.transitions
    cost = np.abs(reference[:, None] - ends[None]).sum(axis=-1)  # [reference, own]
    gain = np.abs(np.diff(reference, axis=1)) / 2 - cost  # together the levels may be off by half of the drop
    best = np.zeros((len(reference) + 1, len(ends) + 1))
    for i, j in np.ndindex(*gain.shape):
        best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], best[i, j] + gain[i, j])
    if len(ends) == len(reference):
        return list(transitions)
    result: list[Stage | None] = [None] * len(reference)
    i, j = gain.shape
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            result[i] = transitions[j]
    return result


def _spread(column: Sequence[Stage | None]) -> GroupTransition:
    seen = [stage for stage in column if stage is not None]
    low, at, high = np.percentile([stage.at for stage in seen], [16, 50, 84])
    drop = float(np.median([stage.drop for stage in seen]))
    times = tuple(stage.at if stage is not None else None for stage in column)
    return GroupTransition(float(at), float(low), float(high), drop, len(seen), times)
