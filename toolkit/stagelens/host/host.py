"""The host: loads plugins, and knows every task, probe and claim by name."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pluggy

from stagelens import hookspecs
from stagelens.base import UsageError, unknown
from stagelens.host import discovery
from stagelens.host.references import ClaimRef, FigureRef, ProbeRef, TaskRef


@dataclass(frozen=True)
class Plugin:
    """One plugin as `stagelens plugins` lists it. `error`: why it is not loaded, in a line; `file` may have `:line`."""

    name: str
    version: str
    status: str  # loaded | failed | left out
    error: str = ""
    file: str = ""
    distribution: str = ""  # that brings it; empty for one under development


class Named(Protocol):
    def load(self) -> Any: ...


R = TypeVar("R", bound=Named)


@dataclass
class Registry(Generic[R]):
    """References by name. A name that two plugins claim belongs to neither."""

    kind: str
    entries: dict[str, R] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    disputed: dict[str, str] = field(default_factory=dict)

    def check(self, names: Sequence[str], plugin: str) -> None:
        """Refuses names that are not free for `plugin`."""
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"{self.kind} {name!r} is registered twice by plugin {plugin!r}; rename one of them")
            if name in self.owners:
                self.disputed[name] = (
                    f"{self.kind} {name!r} is registered by two plugins, {self.owners[name]!r} and {plugin!r}; "
                    f"rename it in one of them or load only one"
                )
                raise UsageError(self.disputed[name])

    def add(self, entries: Mapping[str, R], plugin: str) -> None:
        self.entries.update(entries)
        self.owners.update(dict.fromkeys(entries, plugin))

    def __getitem__(self, name: str) -> R:
        if name in self.disputed:
            raise UsageError(self.disputed[name])
        if name not in self.entries:
            lists = f"`stagelens {self.kind}s` lists them" if self.kind != "claim" else ""
            raise unknown(self.kind, name, dict(self), lists)
        return self.entries[name]

    def __iter__(self) -> Iterator[tuple[str, R]]:
        return iter([(name, entry) for name, entry in self.entries.items() if name not in self.disputed])


@dataclass
class Host:
    """The loaded plugins and what they registered."""

    manager: pluggy.PluginManager
    plugins: list[Plugin] = field(default_factory=list)
    tasks: Registry[TaskRef] = field(default_factory=lambda: Registry("task"))
    probes: Registry[ProbeRef] = field(default_factory=lambda: Registry("probe"))
    claims: Registry[ClaimRef] = field(default_factory=lambda: Registry("claim"))
    figures: Registry[FigureRef] = field(default_factory=lambda: Registry("figure"))  # by `plugin/name`

    def task(self, name: str) -> TaskRef:
        """The task called `name`; a plugin's bare name means its default task."""
        if "/" in name:
            return self.tasks[name]
        if (default := self.default_task(name)) is None:
            ids = dict(self.tasks)
            plugins = dict.fromkeys(id.partition("/")[0] for id in ids)
            left_out = [plugin.name for plugin in self.plugins if plugin.status == "left out"]
            hint = f"; plugins left out: {', '.join(left_out)} (--allow NAME)" if left_out else ""
            raise unknown("task", name, [*plugins, *ids], f"`stagelens tasks` lists them{hint}")
        return self.tasks[default]

    def default_task(self, plugin: str) -> str | None:
        """The id that the bare `plugin` means: the task marked as default, else its first.

        `plugin` is what its tasks' ids begin with, or the name that it is loaded under.
        """
        ids = [name for name in self.tasks.entries if name.partition("/")[0] == plugin]
        ids = ids or [name for name in self.tasks.entries if self.tasks.owners[name] == plugin]
        own = [self.tasks.entries[name] for name in ids]
        chosen = [ref for ref in own if ref.default] or own
        return chosen[0].id if chosen else None

    def plugins_called(self, name: str) -> set[str]:
        """The loaded names of the plugins that `name` means: one of that name, else those with tasks `NAME/...`.

        A plugin under development is loaded under its module's name, and `run` takes the name that its tasks have.
        """
        if any(plugin.name == name for plugin in self.plugins):
            return {name}
        return {self.tasks.owners[id] for id, _ in self.tasks if id.partition("/")[0] == name}

    def providers(self, name: str, registry: Registry[Any]) -> set[str]:
        """Returns the loaded names of the plugins that `name` means and that registered something in `registry`.

        `name` is any name that `run` takes. Raises if there is no such plugin; the error lists those that there are.
        """
        every = set(registry.owners.values())
        called = self.plugins_called(name.partition("/")[0])
        if meant := called & every:
            return meant
        for failed in self.failed:
            if failed.name == name:
                raise UsageError(f"plugin {name!r} did not load: {failed.error} ({failed.file})")
        if called:
            raise UsageError(
                f"plugin {name!r} has no {registry.kind}s; those that have: {', '.join(sorted(every)) or 'none'}"
            )
        raise unknown("plugin", name, every, "`stagelens plugins` lists them")

    @property
    def failed(self) -> list[Plugin]:
        return [plugin for plugin in self.plugins if plugin.status == "failed"]

    def why_not(self, plugin: str) -> str:
        """Why a task of `plugin` is not there, and what to do about it: the second half of a sentence."""
        known = next((known for known in self.plugins if known.name == plugin), None)
        if known is None:
            return f"which needs plugin {plugin!r}, and that is not installed; its class can be given instead (task=)"
        if known.status == "left out":
            return f"which needs plugin {plugin!r} from {known.file}, and that is left out; --allow {plugin} lets it in"
        if known.status == "failed":
            return f"which needs plugin {plugin!r}, and that failed: {known.error} ({known.file})"
        return f"which plugin {plugin!r} {known.version} does not have; use the version that made the run"

    def load(self, name: str, version: str, find: Callable[[], Any], distribution: str = "") -> None:
        """Loads one plugin. Whatever goes wrong is written beside its name, and the rest keeps working."""
        plugin: Any = None
        try:
            self._refuse_twice(name, None)  # before any of its code runs
            plugin = find()
            self._refuse_twice(name, plugin)
            self.manager.register(plugin, name=name)
            _refuse_unknown_hooks(self.manager, plugin)
            self._collect(name, plugin)
        except (Exception, SystemExit) as error:
            if self.manager.get_plugin(name) is plugin is not None:
                self.manager.unregister(plugin)
            file = getattr(error, "where", "") or _culprit(error) or getattr(plugin, "__file__", "") or ""
            self.plugins.append(Plugin(name, version, "failed", _one_line(error), str(file), distribution))
        else:
            file = getattr(plugin, "__file__", "") or ""
            self.plugins.append(Plugin(name, version, "loaded", "", file, distribution))

    def _refuse_twice(self, name: str, plugin: Any) -> None:
        for other, loaded in self.manager.list_name_plugin():
            if other == name or loaded is plugin:
                file = getattr(loaded, "__file__", "")
                raise UsageError(f"it is loaded already, as {other!r} from {file}; load only one of the two")

    def load_class(self, task: type[Any]) -> None:
        """Registers a task class that no plugin brings, such as one written in a notebook."""
        self.tasks.add({task.id: TaskRef.of(task)}, task.__module__)

    def _collect(self, name: str, plugin: Any) -> None:
        """Asks one plugin for its tasks, probes, claims and figures. Registers all of them, or none if one is wrong."""
        others = [other for other in self.manager.get_plugins() if other is not plugin]

        def ask(hook: str) -> list[Any]:
            caller = self.manager.subset_hook_caller(hook, remove_plugins=others)
            return [item for items in caller() for item in items]

        tasks = [t if isinstance(t, TaskRef) else TaskRef.of(t) for t in ask("stagelens_register_tasks")]
        probes = [p if isinstance(p, ProbeRef) else ProbeRef.of(p) for p in ask("stagelens_register_probes")]
        claims = [c if isinstance(c, ClaimRef) else ClaimRef.of(c) for c in ask("stagelens_register_claims")]
        figures = ask("stagelens_register_figures")
        self.tasks.check([task.id for task in tasks], name)
        self.probes.check([probe.name for probe in probes], name)
        self.claims.check([claim.id for claim in claims], name)
        self.figures.check([f"{name}/{figure.name}" for figure in figures], name)
        self.tasks.add({task.id: task for task in tasks}, name)
        self.probes.add({probe.name: probe for probe in probes}, name)
        self.claims.add({claim.id: claim for claim in claims}, name)
        self.figures.add({f"{name}/{figure.name}": figure for figure in figures}, name)


def make_host(
    plugin_dirs: Sequence[str | Path] = (), installed: bool = True, allow: Sequence[str] | None = None
) -> Host:
    """A host with the installed plugins (entry points) and those under `plugin_dirs` and `$STAGELENS_PLUGINS`.

    With `allow`, or `$STAGELENS_ALLOW`, only the plugins that come with stagelens and those named are imported.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    host = Host(manager)
    found = [*(discovery.installed() if installed else ()), *discovery.under_development(plugin_dirs)]
    allowed = discovery.allowed(allow)
    if missing := sorted(set(allow or ()) - {one.name for one in found}):
        foreign = [one.name for one in found if not one.built_in]
        raise unknown("plugin", missing[0], foreign, "only these can be allowed")
    for one in found:
        if allowed is None or one.built_in or one.name in allowed:
            host.load(one.name, one.version, one.load, one.distribution)
        else:
            why = f"it is not allowed, and was not imported; --allow {one.name} lets it in"
            host.plugins.append(Plugin(one.name, one.version, "left out", why, one.file, one.distribution))
    return host


class UnknownHook(UsageError):
    """A hook that a plugin implements but that does not exist. `where` is its file and line."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


def _refuse_unknown_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """What `check_pending` does, for one plugin, with the nearest name and the place of the mistake."""
    for caller in manager.get_hookcallers(plugin) or []:
        if caller.has_spec():
            continue
        known = [name for name in dir(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
        where = _definition(caller.get_hookimpls()[-1].function)
        raise UnknownHook(str(unknown("hook", caller.name, known)), where)


def _definition(function: Any) -> str:
    """file:line of the decorator of a hook's implementation, or of its `def`."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _culprit(error: BaseException) -> str:
    """file:line of the innermost frame that is neither ours nor the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    if isinstance(error, pluggy.PluginValidationError) and (hook := re.search(r"hook '(\w+)'", str(error))):
        return _definition(getattr(error.plugin, hook[1]))
    here = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [f for f in frames if not f.filename.startswith((here, "<frozen")) and "importlib" not in f.filename]
    foreign = [f for f in foreign if "pluggy" not in Path(f.filename).parts]
    return f"{foreign[-1].filename}:{foreign[-1].lineno}" if foreign else ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}"
