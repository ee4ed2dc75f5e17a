"""Fig. 2: positions are learned before dot products."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.claims import Lab
from stagelens.figures import draw_predictions, grid, headline, line_style, title_of
from stagelens_rich.claims.measures import half_time
from stagelens_rich.data.corpus import WIKITEXT
from stagelens_rich.tasks.text import WIKITEXT_WORDS

NORMS = {"p": "‖p‖", "kq": "‖(W_K, W_Q)‖"}


def fig2(lab: Lab) -> Figure | None:
    """Draws Fig. 2 on wikitext-2 with its whole vocabulary; the budget decides the other sizes."""
    return positions_first(lab.run("rich/text", {"corpus": WIKITEXT, "vocab": WIKITEXT_WORDS, "own_token": False}))


def positions_first(run: Run) -> Figure | None:
    """Draws the loss with the losses of n-gram models, and the norms of p and of (W_K, W_Q), per head and of all.

    Returns None if the run did not record the norms.
    """
    timeline = run.timeline
    if "position_norms/p" not in timeline or len(timeline.steps) < 3:
        return None
    figure, axes = grid((3, 1), (6.3, 1.7), (0, 0.22), margin=(0.8, 1.3, 0.55, 0.5), sharex=True)
    loss, *norms = axes[:, 0]
    loss.plot(*timeline.scalar("loss"), **line_style(0))
    loss.margins(x=0.01)
    draw_predictions(loss, run, "loss")
    loss.set_ylabel("loss, held-out text")
    for axis, (name, label) in zip(norms, NORMS.items(), strict=True):
        _draw_norm(axis, timeline, name, label)
    axes[-1, 0].set_xlabel("training step")
    headline(figure, f"{title_of(run)}: positions are learned before dot products (Fig. 2)")
    return figure


def _draw_norm(axis: Any, timeline: Any, name: str, label: str) -> None:
    """Draws the norm over all heads in black, with the step at which half of its change is over, and each head's."""
    steps, every = timeline.scalar(f"position_norms/all_{name}")
    heads = np.abs(timeline.series(f"position_norms/{name}"))  # [step, layer, head]
    axis.plot(steps, every, color="black", label="all")
    for index, (layer, head) in enumerate(np.ndindex(heads.shape[1:])):
        style = line_style(index) | {"lw": 1.0}
        axis.plot(timeline.steps, heads[:, layer, head], label=f"layer {layer} head {head}", **style)
    half = half_time(steps, every)
    if np.isfinite(half):
        axis.axvline(half, color="0.5", lw=0.8, zorder=0.5)
        right: Any = {"xycoords": ("data", "axes fraction"), "xytext": (3, 0), "textcoords": "offset points"}
        axis.annotate(f"half the change: step {half:.0f}", (half, 0.9), fontsize=7, color="0.25", **right)
    axis.set_ylabel(label)
    axis.set_ylim(bottom=0)
    if name == "p":
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.8)
