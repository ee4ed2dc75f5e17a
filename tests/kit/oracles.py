"""Expected answers for damaged files: independent readers of curves and grids, checks of cut or forged files."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import stagelens as sl
from kit.mutations import HUGE, ODD
from kit.readers import REPORTED, Fault, Reader, readers_of_file, readers_of_run
from kit.tasks import Regression
from stagelens.base.documents import load_sealed, save_sealed
from stagelens.runs.store import _sum, read_measurements

RIGHT = "right"


def readers_of_killed() -> dict[str, Reader]:
    """Accepts the measurements up to where a log was cut, as after a power failure; not for a resumed run."""
    readers = readers_of_run("killed", Regression)
    loose = {name: _any_content(reader) for name, reader in readers.items() if name != "resume"}
    return {"measurements": _a_beginning(Path("runs/killed"))} | loose | {"resume": readers["resume"]}


def _any_content(reader: Reader) -> Reader:
    return lambda: REPORTED if reader() == REPORTED else RIGHT


def _a_beginning(folder: Path) -> Reader:
    whole: list[Any] = []

    def check() -> str:
        found = [(m.step, m.layout, m.values.tobytes()) for m in read_measurements(folder)]
        if not whole:
            whole.extend(found)
        if found != whole[: len(found)]:
            raise Fault(f"{len(found)} measurements are no beginning of {len(whole)}")
        return RIGHT

    return check


def readers_of_csv() -> dict[str, Reader]:
    (reader,) = readers_of_file("csv").values()

    def check() -> str:
        found = reader()
        if found == REPORTED:
            return REPORTED
        answer = json.loads(found)
        _same(answer["stages"], sl.detect_stages(*_curve(Path("curve.csv"))).to_dicts())
        return RIGHT

    return {"stages": check}


def _curve(path: Path) -> Any:
    """Returns steps and values of a csv file, by an independent reader."""
    text = path.read_bytes().decode("utf-8-sig")
    table = [
        line.split(next((mark for mark in ",;\t" if mark in text.lstrip().partition("\n")[0]), ","))
        for line in text.split()
    ]
    names = [] if _is_number(table[0][0]) else [name.lower() for name in table[0]]
    step = next((names.index(name) for name in ("step", "steps", "time", "t") if name in names), 0)
    rows = np.array([[float(cell) for cell in line] for line in (table[1:] if names else table)])
    return rows[:, step], rows[:, 1 - step]


def readers_of_yaml() -> dict[str, Reader]:
    (reader,) = readers_of_file("yaml").values()

    def check() -> str:
        found = reader()
        if found == REPORTED:
            return REPORTED
        rows = [{key: row[key] for key in row if key not in ("seed", "status")} for row in json.loads(found)]
        _same(sorted(map(_point, rows)), sorted(map(_point, _points(Path("grid.yaml")))))
        return RIGHT

    return {"sweep --dry-run": check}


def _points(path: Path) -> list[dict[str, Any]]:
    """Returns the points of a grid of lists, rows and one kind of range, by an independent reader."""
    axes = []
    for key, values in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        keys = [part.strip() for part in key.split(",")]
        if isinstance(values, str) and values.count(":") == 2:
            first, last, step = map(float, values.split(":"))
            values = list(np.arange(first, last + step / 2, step))
        values = values if isinstance(values, list) else [values]
        axes.append([dict(zip(keys, value if len(keys) > 1 else [value], strict=True)) for value in values])
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*axes)]


def _point(row: dict[str, Any]) -> str:
    return repr(sorted((key, float(value) if _is_number(value) else str(value)) for key, value in row.items()))


def made_up_timeline(world: Path, rng: random.Random) -> str:
    """Writes a timeline that no probe measured, with the right checksums."""
    folder = world / "runs/ended"
    with closing(sqlite3.connect(folder / "timeline.sqlite")) as connection:
        number, text = rng.choice(connection.execute("SELECT id, columns FROM layout ORDER BY id").fetchall())
        layout = json.loads(text)
        steps = [step for (step,) in connection.execute("SELECT step FROM measurement ORDER BY step")]
        what = rng.choice(("name", "dims", "shape", "coords", "labels", "step", "values", "layout"))
        if what == "layout":
            layout = rng.choice((*ODD, [[]], [["x"]], [layout[0]] * 2, layout[:1]))
        elif what in ("step", "values"):
            _make_up_row(connection, rng, what, rng.choice(steps))
        else:
            at = ("name", "dims", "shape", "coords", "labels").index(what)
            shapes = ([HUGE], [2**62, 2**62], [-1], [1.5], ["x"])
            fitting = {
                "name": "\x1b[31m$\\frac$",
                "dims": ["step"],
                "labels": ["[/]", "<b>"],
                "coords": [["k", [None]]],
            }
            rng.choice(layout)[at] = rng.choice((*ODD, *shapes, fitting.get(what, [1])))
        changed = json.dumps(layout)
        connection.execute("UPDATE layout SET columns = ? WHERE id = ?", (changed, number))
        rows = 'SELECT step, "values", columns FROM measurement JOIN layout ON layout = id'
        for step, values, columns in connection.execute(rows).fetchall():
            try:
                crc = _sum(step, columns, values)
            except (ValueError, TypeError, OverflowError, UnicodeEncodeError):
                continue
            connection.execute("UPDATE measurement SET sum = ? WHERE step = ?", (crc, step))
        connection.commit()
    manifest = load_sealed(folder / "run.json")
    save_sealed(folder / "run.json", manifest | {"timeline": ""})
    return f"another {what} in a timeline"


def _make_up_row(connection: sqlite3.Connection, rng: random.Random, what: str, step: Any) -> None:
    odd = {
        "step": (-5, 1e300, float("inf"), "nan", "later", b"7", 2**62, 0.5),
        "values": (b"", bytes(7), bytes(8), b"\xff" * 400, np.full(50, np.inf).tobytes(), np.full(50, 1e308).tobytes()),
    }
    column = "step" if what == "step" else '"values"'
    connection.execute(f"UPDATE OR IGNORE measurement SET {column} = ? WHERE step = ?", (rng.choice(odd[what]), step))


def _same(found: Any, expected: Any) -> None:
    if json.dumps(found, default=float) != json.dumps(expected, default=float):
        raise Fault(f"other content: {str(found)[:150]} for {str(expected)[:150]}")


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (ValueError, TypeError):
        return False
    return True
