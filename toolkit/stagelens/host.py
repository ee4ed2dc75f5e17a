"""The host: finds plugins, loads them, and knows every task, probe and claim by name."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import pluggy

from stagelens import hookspecs
from stagelens.errors import UsageError, unknown
from stagelens.lazy import ClaimRef, ProbeRef, TaskRef

ENVIRONMENT = "STAGELENS_PLUGINS"


@dataclass(frozen=True)
class Plugin:
    """One plugin as `stagelens plugins` lists it. `error` is one line; `file` may end in `:line`."""

    name: str
    version: str
    status: str  # loaded | failed
    error: str = ""
    file: str = ""


class Named(Protocol):
    def load(self) -> type[Any]: ...


R = TypeVar("R", bound=Named)


@dataclass
class Registry(Generic[R]):
    """References by name. A name that two plugins claim belongs to neither."""

    kind: str
    entries: dict[str, R] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    disputed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, entry: R, plugin: str) -> None:
        if name in self.owners:
            self.disputed[name] = (
                f"{self.kind} {name!r} is registered by two plugins, {self.owners[name]!r} and {plugin!r}; "
                f"rename it in one of them or load only one"
            )
            raise UsageError(self.disputed[name])
        self.entries[name] = entry
        self.owners[name] = plugin

    def __getitem__(self, name: str) -> R:
        if name in self.disputed:
            raise UsageError(self.disputed[name])
        if name not in self.entries:
            raise unknown(self.kind, name, self.entries, f"`stagelens {self.kind}s` lists them")
        return self.entries[name]

    def __iter__(self) -> Iterator[tuple[str, R]]:
        return iter(self.entries.items())


@dataclass
class Host:
    """The loaded plugins and what they registered."""

    manager: pluggy.PluginManager
    plugins: list[Plugin] = field(default_factory=list)
    tasks: Registry[TaskRef] = field(default_factory=lambda: Registry("task"))
    probes: Registry[ProbeRef] = field(default_factory=lambda: Registry("probe"))
    claims: Registry[ClaimRef] = field(default_factory=lambda: Registry("claim"))

    def task(self, name: str) -> TaskRef:
        """The task called `name`; a plugin's bare name means its default task."""
        if "/" not in name:
            name = self.default_task(name) or name
        return self.tasks[name]

    def default_task(self, plugin: str) -> str | None:
        """The id that the bare `plugin` means: the task marked as default, else its first."""
        own = [ref for name, ref in self.tasks if name.partition("/")[0] == plugin]
        chosen = [ref for ref in own if ref.default] or own
        return chosen[0].id if chosen else None

    @property
    def failed(self) -> list[Plugin]:
        return [plugin for plugin in self.plugins if plugin.status == "failed"]

    def load(self, name: str, version: str, find: Callable[[], Any]) -> None:
        """Loads one plugin. Whatever goes wrong is written beside its name, and the rest keeps working."""
        plugin: Any = None
        try:
            plugin = find()
            self.manager.register(plugin, name=name)
            _refuse_unknown_hooks(self.manager, plugin)
            self._collect(name, plugin)
        except Exception as error:
            if plugin is not None and self.manager.is_registered(plugin):
                self.manager.unregister(plugin)
            file = getattr(error, "where", "") or _culprit(error) or getattr(plugin, "__file__", "") or ""
            self.plugins.append(Plugin(name, version, "failed", _one_line(error), str(file)))
        else:
            self.plugins.append(Plugin(name, version, "loaded", "", getattr(plugin, "__file__", "") or ""))

    def load_class(self, task: type[Any]) -> None:
        """Registers a task class that no plugin brings, such as one written in a notebook."""
        self.tasks.add(task.id, TaskRef.of(task), task.__module__)

    def _collect(self, name: str, plugin: Any) -> None:
        """Asks one plugin for its tasks, probes and claims."""
        others = [other for other in self.manager.get_plugins() if other is not plugin]

        def ask(hook: str) -> list[Any]:
            caller = self.manager.subset_hook_caller(hook, remove_plugins=others)
            return [item for items in caller() for item in items]

        for task in ask("stagelens_register_tasks"):
            task_ref = task if isinstance(task, TaskRef) else TaskRef.of(task)
            self.tasks.add(task_ref.id, task_ref, name)
        for probe in ask("stagelens_register_probes"):
            probe_ref = probe if isinstance(probe, ProbeRef) else ProbeRef.of(probe)
            self.probes.add(probe_ref.name, probe_ref, name)
        for claim in ask("stagelens_register_claims"):
            claim_ref = claim if isinstance(claim, ClaimRef) else ClaimRef.of(claim)
            self.claims.add(claim_ref.id, claim_ref, name)


def make_host(plugin_dirs: Sequence[str | Path] = (), installed: bool = True) -> Host:
    """A host with the installed plugins (entry points) and those under `plugin_dirs` and `$STAGELENS_PLUGINS`."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    host = Host(manager)
    if installed:
        for entry in sorted(importlib.metadata.entry_points(group=hookspecs.PROJECT), key=lambda e: not _ours(e)):
            host.load(entry.name, entry.dist.version if entry.dist else "", entry.load)
    environment = [part for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]
    for place in [*environment, *plugin_dirs]:
        for name, find in _under_development(str(place)):
            host.load(name, "development", find)
    return host


def _ours(entry: importlib.metadata.EntryPoint) -> bool:
    """Built-in plugins load first, so that a foreign one that takes a built-in's name is the one to be blamed."""
    return entry.dist is not None and entry.dist.name == hookspecs.PROJECT


def _under_development(place: str) -> Iterable[tuple[str, Callable[[], ModuleType]]]:
    """The plugins at `place`: a package folder, a folder of packages and modules, a file, or a module's name."""
    path = Path(place).expanduser()
    if path.is_file() and path.suffix == ".py":
        return [(path.stem, lambda: _import_from(path.parent, path.stem))]
    if (path / "__init__.py").is_file():
        return [(path.resolve().name, lambda: _import_from(path.resolve().parent, path.resolve().name))]
    if path.is_dir():
        folder = path / "src" if (path / "src").is_dir() else path
        names = sorted(
            child.stem
            for child in folder.iterdir()
            if (child.suffix == ".py" and not child.stem.startswith(("test_", "conftest", "_", "setup")))
            or (child / "__init__.py").is_file()
        )
        if not names:
            raise UsageError(f"plugin folder {place!r} holds no Python module or package")
        return [(name, lambda name=name: _import_from(folder, name)) for name in names]  # type: ignore[misc]
    if os.sep in place or place.endswith(".py"):
        raise UsageError(f"plugin folder {place!r} does not exist; give a folder, a .py file or a module's name")
    return [(place, lambda: importlib.import_module(place))]


def _import_from(folder: Path, name: str) -> ModuleType:
    """Imports `name` from `folder`, which joins `sys.path` so that the plugin's lazy references resolve."""
    folder = folder.resolve()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    if folder not in Path(module.__file__ or "").resolve().parents:
        raise UsageError(f"plugin {name!r} in {folder} has the name of another module, {module.__file__}; rename it")
    return module


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
        code = caller.get_hookimpls()[-1].function.__code__
        known = [name for name in dir(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
        where = f"{code.co_filename}:{code.co_firstlineno}"
        raise UnknownHook(str(unknown("hook", caller.name, known)), where)


def _culprit(error: BaseException) -> str:
    """file:line of the innermost frame that is neither ours nor the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    here = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [f for f in frames if not f.filename.startswith((here, "<frozen")) and "importlib" not in f.filename]
    foreign = [f for f in foreign if "pluggy" not in Path(f.filename).parts]
    return f"{foreign[-1].filename}:{foreign[-1].lineno}" if foreign else ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}"
