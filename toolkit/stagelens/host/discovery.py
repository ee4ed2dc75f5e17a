"""Discovery: finds plugins and where each is defined, without importing any of them."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from stagelens.base import UsageError
from stagelens.hookspecs import PROJECT

PLACES = "STAGELENS_PLUGINS"
ALLOW = "STAGELENS_ALLOW"


@dataclass(frozen=True)
class Found:
    """A plugin that can be loaded. `load` imports it. A plugin under development has no distribution."""

    name: str
    version: str
    distribution: str
    file: str
    load: Callable[[], Any]

    @property
    def built_in(self) -> bool:
        return self.distribution == PROJECT


def allowed(given: Sequence[str] | None) -> frozenset[str] | None:
    """Returns the third-party plugins that may be loaded: as given, else from `$STAGELENS_ALLOW`; None: all of them."""
    if given is None and (text := os.environ.get(ALLOW)) is not None:
        given = text.split(",")
    return None if given is None else frozenset(name.strip() for name in given if name.strip())


def installed() -> list[Found]:
    """Returns the plugins of the entry points. The metadata of a distribution are parsed at each access, so once here.

    Built-in plugins come first: if a third-party plugin has the name of a built-in one, the third-party one fails.
    """
    entries = importlib.metadata.entry_points(group=PROJECT)
    bringing = {id(entry.dist): entry.dist for entry in entries if entry.dist is not None}
    about = {key: dist.metadata for key, dist in bringing.items()}
    found = []
    for entry in entries:
        known = about.get(id(entry.dist), {"Name": "", "Version": ""})
        found.append(Found(entry.name, known["Version"], known["Name"], file_of(entry.module), entry.load))
    return sorted(found, key=lambda one: not one.built_in)


def under_development(places: Sequence[str | Path] = ()) -> list[Found]:
    """Returns the plugins in `$STAGELENS_PLUGINS` and `places`: directories, Python files or names of modules."""
    environment = [part for part in os.environ.get(PLACES, "").split(os.pathsep) if part]
    return [found for place in [*environment, *places] for found in _at(str(place))]


def file_of(module: str) -> str:
    """Returns the file of a module, or an empty text. `find_spec` of a submodule would import its package."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return ""
    if spec is None or not rest:
        return (spec and spec.origin) or ""
    places = [Path(folder).joinpath(*rest) for folder in spec.submodule_search_locations or ()]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return next((str(file) for file in files if file.is_file()), "")


def _at(place: str) -> list[Found]:
    path = Path(place).expanduser()
    if path.is_file() and path.suffix == ".py":
        return [_in_folder(path.parent, path.stem)]
    if (path / "__init__.py").is_file():
        return [_in_folder(path.resolve().parent, path.resolve().name)]
    if path.is_dir():
        folder = path / "src" if (path / "src").is_dir() else path
        names = sorted(
            child.stem
            for child in folder.iterdir()
            if (child.suffix == ".py" and not child.stem.startswith(("test_", "conftest", "_", "setup")))
            or (child / "__init__.py").is_file()
        )
        if not names:
            raise UsageError(f"plugin directory {place!r} has no Python module or package; give another directory")
        return [_in_folder(folder, name) for name in names]
    if os.sep in place or place.endswith(".py"):
        raise UsageError(f"plugin directory {place!r} does not exist; give a directory, a .py file or a module's name")
    return [Found(place, "development", "", file_of(place), lambda: importlib.import_module(place))]


def _in_folder(folder: Path, name: str) -> Found:
    package = folder / name / "__init__.py"
    file = package if package.is_file() else folder / f"{name}.py"
    return Found(name, "development", "", str(file), lambda: _import_from(folder, name))


def _import_from(folder: Path, name: str) -> ModuleType:
    """Imports `name` from `folder`, and adds `folder` to `sys.path` for the plugin's lazy references."""
    folder = folder.resolve()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    if folder not in Path(module.__file__ or "").resolve().parents:
        raise UsageError(f"plugin {name!r} in {folder} has the name of another module, {module.__file__}; rename it")
    return module
