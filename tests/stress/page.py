"""Generates `docs/reliability.md` from the text in `tests/stress/reliability.md` and the stored rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from table import stored_rows

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reliability.md"
TABLE = "{{ table }}"
MUTATIONS = 2000  # in a whole set of them


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the table: a row for each fault, those of one command together, and the totals."""
    columns = ("fault", "times tried", "lost", "wrong", "what else", "command that repeats it")
    lines = [f"| {' | '.join(columns)} |", "|---|--:|--:|--:|---|---|"]
    for row in rows:
        counts = f"{row['tried']:,} | {row['lost']:,} | {row['wrong']:,}"
        lines.append(f"| {row['fault']} | {counts} | {row['note']} | `{row['command']}` |")
    tried, lost, wrong = (sum(row[key] for row in rows) for key in ("tried", "lost", "wrong"))
    lines.append(f"| **all** | **{tried:,}** | **{lost:,}** | **{wrong:,}** | | `make stress` |")
    days, places = (sorted({row[key] for row in rows}) for key in ("date", "where"))
    about = f"{days[0]} to {days[-1]}; {'; '.join(places)}"
    sets = [f"tests/stress/{file.name}" for file in sorted(HERE.glob("test_*.py"))]
    if unrun := [f"`pytest {name}`" for name in sets if not any(name in row["command"] for row in rows)]:
        about += f"; not run to their end, and so not in the table: {', '.join(unrun)}"
    damaged = sum(row["tried"] for row in rows if "test_mutations" in row["command"])
    if damaged < MUTATIONS:
        about += f"; {damaged:,} of {MUTATIONS:,} damaged files tried (`pytest tests/stress/test_mutations.py`)"
    return "\n".join([*lines, "", f"<sub>{about}</sub>"])


def main() -> None:
    text = (HERE / "reliability.md").read_text(encoding="utf-8")
    PAGE.write_text(text.replace(TABLE, table(stored_rows())), encoding="utf-8")


if __name__ == "__main__":
    main()
