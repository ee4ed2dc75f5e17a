"""`images/claims.png`: every claim as last verified, one cell each, from `verified/`. Called by `make figures`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stagelens.figures import save, styled

DOCS = Path(__file__).parent
PLUGINS = ("markov", "linear-icl", "recall", "rich", "emergence")
# Light or dark, and a hatch for what went wrong: legible in grayscale.
FACES: dict[str, dict[str, Any]] = {
    "holds": {"facecolor": "#d9ecd9"},
    "differs": {"facecolor": "#e39a5c"},
    "needs budget": {"facecolor": "white", "hatch": ".."},
    "error": {"facecolor": "white", "hatch": "xx"},
}


def picture(verdicts: dict[str, list[dict[str, Any]]]) -> Figure:
    """One row for each plugin, one cell for each claim: its ID and title, and its verdict as the colour."""
    columns = max(map(len, verdicts.values()))
    with styled():
        figure = Figure(figsize=(0.95 * columns + 1.1, 0.62 * len(verdicts) + 0.35))
        axes = figure.subplots()
        for y, (plugin, claims) in enumerate(verdicts.items()):
            axes.text(-0.1, y, plugin, ha="right", va="center")
            for x, claim in enumerate(claims):
                axes.add_patch(Rectangle((x, y - 0.45), 0.94, 0.9, lw=0.5, ec="0.4", **FACES[claim["verdict"]]))
                axes.text(x + 0.04, y - 0.38, claim["id"], fontsize=6.5, weight="bold", va="top")
                title = "\n".join(textwrap.wrap(claim["title"], 21, max_lines=3, placeholder=" …"))
                axes.text(x + 0.04, y - 0.13, title, fontsize=4.4, va="top", linespacing=1.15)
        every = [claim["verdict"] for claims in verdicts.values() for claim in claims]
        for verdict, face in FACES.items():
            if verdict in every:
                axes.add_patch(Rectangle((0, -9), 1, 1, ec="0.4", label=f"{every.count(verdict)} {verdict}", **face))
        axes.legend(loc="upper left", bbox_to_anchor=(0.075, 1.09), ncols=len(FACES), borderaxespad=0, handlelength=1.4)
        axes.set(xlim=(-1.15, columns), ylim=(len(verdicts) - 0.5, -0.5))
        axes.set_axis_off()
    return figure


if __name__ == "__main__":
    kept = {name: json.loads((DOCS / "verified" / f"{name}.json").read_text(encoding="utf-8")) for name in PLUGINS}
    save(picture(kept), DOCS / "images" / "claims.png")
