"""The host: loads plugins, and finds tasks, probes, claims and figures by name."""

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
from stagelens.host.registration import Registration


@dataclass(frozen=True)
class Plugin:
    """A row of `stagelens plugins`. `error` is one line: why the plugin is not loaded. `file` may end with `:line`."""

    name: str
    version: str
    status: str  # loaded | failed | left out
    error: str = ""
    file: str = ""
    distribution: str = ""  # that contains it; empty for a plugin under development


class Named(Protocol):
    """Something that is imported on first use, by `load`."""

    def load(self) -> Any: ...


R = TypeVar("R", bound=Named)


@dataclass
class Registry(Generic[R]):
    """References by name. A name that two plugins register cannot be used."""

    kind: str
    entries: dict[str, R] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    disputed: dict[str, str] = field(default_factory=dict)

    def check(self, names: Sequence[str], plugin: str) -> None:
        """Raises an error if `plugin` cannot register one of `names`."""
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
        """Returns the task called `name`. The name of a plugin means its default task."""
        if "/" in name:
            return self.tasks[name]
        if (default := self.default_task(name)) is None:
            ids = dict(self.tasks)
            plugins = dict.fromkeys(id.partition("/")[0] for id in ids)
            left_out = [plugin.name for plugin in self.plugins if plugin.status == "left out"]
            hint = f"; plugins left out: {', '.join(left_out)} (--allow NAME)" if left_out else ""
            raise unknown("task", name, [*plugins, *ids], f"`stagelens tasks` lists them{hint}")
        return self.tasks[default]

    def probe_names(self, given: Sequence[str] | None = None, own: Sequence[str] | None = None) -> list[str]:
        """Returns the names of the probes of a run, each once: those `given`, or the usual ones.

        The usual ones are the default probes and the task's `own`. If names are given, only these run. Names with a
        plus (`+head_ablation`) are added to the usual ones. The name `all` means every probe.
        """
        usual = [*(name for name, ref in self.probes if ref.default), *(own or ())]
        names = list(given or usual)
        if "all" in names:
            names = [name for name, _ in self.probes]
        elif added := [name.removeprefix("+") for name in names if name.startswith("+")]:
            if plain := [name for name in names if not name.startswith("+")]:
                raise UsageError(
                    f"probes {','.join(names)!r}: +NAME adds a probe and NAME selects it; "
                    f"give +{plain[0]} to add, or no plus to select"
                )
            names = [*usual, *added]
        return list(dict.fromkeys(self.probes[name].name for name in names))

    def default_task(self, plugin: str) -> str | None:
        """Returns the id of the default task of `plugin`: the one marked as default, else the first.

        `plugin` is the first part of the ids of its tasks, or the name that it is loaded under.
        """
        ids = [name for name in self.tasks.entries if name.partition("/")[0] == plugin]
        ids = ids or [name for name in self.tasks.entries if self.tasks.owners[name] == plugin]
        own = [self.tasks.entries[name] for name in ids]
        chosen = [ref for ref in own if ref.default] or own
        return chosen[0].id if chosen else None

    def plugins_called(self, name: str) -> set[str]:
        """Returns the loaded names of the plugins that `name` means: one of that name, else those with tasks `NAME/*`.

        A plugin under development is loaded under its module's name; `run` takes the first part of its task ids.
        """
        if any(plugin.name == name for plugin in self.plugins):
            return {name}
        return {self.tasks.owners[id] for id, _ in self.tasks if id.partition("/")[0] == name}

    def providers(self, name: str, registry: Registry[Any]) -> set[str]:
        """Returns the loaded names of the plugins that `name` means and that registered something in `registry`.

        `name` is any name that `run` takes. If there is no such plugin, the error lists the existing ones.
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
        """Returns why a task of `plugin` cannot be loaded and what to do, as the second half of a sentence."""
        known = next((known for known in self.plugins if known.name == plugin), None)
        if known is None:
            return f"which needs plugin {plugin!r}, and that is not installed; its class can be given instead (task=)"
        if known.status == "left out":
            return f"which needs plugin {plugin!r} from {known.file}, and that is not allowed; add --allow {plugin}"
        if known.status == "failed":
            return f"which needs plugin {plugin!r}, and that failed: {known.error} ({known.file})"
        return f"which plugin {plugin!r} {known.version} does not have; use the version that made the run"

    def load(self, name: str, version: str, find: Callable[[], Any], distribution: str = "") -> None:
        """Loads one plugin. If that fails, the error is stored with its name, and the other plugins still work."""
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
                raise UsageError(f"it is already loaded, as {other!r} from {file}; load only one of the two")

    def load_class(self, task: type[Any]) -> None:
        """Registers a task class that no plugin provides, such as one from a notebook."""
        self.tasks.add({task.id: TaskRef.of(task)}, task.__module__)

    def _collect(self, name: str, plugin: Any) -> None:
        """Registers the tasks, probes, claims and figures of one plugin. If one of them is wrong, registers none."""
        others = [other for other in self.manager.get_plugins() if other is not plugin]
        table = getattr(plugin, "plugin", None)

        def ask(kind: str) -> list[Any]:
            caller = self.manager.subset_hook_caller(f"stagelens_register_{kind}", remove_plugins=others)
            own = getattr(table, kind) if isinstance(table, Registration) else []
            return [*own, *(item for items in caller() for item in items)]

        tasks = [t if isinstance(t, TaskRef) else TaskRef.of(t) for t in ask("tasks")]
        probes = [p if isinstance(p, ProbeRef) else ProbeRef.of(p) for p in ask("probes")]
        claims = [c if isinstance(c, ClaimRef) else ClaimRef.of(c) for c in ask("claims")]
        figures = ask("figures")
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
    """Returns a host with the installed plugins (entry points) and those in `plugin_dirs` and `$STAGELENS_PLUGINS`.

    With `allow` or `$STAGELENS_ALLOW`, it imports only the named plugins and those that are part of stagelens.
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
            why = f"it is not allowed, and was not imported; add --allow {one.name} to import it"
            host.plugins.append(Plugin(one.name, one.version, "left out", why, one.file, one.distribution))
    return host


class UnknownHook(UsageError):
    """A plugin implements a plugin hook that does not exist. `where` is its file and line."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


def _refuse_unknown_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Does what pluggy's `check_pending` does, for one plugin. The error has the nearest name, file and line."""
    for caller in manager.get_hookcallers(plugin) or []:
        if caller.has_spec():
            continue
        known = [name for name in dir(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
        where = _definition(caller.get_hookimpls()[-1].function)
        raise UnknownHook(str(unknown("hook", caller.name, known)), where)


def _definition(function: Any) -> str:
    """Returns `file:line` of the decorator of a function, or of its `def`."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _culprit(error: BaseException) -> str:
    """Returns `file:line` of the innermost frame in a file outside of this room, pluggy and the import machinery."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    if isinstance(error, pluggy.PluginValidationError) and (hook := re.search(r"hook '(\w+)'", str(error))):
        return _definition(getattr(error.plugin, hook[1]))
    here = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [f for f in frames if not f.filename.startswith((here, "<")) and "importlib" not in f.filename]
    foreign = [f for f in foreign if "pluggy" not in Path(f.filename).parts]
    return f"{foreign[-1].filename}:{foreign[-1].lineno}" if foreign else ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}"
