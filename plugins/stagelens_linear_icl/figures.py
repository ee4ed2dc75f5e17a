"""The paper's figures, ours beside theory. A preset that is named after a figure draws that figure.

The curves of further seeds, ranks and sizes come from exact descent on stacks, with the settings of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens.figures import COLOURS, DASHES, draw_predictions, draw_series, title_of
from stagelens_linear_icl import theory
from stagelens_linear_icl.descent import Descent, descend, stack
from stagelens_linear_icl.problem import Problem, crossing

if TYPE_CHECKING:
    from stagelens.runs import Run
    from stagelens_linear_icl.tasks import Separate

SEEDS = tuple(range(6))
LEVEL: Any = {"color": "0.55", "ls": (0, (4, 2)), "lw": 0.8, "zorder": 0.5}
SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def figures_for(run: Run, task: Any) -> Mapping[str, Figure]:
    """The figures of the run's preset; of `quick` and `paper`, those of Fig. 1."""
    if task.id == "linear-icl/sequences":
        return {"fig3": softmax_figure(run)} if task.config.attention == "softmax" else {}
    by_preset: dict[str, Callable[[], dict[str, Figure]]] = {
        "fig2": lambda: {"fig2": ranks_figure(task, (1, 2, 4, 8), "Fig. 2")},
        "fig4": lambda: {"fig4": scales_figure(task)},
        "fig5": lambda: {"fig5": seeds_figure(run, task, "Fig. 5: next-token loss, levels of Eq. 12")},
        "fig7": lambda: {"fig7": values_by_rank_figure(task, (2, 3, 4))},
        "fig8": lambda: {"fig8": ranks_figure(task, (3, 5, 6, 7), "Fig. 8")},
        "fig9": lambda: {"fig9": ranks_figure(task, (1, 2, 3, 4), "Fig. 9: repeated eigenvalues")},
    }
    if run.manifest.preset in by_preset:
        return by_preset[run.manifest.preset]()
    return {
        "fig1a": seeds_figure(run, task, "Fig. 1a: drops between the levels of Eq. 5"),
        "fig1b": values_figure(run),
        "fig1c": keys_figure(task),
    }


def with_settings(task: Separate, **settings: Any) -> Separate:
    """The same task with other settings."""
    return type(task)(type(task.config).model_validate(task.config.model_dump() | settings), task.seed)


def of_seeds(task: Separate, seeds: Sequence[int] = SEEDS) -> Descent:
    """Exact descent of the task's problem from the starts of `seeds`, as one stack."""
    return descend(stack([task.start(seed) for seed in seeds]), task.moments, task.config.lr, task.config.steps)


def draw_levels(axis: Axes, problem: Problem) -> None:
    """Eq. 5, or 12, as dashed lines across."""
    for level in theory.plateau_losses(problem.lam, problem.inverse_length):
        axis.axhline(level, **LEVEL)


def seeds_figure(run: Run, task: Separate, title: str) -> Figure:
    """The loss of six seeds and of the run itself, over the levels of theory."""
    figure = Figure(figsize=(6.4, 3.4))
    axis = figure.subplots()
    draw_levels(axis, task)
    others = of_seeds(task)
    axis.plot(others.steps, others.loss, color="0.3", lw=0.9, label=[f"seeds {SEEDS[0]} to {SEEDS[-1]}"] + [None] * 5)
    axis.plot(*run.timeline.scalar("loss"), color=COLOURS[0], lw=2, label="this run")
    axis.plot([], [], label="theory", **LEVEL)
    axis.legend(loc="lower left")
    _log_steps(axis)
    axis.set_ylabel("loss, squared error")
    axis.set_title(f"{title}\n{title_of(run)}", loc="left")
    return figure


def values_figure(run: Run) -> Figure:
    """The value weight of each head, over the solutions of Eq. 7."""
    figure = Figure(figsize=(6.4, 3.4))
    axis = figure.subplots()
    draw_series(axis, run, "principal_components/value")
    draw_predictions(axis, run, "principal_components/value")
    _log_steps(axis)
    axis.set_ylabel("value weight v")
    axis.set_title(f"Fig. 1b: each head follows Eq. 7 (dashed)\n{title_of(run)}", loc="left")
    return figure


def keys_figure(task: Separate) -> Figure:
    """The keys of all heads on each plateau, as rows, and the eigenvectors of Lambda."""
    path = of_seeds(task, [task.seed]).seed(0)
    levels = theory.plateau_losses(task.lam, task.inverse_length)
    drops = [crossing(path.steps, path.loss, level) for level in (levels[1:] + levels[:-1]) / 2]
    ends = [0.0, *(drop for drop in drops if drop is not None), float(path.steps[-1])]
    middles = [np.sqrt(max(a, 1.0) * b) for a, b in pairwise(ends)]
    shown = [path.weights.k[int(np.abs(path.steps - step).argmin()), :, 0] for step in middles]  # [H, D] each
    panels = [*zip([f"{m} learned\nstep {s:.0f}" for m, s in enumerate(middles)], shown, strict=True)]
    panels.append(("eigenvectors\ne1, e2, ...", task.covariance.eigenvectors))
    figure = Figure(figsize=(1.45 * len(panels) + 1.0, 2.4))
    axes: Any = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, rows) in zip(axes, panels, strict=True):
        size = max(float(np.abs(rows).max()), 1e-12)
        picture = axis.imshow(rows / size, cmap="RdBu_r", vmin=-1, vmax=1)
        axis.set_title(f"{name}\nlargest {size:.2g}", fontsize=7)
        axis.set_xticks([])
        axis.set_yticks(range(len(rows)), [str(row) for row in range(len(rows))] if axis is axes[0] else [])
    axes[0].set_ylabel("head")
    figure.colorbar(picture, ax=list(axes), label="of the largest", shrink=0.8)
    figure.suptitle(f"Fig. 1c: keys align with eigenvectors; {task.id}, seed {task.seed}", x=0.01, ha="left")
    return figure


def ranks_figure(task: Separate, ranks: Sequence[int], title: str) -> Figure:
    """The loss of six seeds for each rank, over the levels of Eq. 5."""
    figure = Figure(figsize=(2.4 * len(ranks) + 0.8, 2.9))
    axes: Any = figure.subplots(1, len(ranks), sharey=True, squeeze=False)[0]
    for axis, rank in zip(axes, ranks, strict=True):
        here = with_settings(task, R=rank)
        draw_levels(axis, here)
        path = of_seeds(here)
        axis.plot(path.steps, path.loss, color="black", lw=0.9)
        axis.set_title(f"rank R = {rank}")
        _log_steps(axis)
    axes[0].set_ylabel("loss, squared error")
    figure.suptitle(f"{title}; D = {task.config.D}, N = {task.config.N}, H = {task.config.H}", x=0.01, ha="left")
    return figure


def scales_figure(task: Separate) -> Figure:
    """The loss from initial weights of several sizes, all in the same direction."""
    figure = Figure(figsize=(6.4, 3.4))
    axis = figure.subplots()
    draw_levels(axis, task)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(SCALES)))
    path = descend(
        stack([with_settings(task, w_init=scale).start() for scale in SCALES]),
        task.moments,
        task.config.lr / 4,  # large weights are stiff
        4 * task.config.steps,
    )
    for index, scale in enumerate(SCALES):
        look = {"color": colours[index], "ls": DASHES[index % len(DASHES)]}
        axis.plot(path.steps, path.loss[:, index], label=f"w_init = {scale:g}", **look)
    _log_steps(axis)
    axis.set_ylim(0, 1.5 * float(task.lam.sum()))
    axis.set_ylabel("loss, squared error")
    axis.legend(fontsize=7)
    axis.set_title(f"Fig. 4: larger initial weights, shorter plateaus; seed {task.seed}", loc="left")
    return figure


def values_by_rank_figure(task: Separate, ranks: Sequence[int]) -> Figure:
    """Loss and value weights of one seed for each rank: a value grows only with every R-th eigenvector."""
    figure = Figure(figsize=(2.7 * len(ranks) + 0.8, 4.2))
    axes: Any = figure.subplots(2, len(ranks), sharex="col", sharey="row", squeeze=False)
    for column, rank in zip(axes.T, ranks, strict=True):
        here = with_settings(task, R=rank)
        path = of_seeds(here, [task.seed]).seed(0)
        draw_levels(column[0], here)
        column[0].plot(path.steps, path.loss, color="black")
        for head in range(task.config.H):
            look = {"color": COLOURS[head % len(COLOURS)], "ls": DASHES[head % len(DASHES)]}
            column[1].plot(path.steps, path.weights.v[:, head], label=f"head {head}", **look)
        column[0].set_title(f"rank R = {rank}")
        _log_steps(column[1])
    axes[0, 0].set_ylabel("loss, squared error")
    axes[1, 0].set_ylabel("value weight v")
    axes[1, -1].legend(fontsize=7)
    figure.suptitle(f"Fig. 7: loss and value weights; seed {task.seed}", x=0.01, ha="left")
    return figure


def softmax_figure(run: Run) -> Figure:
    """The loss of softmax attention."""
    figure = Figure(figsize=(6.4, 3.4))
    axis = figure.subplots()
    name = "train_loss" if "train_loss" in run.timeline else "loss"
    axis.plot(*run.timeline.scalar(name), color="black", label="training set")
    if name != "loss":
        axis.plot(*run.timeline.scalar("loss"), color=COLOURS[0], ls="--", label="fresh sequences")
    axis.legend()
    _log_steps(axis)
    axis.set_ylabel("loss, squared error")
    axis.set_title(f"Fig. 3: softmax attention falls in several drops too\n{title_of(run)}", loc="left")
    return figure


def _log_steps(axis: Axes) -> None:
    axis.set_xscale("symlog", linthresh=10)
    axis.set_xlim(left=0)
    axis.set_xlabel("training step")
