"""Stages of a curve: plateaus, and the transitions between them.

    >>> detect_stages(run.steps, run.loss).transitions

`docs/stages.md` says how it works: `pieces` fits straight lines, `plateaus` finds where the curve is flat, `moves`
judges what lies between, `timing` reads the times, and `intervals` says how certain times and drops are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from stagelens.base import UsageError
from stagelens.stages.axis import Axis, AxisName
from stagelens.stages.intervals import drop_margins
from stagelens.stages.moves import Moves, moves
from stagelens.stages.pieces import Array, fit
from stagelens.stages.timing import times

FINEST = 2.0**-7  # of the largest value: a coarser grid of values holds counts, a finer one comes from rounding
ROUNDING = 8  # grid spacings: a smaller drop is rounding


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
    strength: float = 0.0  # of a transition: its drop in standard errors of the plateaus next to it
    at_low: float | None = None  # 95% confidence intervals of a transition's time and drop
    at_high: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Stages(Sequence[Stage]):
    """The stages of one curve, in order, covering it from its first step to its last."""

    def __init__(
        self, stages: Iterable[Stage], axis: Literal["linear", "log"] = "linear", explanation: str = ""
    ) -> None:
        self._stages = tuple(stages)
        self.axis = axis
        self.explanation = explanation  # one line: why there is no transition, or what the smallest one exceeds

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
        stages = (replace(s, name=next(name)) if s.kind == "transition" else s for s in self)
        return Stages(stages, self.axis, self.explanation)

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
        why = [] if self.transitions or not self.explanation else [self.explanation]
        return "\n".join(line.rstrip() for line in [head, *rows, *why])


MOST_OF_IT = 0.7  # of the range of the values: on plain steps one transition must do this much if there is none in log


def detect_stages(
    steps: ArrayLike,
    values: ArrayLike,
    *,
    axis: AxisName = "auto",
    min_drop: float = 0.01,
    significance: float = 3.0,
) -> Stages:
    """Returns the plateaus and transitions of a series.

    steps, values: [point], steps strictly increasing.

    `axis`: on which steps are measured. `auto` takes the logarithm if half of the points lie in the first quarter of
    the steps. It takes plain steps if there is no transition on the logarithmic axis.
    `min_drop`: the least drop, as a fraction of the range of the values.
    `significance`: the least drop, in standard errors of the plateaus next to it.
    """
    t, y = _checked(steps, values)
    for name, least in (("min_drop", min_drop), ("significance", significance)):
        if not least >= 0:
            raise UsageError(f"{name} is {least:g}; it must be 0 or more")
    found = _on_axis(t, y, axis, min_drop, significance)
    if axis == "auto" and found.axis == "log" and not found.transitions:
        plain = _on_axis(t, y, "linear", min_drop, significance)
        if any(abs(one.drop) >= MOST_OF_IT * np.ptp(y) for one in plain.transitions):
            return plain
    return found


def _on_axis(t: Array, y: Array, axis: AxisName, min_drop: float, significance: float) -> Stages:
    line = Axis(t, axis)
    origin, extent = float(y[0]), float(np.ptp(y))
    if len(t) < 4 or extent <= 1e-12 * np.abs(y).max():
        why = "the values are constant" if extent <= 1e-12 * np.abs(y).max() else f"{len(t)} points are too few"
        return Stages([_plateau(t[0], t[-1], float(np.mean(y)))], line.name, f"one plateau: {why}")
    spacing = float(np.min(np.diff(np.unique(y))))
    if spacing <= FINEST * np.abs(y).max():
        min_drop = max(min_drop, ROUNDING * spacing / extent)
    points = (y - origin) / extent
    found = moves(fit(line.u, points), t, min_drop, significance)
    return Stages(_stages(found, line, points, origin, extent), line.name, _explanation(found, extent, min_drop))


def _explanation(found: Moves, extent: float, min_drop: float) -> str:
    wander, curve = extent * float(np.median(found.found.wander)), found.found.curve
    if len(found.drops):
        strength = float(np.min(_strengths(found)))
        return f"the weakest transition exceeds the plateaus' standard error {strength:.3g} times"
    if abs(curve[-1] - curve[0]) > max(0.5 * np.ptp(curve), min_drop, 6 * wander / extent):
        verb = "falls" if curve[-1] < curve[0] else "rises"
        return f"one plateau: the curve {verb} steadily, no part is flat before and after a move"
    return f"one plateau: nothing exceeds the wander of {wander:.2g}"


def _strengths(found: Moves) -> Array:
    return np.asarray(np.abs(found.drops) / np.hypot(found.errors[1:], found.errors[:-1]))


def _checked(steps: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    t, y = _numbers("steps", steps), _numbers("values", values)
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


def _numbers(what: str, given: ArrayLike) -> Array:
    try:
        return np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        raise UsageError(f"{what} must be a list of real numbers, not {given!r:.60}") from None


def _plateau(start: float, end: float, level: float) -> Stage:
    return Stage("plateau", float(start), float(end), level, drop=0.0, at=float(start + end) / 2, sharpness=0.0)


def _stages(found: Moves, axis: Axis, points: Array, origin: float, extent: float) -> Iterator[Stage]:
    """Plateau, transition, plateau, ...; none before or after a transition that an end of the curve cuts."""
    when, levels, strengths = times(found, axis.u, points), origin + extent * found.levels, _strengths(found)
    margins = extent * drop_margins(found)
    around = [0.0, *(time.at for time in when), 1.0]
    for i, level in enumerate(levels):
        begin = 0.0 if i == 0 else when[i - 1].end
        until = 1.0 if i == len(when) else max(when[i].start, begin)
        if begin < until:
            plateau = _plateau(axis.step(begin), axis.step(until), float(level))
            yield replace(plateau, at=axis.step((begin + until) / 2))
        if i < len(when):
            time, drop = when[i], float(level - levels[i + 1])
            fraction = (time.end - until) / max(around[i + 2] - around[i], 1e-12)
            yield Stage(
                kind="transition",
                start=axis.step(until),
                end=axis.step(time.end),
                level=float(levels[i + 1]),
                drop=drop,
                at=axis.step(min(max(time.at, until), time.end)),
                sharpness=float(np.clip(1 - fraction, 0.0, 1.0)),
                strength=float(strengths[i]),
                at_low=axis.step(time.low),
                at_high=axis.step(time.high),
                drop_low=drop - float(margins[i]),
                drop_high=drop + float(margins[i]),
            )
