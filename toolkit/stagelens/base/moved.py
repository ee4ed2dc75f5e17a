"""Modules of stagelens 0.1 that moved into rooms: their old paths still import, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old path -> new path, of the modules that the documentation of 0.1 showed to plugin authors.
MOVED = {
    "stagelens.probing": "stagelens.recording",
    "stagelens.scene": "stagelens.recording",
    "stagelens.lab": "stagelens.claims",
    "stagelens.verifying": "stagelens.claims",
    "stagelens.seeds": "stagelens.base",
}


class OldPaths(MetaPathFinder, Loader):
    """Imports an old path as the room that took its names."""

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
        """There is nothing to execute."""


def install() -> None:
    """Makes the old paths importable."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
