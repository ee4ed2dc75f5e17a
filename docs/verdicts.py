"""The stored verdicts: `verified/PLUGIN.json` has those of the budget quick, `verified/long/PLUGIN.json` of long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "verified"
PAPERS = {"markov": "markov", "linear-icl": "linear_icl", "recall": "recall", "rich": "rich", "emergence": "emergence"}
BUDGETS = ("quick", "long")

Verdict = dict[str, Any]  # a result of `stagelens verify --json`


def file_of(plugin: str, budget: str) -> Path:
    return FOLDER / f"{plugin}.json" if budget == "quick" else FOLDER / budget / f"{plugin}.json"


def load(plugin: str, budget: str) -> dict[str, Verdict]:
    """Returns the verdicts of a plugin by claim; none if it was never verified with this budget."""
    file = file_of(plugin, budget)
    return {one["id"]: one for one in json.loads(file.read_text(encoding="utf-8"))} if file.exists() else {}


def best(plugin: str, claim: str) -> Verdict | None:
    """Returns the verdict of the largest budget that judged the claim."""
    found = [load(plugin, budget).get(claim) for budget in reversed(BUDGETS)]
    return next((one for one in found if one and one["checks"]), None)


def verdict_of(check: dict[str, Any]) -> str:
    """Returns the verdict of one check; empty if it only reports a number."""
    if check["expected"] == "reported, not judged":
        return ""
    return str(check.get("verdict") or ("holds" if check["holds"] else "differs"))


def text(value: Any) -> str:
    """Returns a measured or expected value as text; the numbers of several seeds are in parentheses."""
    if isinstance(value, bool) or not isinstance(value, float | list):
        return str(value)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return ", ".join(f"({text(item)})" if isinstance(item, list) else text(item) for item in value)


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
