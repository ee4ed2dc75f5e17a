"""Names of stagelens 0.1 that were moved or renamed. The old ones still work, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Old path -> new path of the modules in the 0.1 documentation for plugin authors.
MOVED = {
    "stagelens.probing": "stagelens.recording",
    "stagelens.scene": "stagelens.recording",
    "stagelens.lab": "stagelens.claims",
    "stagelens.verifying": "stagelens.claims",
    "stagelens.seeds": "stagelens.base",
}
# Old name -> new name in the same module.
RENAMED = {
    "stagelens.Phase": "TrainingPhase",
    "stagelens.experiments.Phase": "TrainingPhase",
    "stagelens.recording.Scene": "ProbeContext",
}


class OldPaths(MetaPathFinder, Loader):
    """Imports an old path as the room that has its names now."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(
            f"{spec.name} is now {new}; the old path is removed in stagelens 0.3", DeprecationWarning, stacklevel=2
        )
        old = ModuleType(spec.name, f"Deprecated: use {new}.")
        room = importlib.import_module(new)
        old.__getattr__ = lambda name: getattr(room, name)  # type: ignore[method-assign]
        return old

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has no code."""


def with_old_names(module: str, find: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for `module`: it finds public names with `find`, and old names with a warning."""

    def __getattr__(name: str) -> Any:
        if new := RENAMED.get(f"{module}.{name}"):
            warnings.warn(
                f"{module}.{name} is now {new}; the old name is removed in stagelens 0.3",
                DeprecationWarning,
                stacklevel=2,
            )
        return find(new or name)

    return __getattr__


def install() -> None:
    """Makes the old paths importable."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
