"""What formed when: one line for each of the four probes, from their headline readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.timelines.events import half_rise
from stagelens.timelines.headlines import (
    ALIGNMENT,
    HEADLINES,
    INDUCTION,
    NO_GROUP,
    SPARSITY,
    SPECIALIZATION,
    HeadLines,
    head_lines,
    lines_named,
)
from stagelens.timelines.labels import HOLD
from stagelens.timelines.timeline import Timeline

Floats = NDArray[np.float64]
LEAST = 0.2  # a head has formed only if its reading rises by at least this much
OLD = 0.5  # a head whose reading starts and ends above this had formed before training
ERRORS = 3.0  # standard errors by which a reading must end above its chance level
MOST_HEADS = 6  # whose roles are listed one by one
CLEAR = 0.5  # attention mass from which a head is said to lock onto a group
LEADER = "head_specialization/leader"
MASS = "head_specialization/mass"


@dataclass(frozen=True)
class Formation:
    """What one probe saw form: `step` (None if nothing lasting formed), and a sentence about it, `what`."""

    probe: str
    step: float | None
    what: str  # with its step: `step 60: head 0 locks onto I(1) (sparsity .05 → .97)`

    def to_dict(self) -> dict[str, Any]:
        return {"probe": self.probe, "step": self.step, "what": self.what}


@dataclass(frozen=True)
class Change:
    """How one line changed: medians over its first and last measurements, its peak, and the step of its rise."""

    first: float
    last: float
    peak: float
    at_peak: float
    step: float | None  # half of a rise that lasts
    chance: float = np.nan

    @property
    def is_transient(self) -> bool:
        """True if the line rose and fell again."""
        rise = self.peak - self.first
        return self.step is None and rise >= LEAST and self.peak - self.last >= rise / 2

    @property
    def is_old(self) -> bool:
        """True if the line is high from the first measurement to the last."""
        return min(self.first, self.last) >= OLD and not min(self.first, self.last) - self.chance < LEAST

    def __str__(self) -> str:
        return f"{short(self.first)} → {short(self.last)}"


def what_formed(timeline: Timeline, unit: str = "step") -> list[Formation]:
    """Returns what formed in the heads of a model, one `Formation` for each of the four probes that were measured.

    A head has formed if its headline reading rises by a fifth of the whole scale and stays there. It must also end
    above its chance level by three standard errors. The step is the one at which half of the rise is reached.
    Formations are sorted by step. Probes that saw nothing form come last. `unit` is `step`, or `time` for a flow.
    """
    found: list[Formation] = []
    for headline in HEADLINES:
        lines = head_lines(timeline, headline)
        if lines is not None and len(lines.labels):
            found.append(_SENTENCES[headline.probe](timeline, lines, unit))
    return sorted(found, key=lambda one: np.inf if one.step is None else one.step)


def change_of(steps: NDArray[Any], values: Floats, chance: Floats | None = None, error: Floats | None = None) -> Change:
    """Returns how a line [step] changed. Its rise counts only if it ends above `chance` by three standard errors."""
    there = np.isfinite(values)
    steps, values = steps[there], values[there]
    if not len(values):
        return Change(np.nan, np.nan, np.nan, np.nan, None)
    first, last = float(np.median(values[:HOLD])), float(np.median(values[-HOLD:]))
    smooth = np.array([np.median(values[max(0, i - 1) : i + 2]) for i in range(len(values))])
    peak = int(smooth.argmax())
    step, level = half_rise(steps, values), _last(chance)
    if last - first < LEAST or last <= level + ERRORS * np.nan_to_num(_last(error)):  # nan excludes nothing
        step = None
    return Change(first, last, float(smooth[peak]), float(steps[peak]), step, level)


def short(value: float) -> str:
    """Returns a number on a scale from 0 to 1 with two digits: `.97`, `1.00`, `-.05`."""
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"


@dataclass(frozen=True)
class Wording:
    """How the sentence about a probe is worded; `forms` returns the words for the first head that formed."""

    forms: Callable[[Timeline, str, float], str]
    old: str
    nothing: str

    def __call__(self, timeline: Timeline, lines: HeadLines, unit: str) -> Formation:
        """Returns the sentence from the changes of all heads, the earliest first."""
        probe, _, reading = lines.series.partition("/")
        name, changes = READINGS.get(reading, reading), _changes(timeline.steps, lines)
        rose = sorted((c.step, label) for label, c in changes.items() if c.step is not None)
        chance = _chance_at_end(lines)
        if rose:
            step, label = rose[0]
            others = "" if len(rose) == 1 else f"; {len(rose)} of {len(changes)} heads by {_at(rose[-1][0], unit)}"
            what = f"{self.forms(timeline, label, step)} ({name} {changes[label]}{chance}){others}"
            return Formation(probe, step, f"{_at(step, unit)}: {what}")
        label, most = max(changes.items(), key=lambda pair: np.nan_to_num(pair[1].last, nan=-np.inf))
        if most.is_old:
            return Formation(probe, None, f"{self.old.format(label)} from the start ({name} {most}{chance})")
        what = f"{self.nothing} ({name} at most {short(most.last)} at the end{chance})"
        return Formation(probe, None, what + _lost(changes, unit))


def _lost(changes: dict[str, Change], unit: str) -> str:
    """Returns the end of a sentence about a head that formed and was lost again; empty if there is none."""
    gone = [(change.peak, label, change.at_peak) for label, change in changes.items() if change.is_transient]
    if not gone:
        return ""
    peak, label, at = max(gone)
    return f"; {label} reaches {short(peak)} at {_at(at, unit)} and loses it"


def _roles(timeline: Timeline, lines: HeadLines, unit: str) -> Formation:
    """Returns the sentence of head specialization: the role of each head at the end, if its mass on that group rose."""
    column, mass = timeline.column(MASS), timeline.series(MASS)
    groups = [_group(group, column.dims[-1]) for group in column.coordinate(column.dims[-1])]
    flat = mass.reshape(len(mass), -1, len(groups))  # [step, head, group]
    roles: dict[str, tuple[str, Change]] = {}
    for index, name in enumerate(lines_named(lines.column)):
        leader = _final_leader(flat[:, index], groups)
        if leader is not None:
            change = change_of(timeline.steps, flat[:, index, leader])
            roles |= {name: (groups[leader], change)} if change.step is not None else {}
    probe = SPECIALIZATION.probe
    if not roles:
        most = max(_last(values) for values in lines.values.T)
        return Formation(probe, None, f"no head specializes (mass at most {short(most)} on one group at the end)")
    step = max(change.step for _, change in roles.values() if change.step is not None)
    return Formation(probe, step, f"{_at(step, unit)}: {_roles_text(roles, len(lines.labels))}")


def _roles_text(roles: dict[str, tuple[str, Change]], heads: int) -> str:
    if len(roles) == 1:
        ((name, (group, change)),) = roles.items()
        return f"{name} specializes on {group} (mass {change})"
    taken = Counter(group for group, _ in roles.values())
    if len(taken) == 1:
        return f"{len(roles)} of {heads} heads have specialized on {next(iter(taken))}"
    if len(roles) <= MOST_HEADS:
        each = ", ".join(f"{name} on {group}" for name, (group, _) in roles.items())
    else:
        each = ", ".join(f"{number} on {group}" for group, number in taken.most_common(MOST_HEADS))
    return f"{len(roles)} of {heads} heads have specialized: {each}"


def _locks(timeline: Timeline, label: str, step: float) -> str:
    group = _leader_at(timeline, label, step)
    return f"{label} locks onto {group}" if group else f"{label} becomes sparse"


def _leader_at(timeline: Timeline, label: str, step: float) -> str | None:
    """Returns the group that a head locks onto from `step` on; None if most of its mass is never on a named one."""
    if LEADER not in timeline or MASS not in timeline:
        return None
    column, mass = timeline.column(LEADER), timeline.column(MASS)
    names, groups = lines_named(column), [str(group) for group in mass.coordinate(mass.dims[-1])]
    if label not in names or column.shape != mass.shape[:-1]:
        return None
    head, steps = names.index(label), timeline.steps
    codes = timeline.series(LEADER).reshape(len(steps), -1)[:, head]
    later = codes[(steps >= step) & np.isfinite(codes)]
    group = column.label(later[0]) if len(later) else NO_GROUP[0]
    if group in NO_GROUP or group not in groups:
        return None
    masses = timeline.series(MASS).reshape(len(steps), -1, len(groups))[steps >= step, head, groups.index(group)]
    return _group(group, mass.dims[-1]) if np.nanmax(masses) >= CLEAR else None


def _final_leader(mass: Floats, groups: Sequence[str]) -> int | None:
    """Returns the named group with the largest mass [step, group] over the last measurements; None if there is none."""
    there = mass[np.isfinite(mass).any(axis=1)]
    if not len(there):
        return None
    final = np.median(there[-HOLD:], axis=0)
    named = np.array([group not in NO_GROUP for group in groups])
    return int(np.where(named, final, -np.inf).argmax()) if named.any() else None


def _changes(steps: NDArray[Any], lines: HeadLines) -> dict[str, Change]:
    found = {}
    for index, label in enumerate(lines.labels):
        chance = lines.chance[:, index] if lines.chance.shape[1] else None
        error = None if lines.error is None else lines.error[:, index]
        found[label] = change_of(steps, lines.values[:, index], chance, error)
    return found


def _chance_at_end(lines: HeadLines) -> str:
    known = lines.chance[np.isfinite(lines.chance).all(axis=1)] if lines.chance.size else lines.chance
    return f", chance {short(float(known[-1].mean()))}" if known.size else ""


def _group(group: Any, dim: str) -> str:
    return f"lag {group}" if dim == "lag" else str(group)


def _last(values: Floats | None) -> float:
    """Returns the median of the last measurements; nan without any."""
    there = np.empty(0) if values is None else values[np.isfinite(values)]
    return float(np.median(there[-HOLD:])) if len(there) else np.nan


def _at(step: float, unit: str) -> str:
    """Returns `step 60`, or `time 0.62`: steps are integers, times are not."""
    return f"{unit} {step:.0f}" if unit == "step" or step >= 100 else f"{unit} {step:.3g}"


READINGS = {
    "prefix_matching": "prefix matching",
    "score_top": "first component of the scores",
    "key_query": "alignment",
}
_SENTENCES: dict[str, Callable[[Timeline, HeadLines, str], Formation]] = {
    SPARSITY.probe: Wording(_locks, "{} is sparse", "no head becomes sparse"),
    SPECIALIZATION.probe: _roles,
    INDUCTION.probe: Wording(
        lambda _timeline, label, _step: f"{label} becomes an induction head",
        "{} is an induction head",
        "no head becomes an induction head",
    ),
    ALIGNMENT.probe: Wording(
        lambda _timeline, label, _step: f"keys and queries of {label} align",
        "keys and queries of {} are aligned",
        "keys and queries of no head align",
    ),
}
