"""Stages of the whole model: one segmentation of a training from all of its readings together.

    >>> joint_stages(run.timeline).transitions

`steady` leaves out smooth decays. `components` reduces the other readings to what they do together. The detector of one
curve finds the transitions of each component, `together` joins those that overlap, and `movers` says which readings
move in each. See `docs/stages.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stagelens.base import UsageError
from stagelens.stages.axis import Axis, AxisName
from stagelens.stages.components import Components, components
from stagelens.stages.detect import Stage, Stages, detect_stages
from stagelens.stages.movers import Levels, half_done, levels_of, noise_range
from stagelens.stages.pieces import Array
from stagelens.stages.steady import without_decays
from stagelens.stages.tables import tables_of
from stagelens.stages.together import Move, Together, together

if TYPE_CHECKING:
    from stagelens.timelines import Timeline

LEAST_LENGTH = 0.05  # of the extent of all components: a transition of the whole model moves it by this much


@dataclass(frozen=True)
class Mover:
    """One number of the timeline that moves in a transition of the whole model."""

    reading: str  # `probe/reading[layer=1,head=0]`
    at: float  # the step at which half of its move is done
    before: float  # its levels on the plateaus before and after
    after: float
    strength: float  # its move in units of its own wander


@dataclass(frozen=True)
class JointStage(Stage):
    """A plateau or a transition of the whole model. `level` is the distance travelled so far, as a fraction of the
    extent of all components. `readings` are the numbers that move, the first one first."""

    readings: tuple[Mover, ...] = field(default=())


@dataclass(frozen=True)
class SeriesMoved:
    """What the numbers of one series do in a transition."""

    series: str
    count: int  # numbers that move
    first: float  # the steps at which the first and the last of them have done half of their moves
    last: float
    strongest: str
    strength: float


def series_moved(stage: JointStage) -> list[SeriesMoved]:
    """Returns the series that move in a transition, the first one first."""
    groups: dict[str, list[Mover]] = {}
    for mover in stage.readings:
        groups.setdefault(mover.reading.partition("[")[0], []).append(mover)
    found = []
    for series, movers in groups.items():
        best = max(movers, key=lambda mover: mover.strength)
        times = [mover.at for mover in movers]
        found.append(SeriesMoved(series, len(movers), min(times), max(times), best.reading, best.strength))
    return found


class JointStages(Stages):
    """The stages of the whole model, in order. `components` are the curves that they were found in."""

    def __init__(
        self, stages: Iterable[Stage], axis: Literal["linear", "log"], explanation: str, found: Components
    ) -> None:
        super().__init__(stages, axis, explanation)
        self.components = found

    def named(self, names: Sequence[str]) -> JointStages:
        """A copy whose transitions carry these names, one each, in order."""
        return JointStages(super().named(names), self.axis, self.explanation, self.components)

    @property
    def transitions(self) -> tuple[JointStage, ...]:
        return tuple(stage for stage in self if isinstance(stage, JointStage) and stage.kind == "transition")


@dataclass(frozen=True)
class _Found:
    """Transitions of the whole model that hold, and what the readings do in them."""

    groups: tuple[Together, ...]
    levels: Levels
    threshold: float


def joint_stages(
    timeline: Timeline, *, axis: AxisName = "auto", min_drop: float = 0.01, significance: float = 3.0
) -> JointStages:
    """Returns the stages of the whole model. The settings are those of `detect_stages`, for each component.

    A number that changes but has no transition of its own, such as a smooth decay, is left out. A transition moves the
    model by at least 5% of the extent of its components. It also moves at least one number by more than the range that
    noise of this number's wander covers in all numbers and steps.
    """
    steps, tables = tables_of(timeline)
    if len(steps) < 2:
        raise UsageError(f"{len(steps)} steps were measured; stages need at least two, so record more steps")
    line = Axis(np.asarray(steps, dtype=float), axis)
    settings: Any = {"axis": axis, "min_drop": min_drop, "significance": significance}
    moving = without_decays(steps, tables, **settings) if len(steps) >= 4 else []
    if not moving:
        why = "no reading changes, or all change steadily" if len(steps) >= 4 else f"{len(steps)} points are too few"
        return JointStages([_plateau(steps)], line.name, f"one plateau: {why}", components([]))
    found = components([table.values for table in moving])
    moves = [move for j, curve in enumerate(found.scores.T) for move in _moves(line, steps, curve, j, settings)]
    values = np.hstack([table.values for table in moving])
    extent = float(np.linalg.norm(np.ptp(found.scores, axis=0)))
    held = _held(line.u, values, moves, extent)
    names = [name for table in moving for name in table.names]
    stages = _stages(held, line, values, names, extent)
    return JointStages(stages, line.name, _explanation(held, found), found)


def _moves(line: Axis, steps: NDArray[Any], curve: Array, index: int, settings: Any) -> Iterator[Move]:
    """Yields the transitions of one component, in positions on the axis of all."""
    for one in detect_stages(steps, curve, **settings).transitions:
        start, at, end = np.interp([one.start, one.at, one.end], steps, line.u)
        yield Move(index, float(start), float(at), float(end), abs(one.drop))


def _held(u: Array, values: Array, moves: Sequence[Move], extent: float) -> _Found:
    """Returns the joint transitions that are large enough. The least convincing one goes first."""
    threshold, left = noise_range(values.shape[1], len(values)), list(moves)
    while True:
        groups = together(left)
        levels = levels_of(u, values, groups)
        strongest = levels.strengths.max(axis=1)
        score = [
            min(group.size / extent / LEAST_LENGTH, strength / threshold)
            for group, strength in zip(groups, strongest, strict=True)
        ]
        if not score or min(score) >= 1:
            return _Found(tuple(groups), levels, threshold)
        gone = groups[int(np.argmin(score))].moves
        left = [move for move in left if move not in gone]


def _stages(held: _Found, line: Axis, values: Array, names: Sequence[str], extent: float) -> Iterator[Stage]:
    begin, travelled = 0.0, 0.0
    for index, group in enumerate(held.groups):
        after = held.groups[index + 1].start if index + 1 < len(held.groups) else 1.0
        start, end = max(group.start, begin), min(max(group.end, group.at), max(after, group.at))
        if begin < start:
            yield _plateau((line.step(begin), line.step(start)), travelled, line.step((begin + start) / 2))
        length = group.size / extent
        travelled += length
        movers = _movers(held, line, values, names, index)
        yield JointStage(
            kind="transition",
            start=line.step(start),
            end=line.step(end),
            level=travelled,
            drop=-length,
            at=line.step(min(max(group.at, start), end)),
            sharpness=0.0,
            strength=max(mover.strength for mover in movers),
            readings=movers,
        )
        begin = end
    if begin < 1:
        yield _plateau((line.step(begin), line.step(1.0)), travelled, line.step((begin + 1) / 2))


def _movers(held: _Found, line: Axis, values: Array, names: Sequence[str], index: int) -> tuple[Mover, ...]:
    strengths = held.levels.strengths[index]
    before, after = held.levels.levels[index], held.levels.levels[index + 1]
    found = [
        Mover(
            reading=names[number],
            at=line.step(half_done(line.u, values, held.levels, index, number)),
            before=float(before[number]),
            after=float(after[number]),
            strength=float(strengths[number]),
        )
        for number in np.flatnonzero(strengths >= held.threshold).tolist()
    ]
    return tuple(sorted(found, key=lambda mover: mover.at))


def _plateau(span: Sequence[float] | NDArray[Any], level: float = 0.0, at: float | None = None) -> JointStage:
    start, end = float(span[0]), float(span[-1])
    middle = (start + end) / 2 if at is None else at
    return JointStage("plateau", start, end, level, drop=0.0, at=middle, sharpness=0.0)


def _explanation(held: _Found, found: Components) -> str:
    if held.groups:
        share = float(found.shares.sum())
        return f"from {len(found.shares)} components that hold {share:.0%} of the variance of all readings"
    if not len(found.shares):
        return "one plateau: no reading has a change that lasts"
    return f"one plateau: no reading moves from a plateau to another by {held.threshold:.2g} times its wander"
