"""Seed groups: members of a comparison that differ only in the seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stagelens.comparing.members import Member


@dataclass(frozen=True)
class RunGroup:
    """A seed group: members that differ only in the seed."""

    name: str
    members: tuple[Member, ...]

    @property
    def seeds(self) -> list[int | None]:
        return [member.seed for member in self.members]


def group_members(members: Sequence[Member]) -> list[RunGroup]:
    """Returns `members` in groups of the same task and config, in order of first appearance.

    A second run of a seed starts another group, so that no seed counts twice. A timeline without a run is a group of
    its own, because its config is unknown; so is a run without a seed.
    """
    groups: dict[tuple[Any, ...], list[Member]] = {}
    times: Counter[str] = Counter()
    for number, member in enumerate(members):
        known = member.run is not None and member.seed is not None
        what = json.dumps([member.task, member.config if known else number], sort_keys=True, default=str)
        times[f"{what} {member.seed}"] += 1
        groups.setdefault((what, times[f"{what} {member.seed}"]), []).append(member)
    names = [_group_name(group, list(groups.values())) for group in groups.values()]
    repeated = Counter(names)
    return [
        RunGroup(name if repeated[name] == 1 else f"{name} [{number}]", tuple(group))
        for number, (name, group) in enumerate(zip(names, groups.values(), strict=True), start=1)
    ]


def _group_name(group: Sequence[Member], groups: Sequence[Sequence[Member]]) -> str:
    """Returns the name of a single run, or `task key=value, 3 seeds` with the keys in which the groups differ."""
    if len(group) == 1:
        return group[0].name
    task, config = group[0].task, group[0].config
    others = [other[0].config for other in groups if other[0].task == task]
    differing = [key for key in config if any(other.get(key) != config[key] for other in others)]
    settings = "".join(f" {key}={config[key]}" for key in differing)
    return f"{task}{settings}, {len(group)} seeds"
