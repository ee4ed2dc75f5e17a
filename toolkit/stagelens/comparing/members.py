"""The members of a comparison: runs or timelines, and the series that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.base import StagelensError, UsageError, unknown
from stagelens.comparing.alignment import Floats, by_fraction, by_loss, by_stage
from stagelens.runs import Run, load, points_of
from stagelens.timelines import SeriesCurve, Timeline, curve_name, curves_of, one_curve

EVERY = "all"  # instead of a probe: every series that the runs share


@dataclass(frozen=True)
class Member:
    """One run, or a timeline without a run. `end` is the last step of the training, also of an unfinished one."""

    name: str
    timeline: Timeline
    task: str = ""
    seed: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "loss"
    status: str = ""
    end: float = 0.0
    run: Run | None = None

    @classmethod
    def of(cls, given: Any, folder: str | Path | None, number: int) -> Member:
        """Returns the member for a run, its name or path, or a timeline."""
        if isinstance(given, Timeline):
            name = str(given.attributes.get("run", f"timeline {number}"))
            last = float(given.steps[-1]) if len(given.steps) else 0.0
            return cls(name, given, end=last, **_attributes(given))._measured()
        if not isinstance(given, Run | str | Path):
            raise UsageError(f"cannot compare {given!r}: expected a run, its name or path, or a timeline")
        run = given if isinstance(given, Run) else load(given, folder)
        manifest, timeline = run.manifest, run.timeline
        last = float(timeline.steps[-1]) if len(timeline.steps) else 0.0
        end = last if run.status == "finished" else max(last, float(manifest.steps))
        return cls(
            run.name, timeline, manifest.task, run.seed, manifest.config, manifest.metric, run.status, end, run
        )._measured()

    def _measured(self) -> Member:
        if not len(self.steps):
            raise UsageError(f"run {self.name!r} has no measurement yet; wait for its first one")
        return self

    @property
    def steps(self) -> NDArray[Any]:
        return self.timeline.steps

    @property
    def is_flow(self) -> bool:
        return self.run is not None and self.run.manifest.kind == "flow"

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.run.folder) if self.run else "",
            "name": self.name,
            "task": self.task,
            "seed": self.seed,
            "status": self.status,
            "step": self.steps[-1].item(),
        }

    @cached_property
    def found(self) -> Any:
        """The stages of the metric; none if it is missing or too short."""
        from stagelens.stages import detect_stages

        try:
            return self.run.stages() if self.run else detect_stages(*self._read(self.metric))
        except StagelensError:
            return ()

    @property
    def is_log(self) -> bool:
        """True if the stages were found on a log axis."""
        return getattr(self.found, "axis", "linear") == "log"

    @cached_property
    def transitions(self) -> list[float]:
        return [float(stage.at) for stage in self.found if stage.kind == "transition"]

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """The stages with their number; if there is none, one stage of kind `whole run`."""
        keys = ("kind", "start", "end", "level", "drop", "name")
        rows = [
            {"number": number} | {key: getattr(stage, key) for key in keys}
            for number, stage in enumerate(self.found, start=1)
        ]
        whole = {"kind": "whole run", "start": self.steps[0].item(), "end": self.steps[-1].item()}
        return rows or [{"number": 1, "level": None, "drop": None, "name": ""} | whole]

    def reduced(self, series: SeriesCurve) -> tuple[Floats, Floats]:
        """Returns (steps, values) of `series`, each [step], at the steps at which it was measured."""
        try:
            steps, values = series.read(self.timeline)
        except UsageError as error:
            raise UsageError(f"run {self.name!r}: {error}") from None
        return steps.astype(np.float64), values

    def _read(self, name: str) -> tuple[NDArray[Any], Floats]:
        return one_curve(self.timeline, name).read(self.timeline)

    def value_at(self, series: SeriesCurve, step: float) -> float | None:
        """Returns `series` at `step`: interpolated, or the last label; None outside of its measurements."""
        steps, values = self.reduced(series)
        if not steps[0] <= step <= steps[-1]:
            return None
        if series.labels:
            return float(values[np.searchsorted(steps, step, side="right") - 1])
        return float(np.interp(step, steps, values))

    def place(self, steps: NDArray[Any], align: str) -> Floats:
        """Returns `steps` [point] on the axis of `align`."""
        try:
            if align == "fraction":
                return by_fraction(steps, self.end)
            if align == "loss":
                return by_loss(steps, *self._read("loss"))
            if align == "stage":
                return by_stage(steps, self.transitions, float(self.steps[0]), float(self.steps[-1]))
        except UsageError as error:
            raise UsageError(f"run {self.name!r}: {error}") from None
        return steps.astype(np.float64)


class Members(tuple[Member, ...]):
    """The members of a comparison, with distinct names."""

    __slots__ = ()

    @classmethod
    def open(cls, runs: Any, folder: str | Path | None = None) -> Members:
        """Opens a run or a list of runs; a run that is given twice counts once."""
        given: list[Any] = [runs] if isinstance(runs, str | Path | Run | Timeline) else list(runs)
        given = [run for one in given for run in _points(one, folder) or [one]]
        if not given:
            raise UsageError("nothing to compare: give at least one run; `stagelens runs` lists them")
        members = [Member.of(one, folder, number) for number, one in enumerate(given, start=1)]
        seen = {str(m.run.folder.resolve()) if m.run else f"timeline {id(m.timeline)}": m for m in members}
        return cls(_distinct(list(seen.values())))

    @property
    def shared(self) -> list[str]:
        """The series that every member has, in the first one's order."""
        return [name for name in self[0].timeline if all(name in m.timeline for m in self)]

    def choose(self, wanted: Sequence[str]) -> tuple[SeriesCurve, ...]:
        """Returns the curves that `wanted` names: curves, series, or probes for all of their series.

        Without `wanted` it is the metric that the members share.
        """
        shared = self.shared
        if not shared:
            raise UsageError(f"{', '.join(m.name for m in self)} have no series in common to compare")
        if not wanted:
            return self._curves(self._metric_first(shared)[0])
        if EVERY in wanted:
            alike = [name for name in self._metric_first(shared) if len(self._labels(name)) == 1]
            return tuple(curve for name in alike for curve in self._shared_curves(name))
        found = [curve for one in wanted for curve in self._wanted(one, shared)]
        return tuple(dict.fromkeys(found))

    def _wanted(self, wanted: str, shared: Sequence[str]) -> list[SeriesCurve]:
        name = curve_name(wanted, shared)
        meant = self._meant(name.series, shared)
        if name.series not in meant:  # a probe: its series that have the dims
            meant = [one for one in meant if name.place.keys() <= {*self[0].timeline.column(one).dims}] or meant
        return [curve for series in meant for curve in self._curves(series, name.place, name.is_mean)]

    def _metric_first(self, shared: Sequence[str]) -> list[str]:
        """Returns `shared`, first the metric of the runs if it is the same, else the loss."""
        metrics = {member.metric for member in self}
        first = metrics.pop() if len(metrics) == 1 else "loss"
        return sorted(shared, key=lambda name: name != first)

    def _labels(self, name: str) -> set[tuple[str, ...]]:
        return {member.timeline.column(name).labels for member in self}

    def _meant(self, wanted: str, shared: Sequence[str]) -> list[str]:
        found = [name for name in shared if name == wanted or name.startswith(f"{wanted}/")]
        if found:
            return found
        having = [m.name for m in self if any(n == wanted or n.startswith(f"{wanted}/") for n in m.timeline)]
        if having:
            lacking = [m.name for m in self if m.name not in having]
            raise UsageError(
                f"probe {wanted!r} is not common to the runs: {', '.join(lacking)} did not record it; "
                f"common: {', '.join(shared)}"
            )
        raise unknown("probe or series", wanted, shared)

    def _curves(
        self, name: str, place: Mapping[str, str] | None = None, is_mean: bool = False
    ) -> tuple[SeriesCurve, ...]:
        """Returns the curves of a series that every member has; an error if there is none."""
        if len(self._labels(name)) > 1:
            raise UsageError(f"series {name!r} has different labels in the runs; it cannot be compared between them")
        if not (found := self._shared_curves(name, place, is_mean)):
            raise UsageError(f"series {name!r} has no curve that all the runs have: its dims or their labels differ")
        return found

    def _shared_curves(
        self, name: str, place: Mapping[str, str] | None = None, is_mean: bool = False
    ) -> tuple[SeriesCurve, ...]:
        return tuple(curves_of(*(member.timeline.column(name) for member in self), place=place, is_mean=is_mean))


def _points(given: Any, folder: str | Path | None) -> list[Any]:
    """Returns the runs of a sweep that is given by its name or path; none if it is no sweep."""
    return [*points_of(given, folder)] if isinstance(given, str | Path) else []


def _distinct(members: Sequence[Member]) -> list[Member]:
    """Returns the members; a name that occurs twice gets the directory of its run in front."""
    repeated = Counter(member.name for member in members)
    return [
        replace(m, name=f"{m.run.folder.parent.name}/{m.name}" if m.run else f"{m.name} [{number}]")
        if repeated[m.name] > 1
        else m
        for number, m in enumerate(members, start=1)
    ]


def _attributes(timeline: Timeline) -> dict[str, Any]:
    return {"task": str(timeline.attributes.get("task", "")), "seed": timeline.attributes.get("seed")}
