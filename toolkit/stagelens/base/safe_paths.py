"""Safe paths: an untrusted run directory cannot make stagelens read or write outside of the runs directory."""

from __future__ import annotations

import os
from pathlib import Path

from stagelens.base.errors import UsageError


def own(folder: Path, *names: str) -> Path:
    """Returns `folder / names`, the path of a file or directory of the run in `folder`, whether it exists or not.

    A link that leads out of the runs directory is refused. So is a pipe or a device, which would block a reader.
    """
    path = folder
    for name in names:
        path = path / name
        if path.is_symlink() and not leads_into(path, Path(os.path.realpath(folder)).parent):
            raise UsageError(f"{path} is a link that leads out of the runs directory; replace it by what it links to")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(f"{path} is neither a file nor a directory; a run has only these")
    return path


def check_own(folder: Path) -> None:
    """Raises an error if the run in `folder` contains a link, pipe or device that `own` refuses."""
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.is_symlink() or not _is_usual(entry)]
    except OSError:  # there is no such directory, or it cannot be listed: reading it raises the error later
        return
    for name in found:
        own(folder, name)


def _is_usual(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def leads_into(path: Path, folder: Path) -> bool:
    """Returns True if `path`, with links resolved, is in `folder`."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
