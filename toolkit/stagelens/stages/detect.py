"""Stages of a curve: plateaus, and the transitions between them.

    >>> detect_stages(run.steps, run.loss).transitions

`docs/stages.md` says how it works. The numbers behind it are in `_changepoints`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from stagelens.base import UsageError
from stagelens.stages import changepoints as changepoints
from stagelens.stages.changepoints import Array, Moves
from stagelens.stages.timing import timed

AxisName = Literal["auto", "linear", "log"]


@dataclass(frozen=True)
class Stage:
    """A plateau or a transition of a curve."""

    kind: Literal["plateau", "transition"]
    start: float  # in steps, as are end and at
    end: float
    level: float  # of the plateau; of a transition, the level it leads to
    drop: float  # of a transition: the level before minus the level after, negative when the series rises
    at: float  # the middle of a plateau; the steepest point of a transition
    sharpness: float  # 1 - (10 to 90 % of the drop) / (distance between the neighbours); 0 for a plateau
    name: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Stages(Sequence[Stage]):
    """The stages of one curve, in order, covering it from its first step to its last."""

    def __init__(self, stages: Iterable[Stage], axis: Literal["linear", "log"] = "linear") -> None:
        self._stages = tuple(stages)
        self.axis = axis

    @property
    def transitions(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in self if stage.kind == "transition")

    @property
    def plateaus(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in self if stage.kind == "plateau")

    def named(self, names: Sequence[str]) -> Stages:
        """A copy whose transitions carry these names, one each, in order."""
        if len(names) != len(self.transitions):
            raise UsageError(
                f"{len(names)} names were given for {len(self.transitions)} transitions; give one name for each"
            )
        name = iter(names)
        return Stages((replace(s, name=next(name)) if s.kind == "transition" else s for s in self), self.axis)

    def named_by_level(self, names: Sequence[str], levels: Sequence[float]) -> Stages:
        """A copy whose transitions are named by where they lead: `names[m]` is the way from `levels[m]` to the next.

        A transition that passes several levels has all their names, and one that reaches no further level none.
        """
        given, reached = [], 0
        for stage in self:
            nearest = int(np.argmin(np.abs(np.subtract(levels, stage.level))))
            if stage.kind == "transition":
                given.append(", ".join(names[reached:nearest]))
            reached = max(reached, nearest)
        return self.named(given)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [stage.to_dict() for stage in self]

    @overload
    def __getitem__(self, index: int) -> Stage: ...
    @overload
    def __getitem__(self, index: slice) -> Stages: ...
    def __getitem__(self, index: int | slice) -> Stage | Stages:
        return Stages(self._stages[index], self.axis) if isinstance(index, slice) else self._stages[index]

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stages) and (self._stages, self.axis) == (other._stages, other.axis)

    def __hash__(self) -> int:
        return hash((self._stages, self.axis))

    def __repr__(self) -> str:
        head = f"{'kind':<10} {'start':>10} {'end':>10} {'level':>10} {'drop':>10}  name"
        rows = (
            f"{s.kind:<10} {s.start:>10.5g} {s.end:>10.5g} {s.level:>10.4g} {s.drop:>10.4g}  {s.name}" for s in self
        )
        return "\n".join(line.rstrip() for line in [head, *rows])


def detect_stages(
    steps: ArrayLike,
    values: ArrayLike,
    *,
    axis: AxisName = "auto",
    min_drop: float = 0.01,
    significance: float = 3.0,
) -> Stages:
    """Plateaus and transitions of a series.

    steps, values: [point], steps strictly increasing. `axis`: on which steps are measured; `auto` takes the
    logarithm when half of the points lie in the first quarter of the steps. `min_drop`: the least drop, as a share
    of the range of the values. `significance`: the least drop, in standard errors of the plateaus beside it.
    """
    t, y = _checked(steps, values)
    line = _Axis(t, axis)
    origin, extent = float(y[0]), float(np.ptp(y))
    if len(t) < 3 or extent <= 1e-12 * np.abs(y).max():
        return Stages([_plateau(t[0], t[-1], float(np.mean(y)))], line.name)

    points = (y - origin) / extent
    noise = changepoints.noise(line.u, points)
    starts = changepoints.blocks(points, noise)
    count = np.diff(starts, append=len(y)).astype(float)
    u, v, s, t, square = (changepoints.means(x, starts) for x in (line.u, points, noise, t, points**2))
    within = np.sqrt(np.maximum(square - v**2, 0.0))  # the mean of a steep block stands for it only roughly
    curve = changepoints.fit(u, v, np.maximum(s, within / 10) * count**-0.5, count)
    found = changepoints.moves(curve, t, min_drop, significance)
    return Stages(_stages(timed(found, line.u, points), line, origin, extent), line.name)


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
    order, by the levels from and to which they lead: levels belong to the task, times to the seed.
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


def _checked(steps: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    t, y = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    if t.ndim != 1 or t.shape != y.shape:
        raise UsageError(f"steps have shape {t.shape} and values {y.shape}; give two lists of the same length")
    if len(t) < 2:
        raise UsageError(f"{len(t)} point was given; stages need at least two, so record more steps")
    bad = np.flatnonzero(~(np.isfinite(t) & np.isfinite(y)))
    if len(bad):
        raise UsageError(
            f"the value at step {t[bad[0]]:g} is {y[bad[0]]:g}; stages need finite values, so cut the series before it"
        )
    back = np.flatnonzero(np.diff(t) <= 0)
    if len(back):
        raise UsageError(
            f"step {t[back[0] + 1]:g} comes after step {t[back[0]]:g}; steps must increase, "
            "so sort them and keep each once"
        )
    return t, y


class _Axis:
    """Steps as places u in [0, 1], and back."""

    def __init__(self, t: Array, axis: AxisName) -> None:
        if axis not in ("auto", "linear", "log"):
            raise UsageError(f"axis is {axis!r}; it must be 'auto', 'linear' or 'log'")
        if axis == "log" and t[0] < 0:
            raise UsageError(f"the first step is {t[0]:g}; a log axis needs steps of 0 or more, so take axis='linear'")
        early = np.median(t) - t[0] < 0.25 * (t[-1] - t[0])
        self.name: Literal["linear", "log"] = (
            "log" if axis == "log" or (axis == "auto" and early and t[0] >= 0) else "linear"
        )
        self._t, self._place = t, t
        if self.name == "log" and len(t) > 2:
            log = np.log(t[t > 0])
            # Step 0 has no logarithm: it stands one spacing before the first step that has.
            self._place = log if t[0] > 0 else np.concatenate([[2 * log[0] - log[1]], log])
        self.u = (self._place - self._place[0]) / (self._place[-1] - self._place[0])

    def step(self, u: float) -> float:
        i = int(np.clip(np.searchsorted(self.u, u) - 1, 0, len(self.u) - 2))
        share = (u - self.u[i]) / (self.u[i + 1] - self.u[i])
        if self.name == "log" and self._t[i] > 0:
            return float(self._t[i] * (self._t[i + 1] / self._t[i]) ** share)
        return float(self._t[i] + (self._t[i + 1] - self._t[i]) * share)


def _plateau(start: float, end: float, level: float) -> Stage:
    return Stage("plateau", float(start), float(end), level, drop=0.0, at=float(start + end) / 2, sharpness=0.0)


def _stages(found: Moves, axis: _Axis, origin: float, extent: float) -> Iterator[Stage]:
    """Plateau, transition, plateau, ...; none before or after a transition that an end of the curve cuts."""
    starts, ends = found.starts, found.ends
    levels, shares = origin + extent * found.levels, found.shares
    for i, level in enumerate(levels):
        begin = 0.0 if i == 0 else ends[i - 1]
        until = 1.0 if i == len(starts) else starts[i]
        if begin < until:
            plateau = _plateau(axis.step(begin), axis.step(until), float(level))
            yield replace(plateau, at=axis.step((begin + until) / 2))
        if i < len(starts):
            yield Stage(
                kind="transition",
                start=axis.step(starts[i]),
                end=axis.step(ends[i]),
                level=float(levels[i + 1]),
                drop=float(level - levels[i + 1]),
                at=axis.step(found.ats[i]),
                sharpness=float(np.clip(1 - shares[i], 0.0, 1.0)),
            )
