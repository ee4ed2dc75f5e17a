"""Writes the numbers and the figure of docs/induction.md from the run that `stagelens probe` made.

python docs/examples/induction/page.py runs/induction
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import stagelens as sl

HERE = Path(__file__).parent
DOCS = HERE.parents[1]
PAGE, RESULT, FIGURE = DOCS / "induction.md", HERE / "result.json", DOCS / "images" / "induction.png"
NUMBERS = re.compile(r"(<!-- numbers -->\n).*?(<!-- end -->)", re.DOTALL)
SCORES = ("prefix_matching", "previous_token")


def numbers_of(run: sl.Run) -> dict[str, Any]:
    """Returns what the page shows: the scores of every head at the last step, the loss, and what formed when."""
    timeline = run.timeline
    last = {
        name: timeline.series(f"induction/{name}")[-1].tolist()
        for score in SCORES
        for name in (score, f"{score}_error", f"{score}_chance")
    }
    loss = timeline.series("loss")
    return {
        "steps": [int(step) for step in timeline.steps],
        "measured_on": re.sub(r"^.*/", "", run.manifest.config["measured_on"]),
        "versions": dict(run.manifest.versions),
        "loss": [float(loss[0]), float(loss[-1])],
        "formed": [one["what"] for one in run.summary()["formed"] if one["probe"] == "induction"],
        **last,
    }


def table(numbers: dict[str, Any]) -> str:
    """Returns the part of the page that has numbers."""
    rows = []
    for layer, heads in enumerate(numbers["prefix_matching"]):
        for head in range(len(heads)):
            cells = [
                f"{numbers[score][layer][head]:.2f} ± {2 * numbers[f'{score}_error'][layer][head]:.2f}"
                for score in SCORES
            ]
            rows.append(f"| {layer} | {head} | {cells[0]} | {cells[1]} |")
    chances = " and ".join(f"{numbers[f'{score}_chance'][0]:.3f}" for score in SCORES)
    first, last = numbers["loss"]
    lines = [
        "| layer | head | prefix matching | previous token |",
        "|---|---|---|---|",
        *rows,
        "",
        f"Scores at step {numbers['steps'][-1]}, ± two standard errors. A head that attends uniformly has {chances}. "
        f"From the first to the last of {len(numbers['steps'])} checkpoints the loss on the held-out text goes from "
        f"{first:.2f} to {last:.2f}.",
        "",
        *(f"> {sentence}" for sentence in numbers["formed"]),
    ]
    return "\n".join(lines) + "\n"


def with_numbers(page: str, numbers: dict[str, Any]) -> str:
    """Returns the page with its numbers replaced."""
    return NUMBERS.sub(lambda found: found[1] + table(numbers) + found[2], page)


if __name__ == "__main__":
    run = sl.load(sys.argv[1])
    numbers = numbers_of(run)
    RESULT.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(with_numbers(PAGE.read_text(encoding="utf-8"), numbers), encoding="utf-8")
    shutil.copy(run.folder / "figures" / "overview.png", FIGURE)
