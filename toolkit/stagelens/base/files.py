"""Writes files atomically: to a temporary name, synced, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stagelens.base.errors import EnvironmentFault, UsageError


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yields a temporary path. At the end of the block the file written there replaces `path` in one step."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror or error}; free disk space or fix the directory, then try again "
            "(a run: with --resume)"
        ) from error
    finally:
        with suppress(OSError):
            aside.unlink()


def write_text(path: Path, text: str) -> None:
    """Writes a text file completely or not at all."""
    with writing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def make_folder(folder: Path, advice: str, *, parents: bool = True) -> None:
    """Makes a directory if it does not exist. A failure raises an environment error that ends with `advice`."""
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot make {folder}: {error.strerror or error}; {advice}") from None


def safe_name(name: str) -> str:
    """Returns `name` if it can be the name of a directory in the runs directory; else raises an error."""
    if (
        not isinstance(name, str)
        or not name
        or name in (".", "..")
        or name != name.strip()
        or any(c in name for c in "/\\\0")
        or name.startswith(".")
    ):
        raise UsageError(f"run name {name!r}: expected a plain folder name, without '/', '\\' or a leading '.'")
    if len(name.encode()) > 200 or not name.isprintable():
        raise UsageError(f"run name {name[:40]!r}: expected at most 200 printable characters")
    return name
