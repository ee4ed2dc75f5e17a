"""Holding a run: it has one writer at a time, and what a killed one had put aside is removed by the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from stagelens.base import EnvironmentFault, StagelensError, UsageError, check_own
from stagelens.runs.manifest import FILE, load_manifest
from stagelens.runs.run import LOCK


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Makes this the one writer of the run, until the block or the process ends; what a dead one left aside goes."""
    check_own(folder)  # nothing is written through a link that leads out of the runs
    lock = FileLock(folder / LOCK, timeout=1, poll_interval=0.01)  # a reader holds it for a moment to see who is there
    try:
        lock.acquire()
    except Timeout:
        try:
            holder = load_manifest(folder)
            who = f"process {holder.process} on {holder.host}"
        except StagelensError:
            who = "another process"
        raise UsageError(f"run {folder.name!r} is being written by {who}; wait for it or give another --name") from None
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write in {folder}: {error.strerror or error}; give another folder with --runs"
        ) from None
    try:
        _tidy(folder)
        yield
    finally:
        lock.release()


def _tidy(folder: Path) -> None:
    """Removes what writers before this one had put aside when they were killed.

    Manifest and checkpoints are theirs alone; a page or an export of another process may be on its way just now.
    """
    patterns = [f".{FILE}.*.part", "checkpoints/.*"]
    with suppress(StagelensError):
        patterns.append(f"**/.*.{load_manifest(folder).process}.part")
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        with suppress(OSError):
            path.unlink()
