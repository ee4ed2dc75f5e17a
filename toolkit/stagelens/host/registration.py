"""What a plugin registers, said once: a table of tasks, probes, claims and figures in its `__init__.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stagelens.base import UsageError
from stagelens.host.references import ClaimRef, FigureRef, ProbeRef, TaskRef

PRESETS = ("quick", "paper")  # of a task, unless others are given


class Registration:
    """What a plugin registers. The host finds it as `plugin` in the plugin's module.

        plugin = Registration(__name__)
        plugin.task("my-paper/copy", "tasks:Copy", "the second half of a sequence repeats the first")
        plugin.claim("X1", "claims.copying:AttendsToSource", "the loss leaves chance once a head attends")
        plugin.figure("fig1", "figures.copying:fig1", "the loss falls when a head attends to the source")

    The second argument is where the class or function is: `module:name`, with the module's path inside the package.
    It is imported on first use, so that listing tasks imports no torch.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.tasks: list[TaskRef] = []
        self.probes: list[ProbeRef] = []
        self.claims: list[ClaimRef] = []
        self.figures: list[FigureRef] = []

    def task(self, id: str, target: str, title: str, presets: Sequence[str] = PRESETS) -> None:
        """Registers a task or a flow. The first one is the default task: the plugin's name alone means it."""
        self.tasks.append(TaskRef(id, title, tuple(presets), self._inside(target), default=not self.tasks))

    def probe(
        self, name: str, target: str, title: str, readings: Sequence[str], *, passes: str = "0", default: bool = True
    ) -> None:
        """Registers a probe with the names of its readings; see `ProbeRef` for `passes` and `default`."""
        self.probes.append(ProbeRef(name, title, tuple(readings), self._inside(target), passes, default))

    def claim(self, id: str, target: str, title: str) -> None:
        """Registers a claim: its permanent id, its class, and its statement in one line."""
        self.claims.append(ClaimRef(id, title, self._inside(target)))

    def figure(
        self,
        name: str,
        target: str,
        title: str,
        paper: str = "",
        claims: Sequence[str] = (),
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Registers a figure. `target` is a function of a `Lab`, or the id of a task that has the figure.

        A task is run with its preset called `name` if it has one, else with the budget's, and with `settings`. Register
        the task before. `paper` says what the paper's own figure shows, and `claims` which claims judge it.
        """
        said: dict[str, Any] = {"settings": settings or {}, "paper": paper, "claims": tuple(claims)}
        if "/" in target:
            preset = name if name in self._presets(name, target) else ""
            self.figures.append(FigureRef(name, title, task=target, preset=preset, **said))
        else:
            self.figures.append(FigureRef(name, title, self._inside(target), **said))

    def _presets(self, figure: str, task: str) -> Sequence[str]:
        for known in self.tasks:
            if known.id == task:
                return known.presets
        raise UsageError(f"figure {figure!r}: task {task!r} is not registered; register it before the figure")

    def _inside(self, target: str) -> str:
        """Returns the full path of `target`. Without a module, as in `:Copy`, it is in the plugin's own file."""
        module, colon, name = target.partition(":")
        if not colon or not name:
            raise UsageError(f"target {target!r}: expected module:name inside {self.package}, such as tasks:Copy")
        return f"{self.package}.{target}" if module else f"{self.package}:{name}"
