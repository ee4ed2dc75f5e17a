"""Figs. 1 to 9: trained models. The runs are trained through the lab's cache, which the claims share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.claims import Lab
from stagelens.figures import TIME, grid, headline, legend_beside, legend_row, line_style, make_room, title_of
from stagelens_markov.claims import trained as claims
from stagelens_markov.figures.panels import KL, AttentionRow, draw_divergence, draw_excess, legend_options

SCALES = (*claims.InitializationScale.scales, 0.0)  # u of Fig. 4
RATIOS = sorted({*claims.ImportanceRatio.expected, claims.ImportanceRatio.intertwined})  # m of Fig. 4
LONGER: Mapping[str, Mapping[float, Any]] = {"quick": {1.7: {"steps": 1600}}}  # a small chain learns I(3) later
PAIR: Any = {"panel": (3.0, 2.2), "gap": (0.75, 0.0)}  # inches, of two panels next to each other
BELOW = 0.38  # inches below a row of maps, for its legend


def run_of(lab: Lab, task: str, seed: int | None = None, **changes: Any) -> Run:
    """Returns a run that the claims use too; by default of the lab's first seed."""
    settings = {**claims.SIZES[task][lab.budget], **changes}
    first = lab.seeds[0] if seed is None else seed
    return lab.run(task, settings, first, preset=claims.PRESETS[lab.budget], probes=claims.PROBES)


def minimal(lab: Lab, seed: int | None = None, **changes: Any) -> Run:
    """Returns a run of the minimal model."""
    return run_of(lab, claims.MINIMAL, seed, **changes)


def full(lab: Lab, **changes: Any) -> Run:
    """Returns a run of the full model."""
    return run_of(lab, claims.FULL, **changes)


def reversed_order(lab: Lab) -> Run:
    """Returns the run of M8 of the full model."""
    return full(lab, **claims.ReversedOrder.changes[claims.FULL][lab.budget])


def attention_figure(run: Run, title: str) -> Figure:
    """Draws the attention maps of a run."""
    row = AttentionRow(run)
    width, height = row.size
    figure = Figure(figsize=(width + 0.5, height + 0.65 + BELOW))
    figure.set_layout_engine("none")
    row.draw(figure, 0.35, BELOW)
    headline(figure, f"{title}; {title_of(run)}")
    return figure


def curves_figure(run: Run, title: str, foot: float = 0.5) -> Figure:
    """Draws the excess validation loss and the KL divergence from the references, `foot` inches above the bottom."""
    figure, ((left, right),) = grid((1, 2), margin=(0.65, 0.15, 0.45, foot), **PAIR)
    draw_excess(left, {"": run})
    draw_divergence(right, run)
    make_room(figure, legend_beside(right, **legend_options(run)))
    headline(figure, f"{title}; {title_of(run)}")
    return figure


def stages_figure(run: Run) -> Figure | None:
    """Draws Fig. 1 of a trained run: excess loss, KL from the references, and attention at the ends of the stages."""
    if KL not in run.timeline or not run.checkpoints or len(run.timeline.steps) < 3:
        return None
    row = AttentionRow(run)
    figure = curves_figure(run, "Fig. 1: heads compete for I(1), then cooperate", 0.9 + row.size[1] + BELOW)
    row.draw(figure, 0.65, BELOW)
    return figure


def fig1(lab: Lab) -> Figure | None:
    """Draws Fig. 1: the stages of the minimal model."""
    return stages_figure(minimal(lab))


def fig2(lab: Lab) -> Figure:
    """Draws Fig. 2: attention maps of the full model."""
    return attention_figure(full(lab), "Fig. 2: attention of the full model")


def fig3(lab: Lab) -> Figure:
    """Draws Fig. 3: the divergence of the full model from partial predictors and from models of restricted context."""
    figure, ((left, right),) = grid((1, 2), (3.0, 2.2), (2.2, 0.0), margin=(0.65, 0.15, 0.45, 0.5))
    for axis, run in ((left, full(lab)), (right, full(lab, compare="contexts"))):
        draw_divergence(axis, run)
        room = legend_beside(axis, **legend_options(run))
    make_room(figure, room)
    headline(figure, "Fig. 3: the model comes near those that know I(1), then I(1) and I(2), then all; markov/full")
    return figure


def fig4(lab: Lab) -> Figure:
    """Draws Fig. 4: the excess loss for several initialization scales, and for several ratios of importance."""
    longer = LONGER.get(lab.budget, {})
    figure, ((left, right),) = grid((1, 2), (3.3, 2.3), (0.3, 0.0), margin=(0.65, 0.15, 0.7, 0.5), sharey=True)
    draw_excess(left, {f"u = {u:g}": minimal(lab, init_scale=u) for u in SCALES})
    draw_excess(right, {f"m = {m:g}": minimal(lab, m=m, **longer.get(m, {})) for m in RATIOS})
    left.autoscale(axis="y")  # over both panels, because the first panel has set the limit for itself
    left.set_ylim(bottom=0)
    right.set_ylabel("")
    for axis, title in ((left, "initialization scale u"), (right, "ratio of importance m")):
        axis.legend()
        axis.set_title(title)
    headline(figure, "Fig. 4: heads that start alike (u = 0) learn one pattern; a larger m separates the stages")
    return figure


def fig5(lab: Lab) -> Figure:
    """Draws Fig. 5: the best loss over the number of training sequences, and the stages for each number."""
    sizes = claims.DatasetSize.sizes[lab.budget]
    runs = {n: minimal(lab, train_size=n, compare="contexts", **changes) for n, changes in sizes.items()}
    figure, ((best, *curves),) = grid((1, 1 + len(runs)), (2.0, 2.1), (0.65, 0.0), margin=(0.65, 0.15, 0.95, 0.5))
    losses = [float(run.timeline.scalar("excess")[1].min()) for run in runs.values()]
    best.plot(list(runs), losses, marker="o", **line_style(0))
    best.set(xscale="log", xlabel="training sequences", ylabel="best excess loss (nats)", ylim=(0, None))
    best.set_xticks(list(runs), [str(n) for n in runs])
    best.minorticks_off()
    for axis, (n, run) in zip(curves, runs.items(), strict=True):
        draw_divergence(axis, run)
        steps, loss = run.timeline.scalar("loss")
        axis.axvline(steps[int(np.argmin(loss))], label="best validation loss", **TIME)
        axis.set_title(f"{n} sequences")
    top = max(axis.get_ylim()[1] for axis in curves)
    for axis in curves:
        axis.set_ylim(0, top)
    legend_row(figure, curves[0])
    headline(figure, "Fig. 5: with fewer sequences, fewer of the models that see c lags are reached; dots: nearest")
    return figure


def fig6(lab: Lab) -> Figure:
    """Draws Fig. 6: attention maps with fresh data."""
    return attention_figure(minimal(lab, train_size=0), "Fig. 6: attention, fresh data at every step")


def fig7(lab: Lab) -> Figure:
    """Draws Fig. 7: the stages with fresh data."""
    return curves_figure(minimal(lab, train_size=0), "Fig. 7: the same stages with fresh data")


def fig8(lab: Lab) -> Figure:
    """Draws Fig. 8: attention maps of the full model with reversed order."""
    return attention_figure(reversed_order(lab), "Fig. 8: attention of the full model if the furthest lags matter most")


def fig9(lab: Lab) -> Figure:
    """Draws Fig. 9: the stages of the full model with reversed order."""
    return curves_figure(reversed_order(lab), "Fig. 9: the full model with reversed order, unequal intervals")
