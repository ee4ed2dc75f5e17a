"""The lock of a run: a run has one writer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from stagelens.base import EnvironmentFault, StagelensError, UsageError, check_own
from stagelens.runs.manifest import FILE, load_manifest

LOCK = "run.lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Makes this process the only writer of the run during the block, and removes what killed writers left behind."""
    check_own(folder)  # nothing is written through a link that leads out of the runs directory
    lock = FileLock(folder / LOCK, timeout=1, poll_interval=0.01)  # `is_being_written` holds it for a moment
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
            f"cannot write in {folder}: {error.strerror or error}; give another directory with --runs"
        ) from None
    try:
        _tidy(folder)
        yield
    finally:
        lock.release()


def is_being_written(folder: Path) -> bool:
    """Returns whether a living process holds the run's lock."""
    lock = folder / LOCK
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # the directory is read-only, so no process can write
        return False


def _tidy(folder: Path) -> None:
    """Removes the unfinished files of killed writers.

    Unfinished manifests and checkpoints are theirs alone. Another process may be writing a report or an export just
    now, so other unfinished files are removed only if the run's last writer made them.
    """
    patterns = [f".{FILE}.*.part", "checkpoints/.*"]
    with suppress(StagelensError):
        patterns.append(f"**/.*.{load_manifest(folder).process}.part")
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        with suppress(OSError):
            path.unlink()
