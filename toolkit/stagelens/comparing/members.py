"""The members of a comparison: runs as it sees them, and the series that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.base import StagelensError, UsageError, unknown
from stagelens.comparing.alignment import Floats, by_fraction, by_loss, by_stage
from stagelens.runs import Run, load, points_of
from stagelens.timelines import SeriesCurve, Timeline, curves_of, one_curve, parse_curve

EVERY = "all"  # in place of a probe: every series that the runs share


@dataclass(frozen=True)
class Member:
    """One run (or a bare timeline) of a comparison. `end` is where its whole training ends."""

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
        """A member from a run, its name or path, or a timeline."""
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
            run.name, timeline, manifest.task, manifest.seed, manifest.config, manifest.metric, run.status, end, run
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
        """The stages of the metric; none where it is missing or too short."""
        from stagelens.stages import detect_stages

        try:
            return self.run.stages() if self.run else detect_stages(*self._read(self.metric))
        except StagelensError:
            return ()

    @property
    def is_log(self) -> bool:
        """Whether the stages were found on a log axis."""
        return getattr(self.found, "axis", "linear") == "log"

    @cached_property
    def transitions(self) -> list[float]:
        return [float(stage.at) for stage in self.found if stage.kind == "transition"]

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """The stages with their number; a member in which none was found counts as one, `whole run`."""
        keys = ("kind", "start", "end", "level", "drop", "name")
        rows = [
            {"number": number} | {key: getattr(stage, key) for key in keys}
            for number, stage in enumerate(self.found, start=1)
        ]
        whole = {"kind": "whole run", "start": self.steps[0].item(), "end": self.steps[-1].item()}
        return rows or [{"number": 1, "level": None, "drop": None, "name": ""} | whole]

    def reduced(self, series: SeriesCurve) -> tuple[Floats, Floats]:
        """(steps, values) of `series`, each [step], at the steps at which it was measured."""
        try:
            steps, values = series.read(self.timeline)
        except UsageError as error:
            raise UsageError(f"run {self.name!r}: {error}") from None
        return steps.astype(np.float64), values

    def _read(self, name: str) -> tuple[NDArray[Any], Floats]:
        return one_curve(self.timeline, name).read(self.timeline)

    def value_at(self, series: SeriesCurve, step: float) -> float | None:
        """`series` at `step`: interpolated, or the label before; None outside of its measurements."""
        steps, values = self.reduced(series)
        if not steps[0] <= step <= steps[-1]:
            return None
        if series.labels:
            return float(values[np.searchsorted(steps, step, side="right") - 1])
        return float(np.interp(step, steps, values))

    def place(self, steps: NDArray[Any], align: str) -> Floats:
        """`steps` [point] on the axis of `align`."""
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


class Members(Sequence[Member]):
    """The members of a comparison, with distinct names."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = list(members)

    @classmethod
    def open(cls, runs: Any, folder: str | Path | None = None) -> Members:
        """From a list of runs, or a single one; a run given twice counts once."""
        given: list[Any] = [runs] if isinstance(runs, str | Path | Run | Timeline) else list(runs)
        given = [run for one in given for run in _points(one, folder) or [one]]
        if not given:
            raise UsageError("nothing to compare: give at least one run; `stagelens runs` lists them")
        members = [Member.of(one, folder, number) for number, one in enumerate(given, start=1)]
        seen = {str(m.run.folder.resolve()) if m.run else f"timeline {id(m.timeline)}": m for m in members}
        return cls(_distinct(list(seen.values())))

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: Any) -> Any:
        return self._members[index]

    @property
    def shared(self) -> list[str]:
        """The series that every member has, in the first one's order."""
        return [name for name in self._members[0].timeline if all(name in m.timeline for m in self._members)]

    def choose(self, wanted: Sequence[str]) -> tuple[SeriesCurve, ...]:
        """The curves that `wanted` means: curves, series, or probes for all their series; none: the shared metric."""
        shared = self.shared
        if not shared:
            raise UsageError(f"{', '.join(m.name for m in self._members)} have no series in common to compare")
        if not wanted:
            return self._curves(self._metric_first(shared)[0])
        if EVERY in wanted:
            alike = [name for name in self._metric_first(shared) if len(self._labels(name)) == 1]
            return tuple(curve for name in alike for curve in self._shared_curves(name))
        found = [curve for one in wanted for curve in self._wanted(one, shared)]
        return tuple(dict.fromkeys(found))

    def _wanted(self, wanted: str, shared: Sequence[str]) -> list[SeriesCurve]:
        name, place = (wanted, {}) if wanted in shared else parse_curve(wanted)
        return [curve for series in self._meant(name, shared) for curve in self._curves(series, place)]

    def _metric_first(self, shared: Sequence[str]) -> list[str]:
        """`shared` with the runs' own metric in front where they have the same, else the loss."""
        metrics = {member.metric for member in self._members}
        first = metrics.pop() if len(metrics) == 1 else "loss"
        return sorted(shared, key=lambda name: name != first)

    def _labels(self, name: str) -> set[tuple[str, ...]]:
        return {member.timeline.column(name).labels for member in self._members}

    def _meant(self, wanted: str, shared: Sequence[str]) -> list[str]:
        found = [name for name in shared if name == wanted or name.startswith(f"{wanted}/")]
        if found:
            return found
        having = [m.name for m in self._members if any(n == wanted or n.startswith(f"{wanted}/") for n in m.timeline)]
        if having:
            lacking = [m.name for m in self._members if m.name not in having]
            raise UsageError(
                f"probe {wanted!r} is not common to the runs: {', '.join(lacking)} did not record it; "
                f"common: {', '.join(shared)}"
            )
        raise unknown("probe or series", wanted, shared)

    def _curves(self, name: str, place: Mapping[str, str] | None = None) -> tuple[SeriesCurve, ...]:
        """The curves of a series that every member has; an error if there is none."""
        if len(self._labels(name)) > 1:
            raise UsageError(f"series {name!r} has different labels in the runs; it cannot be compared between them")
        if not (found := self._shared_curves(name, place)):
            raise UsageError(f"series {name!r} has no curve that all the runs have: its dims or their labels differ")
        return found

    def _shared_curves(self, name: str, place: Mapping[str, str] | None = None) -> tuple[SeriesCurve, ...]:
        return tuple(curves_of(*(member.timeline.column(name) for member in self._members), place=place))


def _points(given: Any, folder: str | Path | None) -> list[Any]:
    """The runs of a sweep that is given by its name or path."""
    return [*points_of(given, folder)] if isinstance(given, str | Path) else []


def _distinct(members: Sequence[Member]) -> list[Member]:
    """Members with their folder before a name that occurs twice."""
    repeated = Counter(member.name for member in members)
    return [
        replace(m, name=f"{m.run.folder.parent.name}/{m.name}" if m.run else f"{m.name} [{number}]")
        if repeated[m.name] > 1
        else m
        for number, m in enumerate(members, start=1)
    ]


def _attributes(timeline: Timeline) -> dict[str, Any]:
    return {"task": str(timeline.attributes.get("task", "")), "seed": timeline.attributes.get("seed")}
