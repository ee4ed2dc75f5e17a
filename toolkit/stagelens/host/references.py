"""Lazy references: what a plugin says of its tasks, probes and claims before any of them is imported."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stagelens.base import StagelensError


@contextmanager
def importing() -> Iterator[None]:
    """Around large imports: what they make stays, and looking for garbage in it is a tenth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_target(target: str) -> Any:
    """The object that `module:name` names."""
    module, _, name = target.partition(":")
    with importing():
        loaded = importlib.import_module(module)
    try:
        return getattr(loaded, name)
    except AttributeError:
        raise StagelensError(f"{target!r}: module {module!r} has no {name!r}") from None


@dataclass(frozen=True)
class TaskRef:
    """A task or flow: its id (`plugin/name`), one-line title, presets, and where its class is."""

    id: str
    title: str
    presets: tuple[str, ...]
    target: str | type[Any]
    default: bool = False

    @classmethod
    def of(cls, task: type[Any]) -> TaskRef:
        return cls(task.id, task.title, tuple(task.presets), task)

    def load(self) -> type[Any]:
        return load_target(self.target) if isinstance(self.target, str) else self.target


@dataclass(frozen=True)
class ProbeRef:
    """A probe: its name, one-line title, the readings it gives, and where its class is.

    `passes` counts forward passes beyond the shared one; `default` says whether it runs unless asked not to.
    """

    name: str
    title: str
    readings: tuple[str, ...]
    target: str | type[Any]
    passes: str = "0"
    default: bool = True

    @classmethod
    def of(cls, probe: type[Any]) -> ProbeRef:
        return cls(probe.name, probe.title, tuple(probe.gives), probe, probe.passes, probe.default)

    def load(self) -> type[Any]:
        return load_target(self.target) if isinstance(self.target, str) else self.target


@dataclass(frozen=True)
class ClaimRef:
    """A claim: its fixed id, what it states in one line, and where its class is."""

    id: str
    title: str
    target: str | type[Any]

    @classmethod
    def of(cls, claim: type[Any]) -> ClaimRef:
        return cls(claim.id, claim.title, claim)

    def load(self) -> type[Any]:
        return load_target(self.target) if isinstance(self.target, str) else self.target
