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

from stagelens.figures import (
    COLOURS,
    LEVEL,
    draw_predictions,
    grid,
    headline,
    legend_beside,
    legend_row,
    line_style,
    make_room,
    name_beside,
    title_of,
)
from stagelens_linear_icl import theory
from stagelens_linear_icl.descent import Descent, descend, stack
from stagelens_linear_icl.problem import Problem, crossing

if TYPE_CHECKING:
    from stagelens import Run
    from stagelens_linear_icl.tasks import Separate

SEEDS = tuple(range(6))
SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
VALUE, KEY = "principal_components/value", "principal_components/key"
LOSS = "loss (squared error)"
ALONE: Any = {"panel": (5.6, 2.5), "gap": (0.0, 0.0), "margin": (0.7, 0.3, 0.65, 0.5)}  # a single panel
FIRST = 10  # step from which curves are shown: before it, small weights have hardly moved
MOST_NUMBERS = 6  # rows and columns of a matrix whose entries are written out


def figures_for(run: Run, task: Any) -> Mapping[str, Figure]:
    """The figures of the run's preset; of `quick` and `paper`, those of Fig. 1."""
    if task.id == "linear-icl/sequences":
        return {"fig3": softmax_figure(run)} if task.config.attention == "softmax" else {}
    by_preset: dict[str, Callable[[], Figure]] = {
        "fig2": lambda: ranks_figure(task, (1, 2, 4, 8), "Fig. 2: the plateaus at multiples of R are long"),
        "fig4": lambda: scales_figure(task),
        "fig5": lambda: seeds_figure(run, task, "Fig. 5: next-token loss (Eq. 9) drops from level to level too"),
        "fig7": lambda: values_by_rank_figure(task, (2, 3, 4)),
        "fig8": lambda: ranks_figure(task, (3, 5, 6, 7), "Fig. 8: as Fig. 2, of further ranks R"),
        "fig9": lambda: ranks_figure(task, (1, 2, 3, 4), "Fig. 9: repeated eigenvalues, plateaus of unequal length"),
    }
    if run.manifest.preset in by_preset:
        return {run.manifest.preset: by_preset[run.manifest.preset]()}
    return {
        "fig1a": seeds_figure(run, task, "Fig. 1a: the loss drops from level to level"),
        "fig1b": values_figure(run),
        "fig1c": keys_figure(task),
    }


def with_settings(task: Separate, **settings: Any) -> Separate:
    """The same task with other settings."""
    return type(task)(type(task.config).model_validate(task.config.model_dump() | settings), task.seed)


def of_seeds(task: Separate, seeds: Sequence[int] = SEEDS) -> Descent:
    """Exact descent of the task's problem from the starts of `seeds`, as one stack."""
    return descend(stack([task.start(seed) for seed in seeds]), task.moments, task.config.lr, task.config.steps)


def draw_levels(axis: Axes, problem: Problem) -> list[tuple[float, str]]:
    """Eq. 5, or 12, as dashed lines across; returns the levels with their names."""
    levels = [float(level) for level in theory.plateau_losses(problem.lam, problem.inverse_length)]
    for index, level in enumerate(levels):
        label = None if index else f"theory: Eq. {12 if problem.config.every else 5}"
        axis.axhline(level, label=label, zorder=0.5, **LEVEL)
    return [(level, f"L(M_{m})") for m, level in enumerate(levels)]


def draw_seeds(axis: Axes, path: Descent) -> None:
    """The loss of several seeds, as hairlines."""
    labels = [f"seeds {SEEDS[0]} to {SEEDS[-1]}"] + [None] * (len(SEEDS) - 1)
    axis.plot(path.steps, path.loss, color="0.2", lw=0.9, label=labels)


def seeds_figure(run: Run, task: Separate, title: str) -> Figure:
    """The loss of six seeds and of the run itself, over the levels of theory."""
    figure, ((axis,),) = grid((1, 1), **ALONE)
    levels = draw_levels(axis, task)
    draw_seeds(axis, of_seeds(task))
    axis.plot(*run.timeline.scalar("loss"), color=COLOURS[0], lw=2.2, label="this run")
    _log_steps(axis, task.config.steps)
    name_beside(axis, levels)
    axis.set_ylabel(LOSS)
    make_room(figure, 0.4)
    legend_row(figure, axis)
    headline(figure, f"{title}; {title_of(run)}")
    return figure


def values_figure(run: Run) -> Figure:
    """The value weight of each head, over the solutions of Eq. 7."""
    figure, ((axis,),) = grid((1, 1), **ALONE)
    steps, values = run.timeline.steps, run.timeline.series(VALUE)  # [step, head]
    for head, curve in enumerate(values.T):
        label = None if head else "heads"
        axis.plot(steps, curve, color=COLOURS[head % len(COLOURS)], lw=2.2, label=label)
    draw_predictions(axis, run, VALUE)
    _log_steps(axis, float(steps[-1]))
    name_beside(axis, list(zip(values[-1], _heads_with_eigenvectors(run), strict=True)))
    axis.set_ylabel("value weight v")
    make_room(figure, 0.6)
    legend_row(figure, axis)
    headline(figure, f"Fig. 1b: the value of one head after the other grows; {title_of(run)}")
    return figure


def _heads_with_eigenvectors(run: Run) -> list[str]:
    """Each head's name, with the eigenvector that its key is nearest to in the end where that was measured."""
    names = [f"head {head}" for head in range(run.timeline.series(VALUE).shape[1])]
    if KEY not in run.timeline:
        return names
    nearest = np.abs(run.timeline.series(KEY)[-1]).argmax(-1)  # [head]
    return [f"{name}, e{d + 1}" for name, d in zip(names, nearest.tolist(), strict=True)]


def keys_figure(task: Separate) -> Figure:
    """The keys of all heads on each plateau, as rows, and the eigenvectors of Lambda."""
    path = of_seeds(task, [task.seed]).seed(0)
    levels = theory.plateau_losses(task.lam, task.inverse_length)
    drops = [crossing(path.steps, path.loss, level) for level in (levels[1:] + levels[:-1]) / 2]
    ends = [0.0, *(drop for drop in drops if drop is not None), float(path.steps[-1])]
    middles = [np.sqrt(max(a, 1.0) * b) for a, b in pairwise(ends)]
    shown = [path.weights.k[int(np.abs(path.steps - step).argmin()), :, 0] for step in middles]  # [H, D] each
    panels = [*zip([f"M_{m}, step {s:.0f}" for m, s in enumerate(middles)], shown, strict=True)]
    panels.append(("eigenvectors", task.covariance.eigenvectors))
    figure, axes = grid((1, len(panels)), panel=(1.35, 1.35), gap=(0.3, 0.0), margin=(0.65, 1.05, 0.8, 0.35))
    for axis, (name, rows) in zip(axes[0], panels, strict=True):
        size = max(float(np.abs(rows).max()), 1e-12)
        picture = axis.imshow(rows / size, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
        _write_numbers(axis, rows / size)
        axis.set_title(f"{name}\nlargest {size:.2g}", fontsize=8)
        axis.set_xticks([])
        last = axis is axes[0, -1]
        names = [f"e{row + 1}" for row in range(len(rows))] if last else [f"head {row}" for row in range(len(rows))]
        axis.set_yticks(range(len(rows)), names if last or axis is axes[0, 0] else [], fontsize=7)
        axis.tick_params(length=0, pad=2)
        axis.set_xlabel("weight of x", fontsize=7)
    place, width = axes[0, -1].get_position(), figure.get_figwidth()
    beside = figure.add_axes((place.x1 + 0.15 / width, place.y0, 0.12 / width, place.height))
    figure.colorbar(picture, cax=beside, label="of the largest\n(written: tenths)")
    headline(figure, f"Fig. 1c: at each plateau one more key lies along ± an eigenvector; {task.id}, seed {task.seed}")
    return figure


def _write_numbers(axis: Axes, values: Any) -> None:
    """The entries of a small matrix, in tenths, so that their signs do not hang on colour alone."""
    if max(values.shape) > MOST_NUMBERS:
        return
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if abs(value) > 0.7 else "0.2"
        axis.text(column, row, f"{10 * value:.0f}".replace("-0", "0"), color=colour, ha="center", va="center", size=6)


def ranks_figure(task: Separate, ranks: Sequence[int], title: str) -> Figure:
    """The loss of six seeds for each rank, over the levels of Eq. 5."""
    panel, margin = (2.15, 2.2), (0.65, 0.65, 0.9, 0.5)
    figure, axes = grid((1, len(ranks)), panel=panel, gap=(0.2, 0.0), margin=margin, sharey=True)
    for axis, rank in zip(axes[0], ranks, strict=True):
        here = with_settings(task, R=rank)
        levels = draw_levels(axis, here)
        draw_seeds(axis, of_seeds(here))
        axis.set_title(f"R = {rank}")
        _log_steps(axis, task.config.steps)
    name_beside(axes[0, -1], levels)
    axes[0, 0].set_ylabel(LOSS)
    legend_row(figure, axes[0, 0])
    headline(figure, f"{title}; D = {task.config.D}, N = {task.config.N}, H = {task.config.H}")
    return figure


def scales_figure(task: Separate) -> Figure:
    """The loss from initial weights of several sizes, all in the same direction."""
    figure, ((axis,),) = grid((1, 1), **ALONE | {"margin": (0.7, 0.15, 0.45, 0.5)})
    levels = draw_levels(axis, task)
    rate, steps = task.config.lr / 4, 4 * task.config.steps  # large weights are stiff
    starts = stack([with_settings(task, w_init=scale).start() for scale in SCALES])
    path = descend(starts, task.moments, rate, steps)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(SCALES)))  # the larger the lighter
    for colour, scale, curve in zip(colours, SCALES, path.loss.T, strict=True):
        axis.plot(path.steps, curve, label=f"w_init = {scale:g}", color=colour)
    _log_steps(axis, steps, first=1)
    axis.set(ylim=(0, 1.15 * float(task.lam.sum())), ylabel=LOSS, xlabel=f"training step, at a rate of {rate:g}")
    name_beside(axis, levels)
    make_room(figure, legend_beside(axis, [name for _, name in levels]))
    headline(figure, f"Fig. 4: the larger the initial weights, the shorter the plateaus; {task.id}, seed {task.seed}")
    return figure


def values_by_rank_figure(task: Separate, ranks: Sequence[int]) -> Figure:
    """Loss and value weights of one seed for each rank: a value grows only with every R-th eigenvector."""
    shape, margin = (2, len(ranks)), (0.7, 0.65, 0.9, 0.5)
    figure, axes = grid(shape, panel=(2.5, 1.6), gap=(0.2, 0.2), margin=margin, sharex=True, sharey="row")
    for column, rank in zip(axes.T, ranks, strict=True):
        here = with_settings(task, R=rank)
        path = of_seeds(here, [task.seed]).seed(0)
        levels = draw_levels(column[0], here)
        column[0].plot(path.steps, path.loss, color="black", label="loss")
        for head in range(task.config.H):
            column[1].plot(path.steps, path.weights.v[:, head], label=f"head {head}", **line_style(head))
        column[0].set_title(f"R = {rank}")
        _log_steps(column[1], task.config.steps)
    name_beside(axes[0, -1], levels)
    axes[0, 0].set_ylabel(LOSS)
    axes[1, 0].set_ylabel("value weight v")
    figure.align_ylabels(axes[:, 0])
    legend_row(figure, *axes[:, 0])
    headline(figure, f"Fig. 7: of rank R, one head learns R eigenvectors; {task.id}, seed {task.seed}")
    return figure


def softmax_figure(run: Run) -> Figure:
    """The loss of softmax attention."""
    figure, ((axis,),) = grid((1, 1), **ALONE)
    name = "train_loss" if "train_loss" in run.timeline else "loss"
    axis.plot(*run.timeline.scalar(name), color="black", label="training set")
    if name != "loss":
        axis.plot(*run.timeline.scalar("loss"), color=COLOURS[0], ls="--", label="fresh sequences")
    _log_steps(axis, float(run.timeline.steps[-1]))
    axis.set_ylabel(LOSS)
    legend_row(figure, axis)
    headline(figure, f"Fig. 3: softmax attention falls in several drops too; {title_of(run)}")
    return figure


def _log_steps(axis: Axes, last: float, first: float = FIRST) -> None:
    axis.set_xscale("log")
    axis.set_xlim(min(first, last / 2), 1.03 * last)
    axis.set_xlabel("training step")
