"""The figures of the variations: ranks (Figs. 2, 7, 8, 9), softmax (Fig. 3) and initial weights (Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.claims import Lab
from stagelens.figures import (
    COLOURS,
    grid,
    headline,
    legend_beside,
    legend_row,
    line_style,
    make_room,
    name_beside,
    title_of,
)
from stagelens_linear_icl.claims.variations import SCALES, softmax_runs
from stagelens_linear_icl.figures.main import LOSS, SEEDS, SINGLE, descent_of, draw_plateaus, draw_seeds, log_steps
from stagelens_linear_icl.flow import descend
from stagelens_linear_icl.model import stack
from stagelens_linear_icl.tasks import Separate


def with_settings(task: Separate, **settings: Any) -> Separate:
    """Returns the same task with other settings."""
    return type(task)(type(task.config).model_validate(task.config.model_dump() | settings), task.seed)


def ranks_figure(task: Separate, ranks: Sequence[int], title: str) -> Figure:
    """Draws the loss of six seeds for each rank, over the levels of Eq. 5."""
    panel, margin = (2.15, 2.2), (0.65, 0.65, 0.9, 0.5)
    figure, axes = grid((1, len(ranks)), panel=panel, gap=(0.2, 0.0), margin=margin, sharey=True)
    for axis, rank in zip(axes[0], ranks, strict=True):
        of_rank = with_settings(task, R=rank)
        levels = draw_plateaus(axis, of_rank)
        draw_seeds(axis, descent_of(of_rank))
        axis.set_title(f"R = {rank}")
        log_steps(axis, task.config.steps)
    name_beside(axes[0, -1], levels)
    axes[0, 0].set_ylabel(LOSS)
    legend_row(figure, axes[0, 0])
    headline(figure, f"{title}; D = {task.config.D}, N = {task.config.N}, H = {task.config.H}")
    return figure


def scales_figure(task: Separate) -> Figure:
    """Draws the loss from initial weights of several sizes, all in the same direction."""
    figure, ((axis,),) = grid((1, 1), **SINGLE | {"margin": (0.7, 0.15, 0.45, 0.5)})
    levels = draw_plateaus(axis, task)
    rate, steps = task.config.lr / 4, 4 * task.config.steps  # large weights are stiff
    starts = stack([with_settings(task, w_init=scale).start() for scale in SCALES])
    path = descend(starts, task.moments, rate, steps)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(SCALES)))  # the larger the lighter
    for colour, scale, curve in zip(colours, SCALES, path.loss.T, strict=True):
        axis.plot(path.steps, curve, label=f"w_init = {scale:g}", color=colour)
    log_steps(axis, steps, first=1)
    axis.set(ylim=(0, 1.15 * float(task.lam.sum())), ylabel=LOSS, xlabel=f"training step, at a rate of {rate:g}")
    name_beside(axis, levels)
    make_room(figure, legend_beside(axis, [name for _, name in levels]))
    headline(figure, f"Fig. 4: the larger the initial weights, the shorter the plateaus; {task.id}, seed {task.seed}")
    return figure


def values_by_rank_figure(task: Separate, ranks: Sequence[int]) -> Figure:
    """Draws loss and value weights of one seed for each rank: a value grows only with every R-th eigenvector."""
    shape, margin = (2, len(ranks)), (0.7, 0.65, 0.9, 0.5)
    figure, axes = grid(shape, panel=(2.5, 1.6), gap=(0.2, 0.2), margin=margin, sharex=True, sharey="row")
    for (loss, values), rank in zip(axes.T, ranks, strict=True):
        of_rank = with_settings(task, R=rank)
        path = descent_of(of_rank, [task.seed])
        levels = draw_plateaus(loss, of_rank)
        loss.plot(path.steps, path.loss, color="black", label="loss")
        for head in range(task.config.H):
            values.plot(path.steps, path.weights.v[:, 0, head], label=f"head {head}", **line_style(head))
        loss.set_title(f"R = {rank}")
        log_steps(values, task.config.steps)
    name_beside(axes[0, -1], levels)
    axes[0, 0].set_ylabel(LOSS)
    axes[1, 0].set_ylabel("value weight v")
    figure.align_ylabels(axes[:, 0])
    legend_row(figure, *axes[:, 0])
    headline(figure, f"Fig. 7: with rank R, one head learns R eigenvectors; {task.id}, seed {task.seed}")
    return figure


def softmax_figure(run: Run) -> Figure:
    """Draws the loss of one run of softmax attention, on its training set and on fresh sequences."""
    figure, ((axis,),) = grid((1, 1), **SINGLE)
    name = "train_loss" if "train_loss" in run.timeline else "loss"
    axis.plot(*run.timeline.scalar(name), color="black", label="training set")
    if name != "loss":
        axis.plot(*run.timeline.scalar("loss"), color=COLOURS[0], ls="--", label="fresh sequences")
    log_steps(axis, float(run.timeline.steps[-1]))
    axis.set_ylabel(LOSS)
    legend_row(figure, axis)
    headline(figure, f"Fig. 3: softmax attention falls in several drops too; {title_of(run)}")
    return figure


def fig3(lab: Lab) -> Figure:
    """Draws the training loss of six seeds of softmax attention, the runs of claim L7."""
    runs = softmax_runs(lab.with_seeds(len(SEEDS)))
    figure, ((axis,),) = grid((1, 1), **SINGLE)
    for index, (seed, run) in enumerate(runs.items()):
        axis.plot(*run.timeline.scalar("train_loss"), label=f"seed {seed}", **line_style(index))
    last, config = next(iter(runs.values())).timeline.steps[-1], next(iter(runs.values())).manifest.config
    log_steps(axis, float(last))
    axis.set_ylabel(f"training {LOSS}")
    legend_row(figure, axis)
    headline(figure, f"Fig. 3: softmax attention falls in several drops too; six starts, P = {config['P']}")
    return figure
