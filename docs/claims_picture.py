"""`images/claims.png`: every claim as last verified, one cell each, from `verified/`. Called by `make figures`.

The upper part of a cell has the verdict of the budget quick, the band at its bottom that of long.
"""

from __future__ import annotations

import textwrap
from math import ceil
from pathlib import Path
from typing import Any

import verdicts
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stagelens.figures import save, styled

# Light or dark, and a hatch for what is not decided: legible in grayscale.
FACES: dict[str, dict[str, Any]] = {
    "holds": {"facecolor": "#d9ecd9"},
    "differs": {"facecolor": "#e39a5c"},
    "needs budget": {"facecolor": "white", "hatch": "...."},
    "error": {"facecolor": "white", "hatch": "xxxx"},
}
BAND = 0.17  # height of the band, of a cell of height 0.9
COLUMNS = 7  # a README is about 880 pixels wide; the text of more cells in a row could not be read there


def picture(quick: dict[str, list[dict[str, Any]]], long: dict[str, dict[str, Any]]) -> Figure:
    """Returns the figure: one cell for each claim with its ID, title and two verdicts; each plugin begins a row."""
    rows = sum(ceil(len(claims) / COLUMNS) for claims in quick.values())
    with styled():
        figure = Figure(figsize=(1.15 * COLUMNS + 1.1, 0.78 * rows + 0.45))
        axes = figure.subplots()
        top = 0
        for plugin, claims in quick.items():
            axes.text(-0.1, top, plugin, ha="right", va="center")
            for number, claim in enumerate(claims):
                _cell(axes, number % COLUMNS, top + number // COLUMNS, claim, long[plugin].get(claim["id"]))
            top += ceil(len(claims) / COLUMNS)
        every = {
            "quick": [claim["verdict"] for claims in quick.values() for claim in claims],
            "long": [claim["verdict"] for claims in long.values() for claim in claims.values()],
        }
        for verdict, face in FACES.items():
            counts = {budget: found.count(verdict) for budget, found in every.items()}
            if any(counts.values()):
                label = f"{verdict}: {counts['quick']} quick, {counts['long']} long"
                axes.add_patch(Rectangle((0, -9), 1, 1, ec="0.4", label=label, **face))
        axes.legend(loc="upper left", bbox_to_anchor=(0.11, 1.05), ncols=len(FACES), borderaxespad=0, handlelength=1.4)
        axes.set(xlim=(-0.95, COLUMNS), ylim=(rows - 0.5, -0.5))
        axes.set_axis_off()
    return figure


def _cell(axes: Axes, x: float, y: float, quick: dict[str, Any], long: dict[str, Any] | None) -> None:
    bottom = y + 0.45
    axes.add_patch(Rectangle((x, y - 0.45), 0.94, 0.9 - BAND, lw=0.5, ec="0.4", **FACES[quick["verdict"]]))
    face = FACES[long["verdict"]] if long else {"facecolor": "white"}
    axes.add_patch(Rectangle((x, bottom - BAND), 0.94, BAND, lw=0.5, ec="0.4", **face))
    box = _behind(quick["verdict"])
    axes.text(x + 0.04, y - 0.39, quick["id"], fontsize=7.5, weight="bold", va="top", bbox=box)
    word = f"long: {long['verdict']}" if long else "long: not yet"
    axes.text(x + 0.04, bottom - BAND / 2, word, fontsize=6, va="center", bbox=_behind(long["verdict"] if long else ""))
    title = "\n".join(textwrap.wrap(quick["title"], 21, max_lines=3, placeholder=" …"))
    axes.text(x + 0.04, y - 0.17, title, fontsize=6, va="top", linespacing=1.1, bbox=box)


def _behind(verdict: str) -> dict[str, Any] | None:
    """Returns what is behind the text: white on a hatch, nothing on a plain colour."""
    return {"facecolor": "white", "lw": 0, "pad": 0.2} if "hatch" in FACES.get(verdict, {}) else None


if __name__ == "__main__":
    shown = {plugin: list(verdicts.load(plugin, "quick").values()) for plugin in verdicts.PAPERS}
    longer = {plugin: verdicts.load(plugin, "long") for plugin in verdicts.PAPERS}
    save(picture(shown, longer), Path(__file__).parent / "images" / "claims.png")
