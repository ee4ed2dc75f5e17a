"""The table of claims in each paper's README, from `verified/`: `python docs/claims_tables.py` writes it anew.

It also counts the claims that hold in the project's README.

Each claim has one line. It shows the first check, or the first that differs. It has the paper's number and ours, the
verdict with each budget, and the reason of each budget with which it differs. A test fails if a table is stale.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import verdicts

from stagelens import Claim

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- claims: written by docs/claims_tables.py, do not edit -->", "<!-- end of claims -->"
COLUMNS = ["claim", "in the paper", "what", "the paper", "ours", *verdicts.BUDGETS, "why it differs"]


def readme(plugin: str) -> Path:
    return ROOT / "plugins" / f"stagelens_{verdicts.PAPERS[plugin]}" / "README.md"


def updated(plugin: str) -> str:
    """Returns the README of the plugin with its table as it should be."""
    text = readme(plugin).read_text(encoding="utf-8")
    if BEGIN not in text:
        raise ValueError(f"{readme(plugin)} has no place for the claims: add the lines {BEGIN!r} and {END!r}")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: table(plugin), text, flags=re.DOTALL)


def table(plugin: str) -> str:
    from stagelens.host import make_host

    host = make_host(allow=())
    ids = [id for id, _ in host.claims if host.claims.owners[id] == plugin]
    rows = [_line(plugin, id, host.claims[id]) for id in ids]
    head = [verdicts.row(COLUMNS), verdicts.row(["---"] * len(COLUMNS))]
    return "\n".join([BEGIN, "", *head, *rows, "", END])


def _line(plugin: str, id: str, ref: Any) -> str:
    claim = ref.load()
    by_budget = {budget: verdicts.load(plugin, budget).get(id) for budget in verdicts.BUDGETS}
    judged = verdicts.best(plugin, id)
    shown = headline(judged["checks"]) if judged else None
    what, paper, ours = ("", "", "") if shown is None else (shown["what"], _expected(shown), _measured(shown))
    differs = [budget for budget, one in by_budget.items() if one and one["verdict"] == "differs"]
    cells = [f"{id} {ref.title}", claim.reference, what, paper, ours, *map(counted, by_budget.values())]
    return verdicts.row([*cells, reasons(claim, differs)])


def reasons(claim: type[Claim], budgets: list[str]) -> str:
    """Returns why a claim differs with `budgets`. One that is written for a budget names it: `size (quick): `."""
    if isinstance(claim.reason, str):
        return claim.reason if budgets else ""
    return ". ".join(claim.reason_for(budget).replace(":", f" ({budget}):", 1) for budget in budgets)


def headline(checks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the first check that differs, else the first that is undecided, else the first that is evidence."""
    evidence = [check for check in checks if verdicts.verdict_of(check) and not check.get("sanity")]
    for verdict in ("differs", "needs budget"):
        for check in checks:
            if verdicts.verdict_of(check) == verdict:
                return check
    return evidence[0] if evidence else None


def counted(verdict: dict[str, Any] | None) -> str:
    """Returns the verdict with the number of judged checks that hold, without sanity checks."""
    if verdict is None:
        return ""
    evidence = [verdicts.verdict_of(check) for check in verdict["checks"] if not check.get("sanity")]
    judged = [one for one in evidence if one]
    return f"{verdict['verdict']}, {judged.count('holds')} of {len(judged)}" if judged else verdict["verdict"]


def _expected(check: dict[str, Any]) -> str:
    tolerance = verdicts.text(check["tolerance"])
    exact = tolerance in ("0", "exact", "strict", "none")
    return _short(verdicts.text(check["expected"])) + ("" if exact else f" ± {tolerance}")


def _measured(check: dict[str, Any]) -> str:
    interval = check.get("interval")
    return _short(verdicts.text(check["measured"])) + (f" [{verdicts.text(list(interval))}]" if interval else "")


def _short(text: str) -> str:
    return textwrap.shorten(text, 90, placeholder=" …")


def counts() -> str:
    """Returns the project's README with the number of claims that hold, budget quick, in the row of each paper.

    Below the table are the number of all claims, and the minutes that they took, each on one core.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for plugin in verdicts.PAPERS:
        found = [one["verdict"] for one in verdicts.load(plugin, "quick").values()]
        row = rf"(\| \[{plugin}\]\(.*\| )\d+ of \d+ hold \|"
        text = re.sub(row, rf"\g<1>{found.count('holds')} of {len(found)} hold |", text)
    every = [one for plugin in verdicts.PAPERS for one in verdicts.load(plugin, "quick").values()]
    minutes = sum(one["seconds"] for one in every) / 60
    return re.sub(
        r"there are \d+, which took \d+ minutes", f"there are {len(every)}, which took {minutes:.0f} minutes", text
    )


def write() -> None:
    for plugin in verdicts.PAPERS:
        readme(plugin).write_text(updated(plugin), encoding="utf-8")
    (ROOT / "README.md").write_text(counts(), encoding="utf-8")


if __name__ == "__main__":
    write()
