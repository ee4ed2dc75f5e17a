"""The table of faults: what was injected, how often, and how the cases ended.

Each test counts, records its row, and only then asserts, so that a bad number is recorded too:

    lost, wrong = ...                   # counted over `tried` cases
    record("kill -9 in a step", tried, lost, wrong, "pytest tests/stress/test_kills.py")
    assert (lost, wrong) == (0, 0)

With `pytest --record` the rows are written to `docs/verified/stress.json`, and `python tests/stress/page.py` makes
`docs/reliability.md` of them. Otherwise a row is only printed.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from filelock import FileLock

from stagelens.base.files import write_text

STORED = Path(__file__).parents[2] / "docs" / "verified" / "stress.json"


def record(fault: str, tried: int, lost: int, wrong: int, command: str, note: str = "") -> None:
    """Prints one row and, with `--record`, writes it; a row of the same fault is replaced.

    `lost`: cases in which something that was committed is gone, or the run cannot be resumed. `wrong`: cases that ended
    in other numbers, a traceback, a hang, or another exit code than the documented one. `command` repeats the row.
    """
    row = {"fault": fault, "tried": tried, "lost": lost, "wrong": wrong, "command": command, "note": note}
    row |= {"date": datetime.now(UTC).date().isoformat(), "where": _where()}
    print(f"{fault}: {tried} tried, {lost} lost, {wrong} wrong; {note}")  # noqa: T201
    if not os.environ.get("STAGELENS_STRESS_RECORD"):
        return
    STORED.parent.mkdir(exist_ok=True)
    with FileLock(Path(gettempdir()) / "stagelens-stress.lock"):
        rows = [stored for stored in stored_rows() if stored["fault"] != fault]
        write_text(STORED, json.dumps(sorted([*rows, row], key=_order), indent=2) + "\n")


def stored_rows() -> list[dict[str, Any]]:
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else []


def _order(row: dict[str, Any]) -> tuple[str, str]:
    return row["command"].partition("pytest")[2], row["fault"]


def _where() -> str:
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, torch {version('torch')}"
