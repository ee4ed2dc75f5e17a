"""Fig. 10: the gradient flow of the regression variant."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.figures import draw_levels, grid, headline, legend_row, levels_of, line_style, name_beside, title_of

TIME_LABEL = "time t of Eq. 5"
LOSS_HEIGHT = 2.4  # inches, of the panel of the loss with its labels


def flow_figure(run: Run) -> Figure:
    """Draws attention and values of each head, and the loss by (feature, position)."""
    timeline = run.timeline
    times, attention, value = timeline.steps[1:], timeline.series("attention")[1:], timeline.series("value")[1:]
    heads, h = value.shape[1:]
    panel, margin = (max(2.2, 7.3 / heads - 0.35), 1.45), (0.7, 0.75, 0.85, 0.5 + LOSS_HEIGHT)
    figure, axes = grid((2, heads), panel, (0.35, 0.2), margin, sharex=True, sharey="row")
    for head, (above, below) in enumerate(axes.T):
        for j in range(h):
            label = f"position {j + 1}, feature {j + 1}"
            above.plot(times, attention[:, head, j], label=label, **line_style(j))
            below.plot(times, value[:, head, j], **line_style(j))
        above.set_title(f"head {head}")
        below.set(xlabel=TIME_LABEL)
    axes[0, 0].set(xscale="log", ylabel="attention s_k", xlim=(times[0], times[-1]))
    axes[1, 0].set_ylabel("value V_k")
    legend_row(figure, axes[0, 0])
    first, last = axes[1, 0].get_position(), axes[1, -1].get_position()
    height = figure.get_figheight()
    loss = figure.add_axes((first.x0, 0.5 / height, last.x1 - first.x0, (LOSS_HEIGHT - 0.65) / height))
    _draw_parts(loss, run)
    figure.align_ylabels([*axes[:, 0], loss])
    headline(figure, f"Fig. 10: in the gradient flow heads compete for position 1, then separate; {title_of(run)}")
    return figure


def _draw_parts(axis: Any, run: Run) -> None:
    """Draws the loss, what each (feature, position) adds to it, and the predicted levels."""
    timeline = run.timeline
    times, parts = timeline.steps[1:], timeline.series("loss_parts")[1:]  # [time], [time, feature, position]
    own = np.einsum("tjj->tj", parts[:, :, : parts.shape[1]])  # [time, feature], at its own position
    axis.plot(times, timeline.series("loss")[1:], color="0.7", lw=3.5, label="loss")
    for j, part in enumerate(own.T):
        axis.plot(times, part, label=f"its part of (feature {j + 1}, position {j + 1})", **line_style(j))
    axis.plot(times, parts.sum((1, 2)) - own.sum(1), label="all other parts", color="black", ls=":")
    levels = draw_levels(axis, levels_of(run), "theory: levels (fixed points of Eq. 5)")
    axis.set(xscale="log", xlabel=TIME_LABEL, ylabel="loss", xlim=(times[0], times[-1]))
    name_beside(axis, levels)
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 0.98))
