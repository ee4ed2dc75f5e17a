"""Comparison: timelines of runs, seeds, tasks and papers on a common axis, as curves and a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stagelens.comparing.alignment import (
    ALIGNMENTS,
    Floats,
    aligned_median,
    check_alignment,
    common_grid,
    envelope,
    resample,
)
from stagelens.comparing.grouping import RunGroup, group_members
from stagelens.comparing.members import EVERY, Member, Members
from stagelens.timelines import SeriesCurve

__all__ = ["EVERY", "SPREAD", "AlignedRuns", "Curve", "align_runs"]

SPREAD = "min..max over seeds"
SPREAD_KEYS = ("start", "end", "level", "drop")


@dataclass(frozen=True)
class Curve:
    """One series of one seed group on the common axis: the median of its seeds, and their minimum and maximum.

    `x`, `middle`, `low` and `high` are [position]; `seeds` has the (x, values) of each member. If all members have the
    same number of transitions, the median is that of the aligned members (`aligned_median`): it falls in as many steps
    as each of them. The middle of a series of labels is the most common one. The positions are those that all members
    reach. The band from `low` to `high` also contains the line of every member between these positions.
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

    `relative` rescales every curve to its own range, from its minimum (0) to its maximum (1), so that losses of
    different tasks fit into one figure. The table has the original values. Labels are never rescaled.
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
        """A row for each seed group and stage: its times and level, and each series at the end of the stage."""
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
        """True if the stages of every run were found on a log axis."""
        return all(member.is_log for group in self.groups for member in group.members)

    @property
    def columns(self) -> list[str]:
        """The columns of the table, without `spread`."""
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
        """Returns the table as csv; the spread is in further columns `<key> min` and `<key> max`."""
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
    """Puts runs on a common axis; `sl.compare`, which can also draw them, explains the arguments."""
    check_alignment(align)
    members = Members.open(runs, folder)
    chosen = members.choose([probes] if isinstance(probes, str) else list(probes))
    for member in members:
        member.place(member.steps, align)  # an impossible alignment is an error before anything is drawn
    return AlignedRuns(tuple(group_members(members)), chosen, align, relative)


def _curve(group: RunGroup, series: SeriesCurve, align: str, relative: bool) -> Curve:
    """Returns the series of a group on the axis of `align`: its members, their median and spread on a common grid."""
    seeds = []
    for member in group.members:
        steps, values = member.reduced(series)
        seeds.append((member.place(steps, align), _on_own_range(values) if relative and not series.labels else values))
    if len(seeds) == 1:
        x, values = seeds[0]
        return Curve(group, series, x, values, values, values, tuple(seeds))
    grid = common_grid([x for x, _ in seeds])
    if series.labels or not len(grid):
        together = np.stack([resample(grid, x, values, bool(series.labels)) for x, values in seeds])  # [seed, position]
        middle = series.middle(together, 0) if series.labels else np.empty(0)
        return Curve(group, series, grid, middle, together.min(0), together.max(0), tuple(seeds))
    bands = [envelope(grid, x, values) for x, values in seeds]
    low, high = np.min([low for low, _ in bands], axis=0), np.max([high for _, high in bands], axis=0)
    transitions = [member.place(np.array(member.transitions), align) for member in group.members]
    middle = np.clip(aligned_median(grid, seeds, transitions), low, high)
    return Curve(group, series, grid, middle, low, high, tuple(seeds))


def _on_own_range(values: Floats) -> Floats:
    return np.asarray((values - values.min()) / (float(np.ptp(values)) or 1.0))


def _rows(group: RunGroup, series: Sequence[SeriesCurve]) -> list[dict[str, Any]]:
    """Returns the rows of a group: of all seeds together if they have the same kinds of stages, else of each seed."""
    kinds = {tuple(stage["kind"] for stage in member.stages) for member in group.members}
    if len(kinds) == 1:
        return [_row(group.name, group.members, place, series) for place in range(len(group.members[0].stages))]
    return [_row(m.name, (m,), place, series) for m in group.members for place in range(len(m.stages))]


def _row(name: str, members: Sequence[Member], place: int, series: Sequence[SeriesCurve]) -> dict[str, Any]:
    """Returns stage number `place` of `members`: their mean and, if there are several, the spread."""
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
