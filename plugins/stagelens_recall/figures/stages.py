"""Figs. 1 and 4: the stages of the simplified model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.claims import Lab
from stagelens.figures import draw_levels, headline, levels_of, line_style, title_of
from stagelens_recall.claims.trained import BETAS, PROBES

BETA, MASS = "recall_circuit/beta", "head_specialization/mass"
RIGHT: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}  # a legend right of its panel, where no line is
MAPS = 5  # the largest number of attention maps


def staged_learning(run: Run) -> Figure | None:
    """Draws Fig. 1, or Fig. 4: the loss with the predicted plateaus, the betas, and the attention on each plateau.

    Returns None if the run did not record betas and attention.
    """
    timeline = run.timeline
    if BETA not in timeline or MASS not in timeline or len(timeline.steps) < 2:
        return None
    figure = Figure(figsize=(8.2, 6.2))
    rows: Any = figure.subfigures(2, 1, height_ratios=(2.2, 1))
    loss, beta = rows[0].subplots(2, 1, sharex=True)
    loss.plot(*timeline.scalar("loss"), label="loss", **line_style(0))
    draw_levels(loss, levels_of(run), label="theory: levels (A.4)")
    loss.set_ylabel("loss")
    loss.legend(**RIGHT)
    for h, column in enumerate(timeline.series(BETA).T):
        beta.plot(timeline.steps, column, label=f"head {h}", **line_style(h))
    beta.set(ylabel="beta", xlabel="training step")
    beta.legend(**RIGHT)
    _draw_attention(rows[1], run)
    number = "Fig. 4" if run.experiment.config.first_betas[-1] > run.experiment.config.first_betas[0] else "Fig. 1"
    headline(figure, f"{number}: stages, betas and attention; {title_of(run)}")
    return figure


def fig4(lab: Lab) -> Figure | None:
    """Draws Fig. 4: `staged_learning` of a run whose betas have the opposite order."""
    return staged_learning(lab.run("recall/simplified", {"betas": BETAS[::-1]}, probes=PROBES))


def _draw_attention(row: Any, run: Run) -> None:
    """Draws a map of the first layer's attention [head, token] at one step of each plateau."""
    timeline, order = run.timeline, run.experiment.config.order
    masses = timeline.series(MASS)[:, 0, :, :order]  # [step, head, token]
    heads = masses.shape[1]
    chosen = _plateau_indices(timeline.series(BETA))
    for axis, index in zip(row.subplots(1, len(chosen), sharey=True), chosen, strict=True):
        axis.imshow(masses[index], vmin=0, vmax=1, cmap="Greys", aspect="auto")
        axis.set_title(f"step {timeline.steps[index]}", fontsize=8)
        axis.set_xticks(range(order), range(1, order + 1))
        axis.set_yticks(range(heads), [f"head {h}" for h in range(heads)])
        axis.set_xlabel("token from the end", fontsize=8)


def _plateau_indices(betas: Any) -> list[int]:
    """Returns the indices of the first measurement, of one between each two heads' rises, and of the last.

    `betas` is [step, head]. A head rises when its beta exceeds a quarter of the largest beta of the run.
    """
    high, last = betas > betas.max() / 4, len(betas) - 1
    rises = sorted(int(np.argmax(column)) for column in high.T if column.any())
    middles = [(a + b) // 2 for a, b in pairwise([*rises, last])]
    return sorted({0, *middles, last})[:MAPS]
