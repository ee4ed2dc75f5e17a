"""Lazy references: a plugin describes its tasks, probes, claims and figures, which are imported on first use."""

from __future__ import annotations

import gc
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stagelens.base import StagelensError, UsageError

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,79}", re.ASCII)  # of a figure; it becomes the name of a file


@contextmanager
def importing() -> Iterator[None]:
    """Pauses garbage collection during large imports, which takes a tenth of their time and frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_target(target: str) -> Any:
    """Imports and returns the object `module:name`."""
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
    """A probe: its name, one-line title, readings, and where its class is.

    `passes` is the number of forward passes besides the shared one. A `default` probe runs unless others are chosen.
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
    """A claim: its permanent id, its statement in one line, and where its class is."""

    id: str
    title: str
    target: str | type[Any]

    @classmethod
    def of(cls, claim: type[Any]) -> ClaimRef:
        return cls(claim.id, claim.title, claim)

    def load(self) -> type[Any]:
        return load_target(self.target) if isinstance(self.target, str) else self.target


@dataclass(frozen=True)
class FigureRef:
    """A figure of a paper: its name in the plugin (`fig3`), what it shows in one line, and how it is drawn.

        FigureRef("fig3", "stages follow importance", "stagelens_mine.figures.stages:fig3")
        FigureRef("fig4", "more heads, shorter plateaus", task="mine/toy", preset="fig4", claims=("X2",))

    Give either `target` or `task`. `target` is a function, or its path `module:name`. It takes a `Lab` and returns a
    matplotlib `Figure`, or None if there is nothing to show. If `task` is given, it is run with `preset` (default: the
    budget's) and `settings`, and the figure is the one called `name` that the task's `figures(run)` returns.

    `paper` describes in complete sentences what the paper's own figure shows. `claims` lists the ids of the claims that
    judge it. The gallery in the docs prints both next to the figure.
    """

    name: str
    title: str
    target: str | Callable[..., Any] = ""
    task: str = ""
    preset: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(
                f"figure {self.name!r}: expected a name of letters, digits, '-', '_' and '.', such as fig3"
            )
        if bool(self.target) == bool(self.task):
            raise UsageError(f"figure {self.name!r}: give either target='module:function' or task='plugin/task'")

    def load(self) -> Callable[..., Any]:
        """Returns the function of a `Lab`; a figure of a task has none."""
        return load_target(self.target) if isinstance(self.target, str) else self.target
