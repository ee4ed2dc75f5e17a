"""Comparison: timelines of different runs, seeds, tasks and papers on one axis, as curves and a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stagelens.comparing.alignment import ALIGNMENTS, Floats, check_alignment, common_grid, envelope, resample
from stagelens.comparing.grouping import RunGroup, group_members
from stagelens.comparing.members import EVERY, Member, Members
from stagelens.timelines import SeriesCurve

__all__ = ["EVERY", "SPREAD", "AlignedRuns", "Curve", "align_runs"]

SPREAD = "min..max over seeds"
SPREAD_KEYS = ("start", "end", "level", "drop")


@dataclass(frozen=True)
class Curve:
    """One series of one group on the common axis: the middle of its seeds and the lowest and highest of them.

    `x`, `middle`, `low`, `high` are [place]; `seeds` holds each member's own (x, values). The middle is the mean, or
    the most common label of a series of labels; a group's places are those that all of its members reach. The band
    from `low` to `high` contains every member's line between those places too.
    """

    group: RunGroup
    series: SeriesCurve
    x: Floats
    middle: Floats
    low: Floats
    high: Floats
    seeds: tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True)
class AlignedRuns:
    """Runs on a common axis: `curves` and `table`.

    `relative` draws every curve on its own range, from its lowest value (0) to its highest (1), so that losses of
    different tasks can stand in one picture. The table keeps the values as they are. Labels are never rescaled.
    """

    groups: tuple[RunGroup, ...]
    series: tuple[SeriesCurve, ...]
    align: str = "step"
    relative: bool = False
    _curves: dict[str, list[Curve]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def curves(self) -> list[Curve]:
        """A curve for each series and group, on the comparison's own axis."""
        return self.curves_by(self.align)

    def curves_by(self, align: str) -> list[Curve]:
        """A curve for each series and group, on the axis of another alignment."""
        if align not in self._curves:
            self._curves[align] = [_curve(g, s, align, self.relative) for s in self.series for g in self.groups]
        return self._curves[align]

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """A row for each group and stage: when, at what level, and each series at the stage's end."""
        return [row for group in self.groups for row in _rows(group, self.series)]

    @property
    def x_label(self) -> str:
        """The label of the common axis; flows have times instead of steps."""
        return self.x_label_by(self.align)

    def x_label_by(self, align: str) -> str:
        flows = {member.is_flow for group in self.groups for member in group.members}
        if align == "step" and True in flows:
            return "time" if flows == {True} else "training step, or a flow's time"
        return ALIGNMENTS[align]

    @property
    def is_log(self) -> bool:
        """Whether steps are better seen on a log axis: every run's stages were found on one."""
        return all(member.is_log for group in self.groups for member in group.members)

    @property
    def columns(self) -> list[str]:
        """The table's columns for people; `spread` stands beside the numbers it belongs to."""
        plain = ("group", "task", "seeds", "stage", "kind", "name", "start", "end", "level", "drop")
        return [*plain, *(series.label for series in self.series)]

    def to_dict(self) -> dict[str, Any]:
        """What `stagelens compare --json` prints."""
        return {
            "align": self.align,
            "axis": self.x_label,
            "spread": SPREAD,
            "probes": [
                {"name": s.name, "rule": s.rule, "label": s.label, "labels": list(s.labels)} for s in self.series
            ],
            "runs": [member.to_dict() | {"group": group.name} for group in self.groups for member in group.members],
            "rows": self.table,
        }

    def to_csv(self) -> str:
        """The table; a group's spread as further columns `<key> min` and `<key> max`."""
        keys = list(dict.fromkeys(key for row in self.table for key in row.get("spread", {})))
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerow([*self.columns, *(f"{key} {end}" for key in keys for end in ("min", "max"))])
        for row in self.table:
            spread = [value for key in keys for value in row.get("spread", {}).get(key, ("", ""))]
            out.writerow([_cell(row[column]) for column in self.columns] + spread)
        return text.getvalue()


def align_runs(
    runs: Any,
    probes: Sequence[str] | str = (),
    align: str = "step",
    *,
    relative: bool = False,
    folder: str | Path | None = None,
) -> AlignedRuns:
    """Puts `runs` (names, paths, `Run`s or `Timeline`s) on a common axis; `sl.compare` also draws them.

    Runs that differ in nothing but the seed become one group with a mean and a spread. `probes` are series, or probes
    for all of their series, or "all" (default: the metric the runs share). `align` is step, fraction, loss or stage.
    `folder` is where names are looked for (default: the runs folder).
    """
    check_alignment(align)
    members = Members.open(runs, folder)
    chosen = members.choose([probes] if isinstance(probes, str) else list(probes))
    for member in members:
        member.place(member.steps, align)  # what cannot be aligned is told before anything is drawn
    return AlignedRuns(tuple(group_members(list(members))), chosen, align, relative)


def _curve(group: RunGroup, series: SeriesCurve, align: str, relative: bool) -> Curve:
    """The series of a group's members on the axis of `align`, and their middle and spread on a common grid."""
    seeds = []
    for member in group.members:
        steps, values = member.reduced(series)
        seeds.append((member.place(steps, align), _on_own_range(values) if relative and not series.labels else values))
    if len(seeds) == 1:
        x, values = seeds[0]
        return Curve(group, series, x, values, values, values, tuple(seeds))
    grid = common_grid([x for x, _ in seeds])
    together = np.stack([resample(grid, x, values, bool(series.labels)) for x, values in seeds])  # [seed, place]
    middle = series.middle(together, 0)
    if series.labels or not len(grid):
        return Curve(group, series, grid, middle, together.min(0), together.max(0), tuple(seeds))
    bands = [envelope(grid, x, values) for x, values in seeds]
    low, high = np.min([low for low, _ in bands], axis=0), np.max([high for _, high in bands], axis=0)
    return Curve(group, series, grid, middle, low, high, tuple(seeds))


def _on_own_range(values: Floats) -> Floats:
    return np.asarray((values - values.min()) / (float(np.ptp(values)) or 1.0))


def _rows(group: RunGroup, series: Sequence[SeriesCurve]) -> list[dict[str, Any]]:
    """The rows of a group: of its seeds together where they went through the same kinds of stages, else one by one."""
    kinds = {tuple(stage["kind"] for stage in member.stages) for member in group.members}
    if len(kinds) == 1:
        return [_row(group.name, group.members, place, series) for place in range(len(group.members[0].stages))]
    return [_row(m.name, (m,), place, series) for m in group.members for place in range(len(m.stages))]


def _row(name: str, members: Sequence[Member], place: int, series: Sequence[SeriesCurve]) -> dict[str, Any]:
    """Stage number `place` of `members`: their mean, and with more than one of them the spread."""
    stages = [member.stages[place] for member in members]
    row: dict[str, Any] = {
        "group": name,
        "task": members[0].task,
        "seeds": [member.seed for member in members],
        "stage": stages[0]["number"],
        "kind": stages[0]["kind"],
        "name": stages[0]["name"],
    }
    spread: dict[str, list[float]] = {}
    for key in SPREAD_KEYS:
        values = [stage[key] for stage in stages if stage[key] is not None]
        row[key] = float(np.mean(values)) if values else None
        spread[key] = [min(values), max(values)] if values else []
    for one in series:
        ends = [member.value_at(one, stage["end"]) for member, stage in zip(members, stages, strict=True)]
        known = np.array([end for end in ends if end is not None])
        row[one.label] = one.named(float(one.middle(known, 0))) if len(known) else None
        spread[one.label] = [] if one.labels or not len(known) else [float(known.min()), float(known.max())]
    if len(members) > 1:
        row["spread"] = {key: ends for key, ends in spread.items() if ends}
    return row


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else value
