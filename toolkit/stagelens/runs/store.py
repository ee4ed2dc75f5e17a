"""The store of a timeline, `timeline.sqlite`: one transaction per measurement, readable while it is written."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stagelens.base import EnvironmentFault, UsageError
from stagelens.timelines import LARGEST_STEP, Layout, Measurement, layout_from_json, layout_to_json

FILE = "timeline.sqlite"
APPLICATION_ID = 0x57A6E1E5  # marks the file as ours in its header
FORMAT = 1
NOT_THE_FILE = {  # errors of the disk, its permissions, or another process; the file itself is not damaged
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
}

SCHEMA = """
CREATE TABLE layout (id INTEGER PRIMARY KEY, columns TEXT NOT NULL UNIQUE);
CREATE TABLE measurement (
    step NUMERIC PRIMARY KEY,
    layout INTEGER NOT NULL REFERENCES layout (id),
    sum INTEGER NOT NULL,      -- crc32 of step, layout and values
    "values" BLOB NOT NULL     -- little-endian float64, in the layout's order
) WITHOUT ROWID;
"""


class Store:
    """Writes the timeline of a run. A run has one writer."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        with _faults(self.path):
            self._connection = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            fresh = _is_empty(self._connection)
            if not fresh:
                _check_ours(self._connection, self.path)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # see `sync`
            if fresh:
                self._connection.executescript(
                    f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; COMMIT;"
                )
        self._layouts: dict[Layout, tuple[int, str]] = {}

    def add(self, *measurements: Measurement) -> None:
        """Writes measurements in one transaction. It replaces earlier measurements of the same steps."""
        with _faults(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                rows = [self._row(measurement) for measurement in measurements]
                self._connection.executemany("INSERT OR REPLACE INTO measurement VALUES (?, ?, ?, ?)", rows)
                self._connection.execute("COMMIT")
            except BaseException:
                self._layouts.clear()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def sync(self) -> None:
        """Syncs the measurements to disk, so that a power failure does not lose them.

        Without it they survive the end of the process only. They are synced before each checkpoint: a run cannot be
        resumed from a checkpoint without the measurements before it.
        """
        with _faults(self.path):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def forget_after(self, step: float) -> None:
        """Deletes the measurements after `step`, which a resumed run repeats."""
        with _faults(self.path):
            self._connection.execute("DELETE FROM measurement WHERE step > ?", (step,))

    def digest(self) -> str:
        """Returns the digest of the timeline, which the manifest of an ended run stores."""
        with _faults(self.path):
            return _digest(self._connection.execute("SELECT sum FROM measurement ORDER BY step"))

    def close(self) -> None:
        """Closes the file. Moves the write-ahead log into it, so that the timeline is one file again."""
        with _faults(self.path), closing(self._connection):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.execute("PRAGMA busy_timeout = 0")
            with suppress(sqlite3.OperationalError):  # another process is reading: the log remains, which does no harm
                self._connection.execute("PRAGMA journal_mode = DELETE")

    def _row(self, measurement: Measurement) -> tuple[float, int, int, bytes]:
        values = np.ascontiguousarray(measurement.values, dtype="<f8").tobytes()
        number, text = self._layout(measurement.layout)
        return measurement.step, number, _sum(measurement.step, text, values), values

    def _layout(self, layout: Layout) -> tuple[int, str]:
        found = self._layouts.get(layout)
        if found is None:
            text = layout_to_json(layout)
            self._connection.execute("INSERT OR IGNORE INTO layout (columns) VALUES (?)", (text,))
            (number,) = self._connection.execute("SELECT id FROM layout WHERE columns = ?", (text,)).fetchone()
            found = self._layouts[layout] = (number, text)
        return found


class NotAsItEnded(EnvironmentFault):
    """A timeline without damage that is not the one that the manifest describes."""


def read_measurements(folder: Path, digest: str = "") -> list[Measurement]:
    """Returns all measurements of the run in `folder`, sorted by step. It never writes, and needs no write permission.

    Damage raises an error, also if it only loses rows. `digest` is the one in the manifest of an ended run: it detects
    a timeline of another run, and a missing one.
    """
    path = folder / FILE
    rows: list[tuple[Any, ...]] = []
    texts: dict[int, str] = {}
    with _faults(path):
        if path.exists():
            connection = _open_to_read(path)
            try:
                if not _is_empty(connection):
                    _check_ours(connection, path)
                    connection.execute("BEGIN")  # one snapshot of both tables, while the writer continues
                    _check_whole(connection)
                    texts = dict(connection.execute("SELECT id, columns FROM layout").fetchall())
                    values = 'SELECT step, layout, sum, "values" FROM measurement ORDER BY step'
                    rows = connection.execute(values).fetchall()
            finally:
                connection.close()
        for step, number, crc, values in rows:
            if number not in texts or _sum(step, texts[number], values) != crc:
                raise EnvironmentFault(f"{path} is damaged: the measurement of step {step} does not match its checksum")
        if digest and digest != _digest((crc,) for _, _, crc, _ in rows):
            raise NotAsItEnded(
                f"{path} holds {len(rows)} measurements, which are not those that the run ended with; "
                "restore it from a copy or delete the run"
            )
        layouts = {number: layout_from_json(text) for number, text in texts.items()}
        _check_meaning(rows, layouts)
        return [Measurement(step, layouts[n], np.frombuffer(values, dtype="<f8")) for step, n, _, values in rows]


def _sum(step: float, layout: str, values: bytes) -> int:
    """Returns the checksum of a row. It detects a flipped bit in any part of it."""
    return zlib.crc32(values, zlib.crc32(f"{float(step)!r} {layout}".encode()))


def _digest(sums: Iterable[tuple[int]]) -> str:
    """Returns a digest of all rows in order, from their checksums."""
    return hashlib.sha256(b"".join(crc.to_bytes(4) for (crc,) in sums)).hexdigest()[:16]


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Returns a read-only connection; an immutable one on a read-only disk, where SQLite cannot write its index."""
    uri = path.resolve().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=30)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        connection.close()
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Returns True if there are no tables: the writer may be killed before it creates them."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not tables


def _check_whole(connection: sqlite3.Connection) -> None:
    """Raises an error if the pages of the file are inconsistent. It takes milliseconds."""
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(found.split()))


def _check_meaning(rows: Sequence[tuple[Any, ...]], layouts: Mapping[int, Layout]) -> None:
    """Raises an error for rows that stagelens cannot have written, even if their checksums are right."""
    steps = np.array([step for step, *_ in rows if not isinstance(step, str | bytes)], dtype=np.float64)
    if len(steps) < len(rows) or not (np.abs(steps) <= LARGEST_STEP).all() or (np.diff(steps) <= 0).any():
        raise ValueError("its steps are not increasing numbers")
    sizes = {number: 8 * sum(column.size for column in layout) for number, layout in layouts.items()}
    for step, number, _, values in rows:
        if len(values) != sizes[number]:
            raise ValueError(f"the measurement of step {step} does not fit its layout")


@cache
def _tables() -> list[tuple[str, str, str]]:
    """Returns the two tables of a timeline. Views and triggers are not allowed: they could run an untrusted query."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return connection.execute(_LISTED).fetchall()


_LISTED = "SELECT type, name, sql FROM sqlite_master ORDER BY name"


def _check_ours(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise UsageError(f"{path} is not a stagelens timeline; it was written by another program")
    if version != FORMAT:
        raise UsageError(f"{path} has format {version}, this stagelens reads {FORMAT}; use the version that wrote it")
    if connection.execute(_LISTED).fetchall() != _tables():
        raise UsageError(f"{path} has other tables than a stagelens timeline; it was written by another program")


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the system into environment errors of one line."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        outside = getattr(error, "sqlite_errorcode", 0) & 0xFF in NOT_THE_FILE
        fix, replace = "free disk space or fix the directory, then resume", "restore it from a copy or delete the run"
        raise EnvironmentFault(f"{path} cannot be used ({error}); {fix if outside else replace}") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:  # TypeError: a column holds another type
        raise EnvironmentFault(f"{path} cannot be used ({' '.join(str(error).split())})") from error
