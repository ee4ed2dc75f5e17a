"""Paths that stay inside: a run that somebody else packed cannot make stagelens read or write elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from stagelens.base.errors import UsageError


def own(folder: Path, *names: str) -> Path:
    """`folder / names`, a file or folder of the run in `folder`, there or not.

    A link may lead to another place in the folder of runs, not out of it. A pipe or a device, at which a reader would
    wait for ever, is refused.
    """
    path = folder
    for name in names:
        path = path / name
        if path.is_symlink() and not leads_into(path, Path(os.path.realpath(folder)).parent):
            raise UsageError(f"{path} is a link that leads out of the folder of runs; put what it means in its place")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(f"{path} is neither a file nor a folder; it is no part of a run")
    return path


def check_own(folder: Path) -> None:
    """Refuses a run with a link, pipe or device in it that `own` refuses."""
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.is_symlink() or not _is_usual(entry)]
    except OSError:  # no folder, or none that can be listed: what is wanted of it will say so
        return
    for name in found:
        own(folder, name)


def _is_usual(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def leads_into(path: Path, folder: Path) -> bool:
    """Whether `path`, its links followed, lies in `folder`."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
