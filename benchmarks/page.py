"""Generates `docs/speed.md` from the text in `benchmarks/speed.md` and the stored results of the benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"


def table(kept: dict[str, Any]) -> str:
    """Returns the rows of one benchmark as a table, with date and machine."""
    lines = ["| | found | bar |", "|---|---|---|"]
    for row in kept["rows"]:
        found = f"{row['found']:.3g}" if abs(row["found"]) < 100 else f"{row['found']:,.0f}"
        unit = "" if row["unit"] == "times" else f" {row['unit']}"
        bar = f"{row['bar']}{unit if row['bar'] else ''}" + ("" if row["holds"] else ", **missed**")
        lines.append(f"| {row['what']} | {found}{unit} | {bar} |")
    machine = kept["machine"]
    where = f"{machine['cores']} cores, {machine['threads']} threads, torch {machine['versions']['torch']}"
    note = f"{kept['note']}; " if kept["note"] else ""
    return "\n".join([*lines, "", f"<sub>{note}{kept['date']}, {where}, Python {machine['python']}</sub>"])


def fill(text: str) -> str:
    """Returns `text` with each line `{{ name }}` replaced by the table of that benchmark. Other tables are appended."""
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (HERE / "results").glob("*.json")}

    def put(found: re.Match[str]) -> str:
        name = found[1]
        return table(kept.pop(name)) if name in kept else f"Not measured yet: `python -m benchmarks.{name}`."

    text = re.sub(r"^\{\{ (\w+) \}\}$", put, text, flags=re.MULTILINE)
    for name, result in sorted(kept.items()):
        text += f"\n### `{name}`\n\n{result['about']}\n\n{table(result)}\n"
    return text


def main() -> None:
    PAGE.write_text(fill((HERE / "speed.md").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
