"""The figures of the paper's main setting: Figs. 1a, 1b and 1c, with theory dashed; and Fig. 5, drawn as Fig. 1a."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.claims import Lab
from stagelens.figures import (
    COLOURS,
    draw_levels,
    draw_predictions,
    grid,
    headline,
    legend_row,
    make_room,
    name_beside,
    title_of,
)
from stagelens_linear_icl.flow import Descent, descend
from stagelens_linear_icl.model import stack
from stagelens_linear_icl.predictions import JUST_LEARNED, plateau_levels
from stagelens_linear_icl.tasks import Separate
from stagelens_linear_icl.theory import Problem

SEEDS = tuple(range(6))
VALUE, KEY = "principal_components/value", "principal_components/key"
LOSS = "loss (squared error)"
SINGLE: Any = {"panel": (5.6, 2.5), "gap": (0.0, 0.0), "margin": (0.7, 0.3, 0.65, 0.5)}  # inches, of a single panel
FIRST_STEP = 10  # the first step shown; before it, small weights have hardly moved
MAX_NUMBERS = 6  # rows or columns of a matrix whose entries are written out


def descent_of(task: Separate, seeds: Sequence[int] = SEEDS) -> Descent:
    """Runs exact descent of the task from the starts of `seeds`."""
    return descend(stack([task.start(seed) for seed in seeds]), task.moments, task.config.lr, task.config.steps)


def draw_plateaus(axis: Axes, problem: Problem) -> list[tuple[float, str]]:
    """Draws Eq. 5 or 12 as dashed lines. Returns the levels with their names."""
    return draw_levels(axis, plateau_levels(problem), f"theory: Eq. {12 if problem.config.every else 5}")


def draw_seeds(axis: Axes, path: Descent) -> None:
    """Draws the loss of several seeds as thin lines."""
    labels = [f"seeds {SEEDS[0]} to {SEEDS[-1]}"] + [None] * (len(SEEDS) - 1)
    axis.plot(path.steps, path.loss, color="0.2", lw=0.9, label=labels)


def log_steps(axis: Axes, last: float, first: float = FIRST_STEP) -> None:
    """Makes the x axis a logarithmic axis of steps."""
    axis.set_xscale("log")
    axis.set_xlim(min(first, last / 2), 1.03 * last)
    axis.set_xlabel("training step")


def seeds_figure(run: Run, task: Separate, title: str) -> Figure:
    """Draws the loss of six seeds and of the run itself, over the levels of theory."""
    figure, ((axis,),) = grid((1, 1), **SINGLE)
    levels = draw_plateaus(axis, task)
    draw_seeds(axis, descent_of(task))
    axis.plot(*run.timeline.scalar("loss"), color=COLOURS[0], lw=2.2, label="this run")
    log_steps(axis, task.config.steps)
    name_beside(axis, levels)
    axis.set_ylabel(LOSS)
    make_room(figure, 0.4)
    legend_row(figure, axis)
    headline(figure, f"{title}; {title_of(run)}")
    return figure


def fig6(lab: Lab) -> Figure:  # noqa: ARG001
    """Draws Fig. 6: the time t_d just after each drop, on the loss of seed 0 of Fig. 1a."""
    task = Separate(Separate.Config(), 0)
    descent = descent_of(task, [0])
    path = descent.path(task)
    figure, ((axis,),) = grid((1, 1), **SINGLE)
    levels = draw_plateaus(axis, task)
    axis.plot(descent.steps, path.loss, color=COLOURS[0], lw=2.2, label="loss")
    for d in range(task.config.D):
        time = path.time_learned(d, JUST_LEARNED)
        if time is not None:
            step = time / (2 * task.config.lr)
            axis.axvline(
                step, color="0.2", lw=0.9, ls=":", label=None if d else f"{JUST_LEARNED:.0%} of e_d is learned"
            )
            above: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (0, 2)}
            axis.annotate(f"t_{d + 1}", (step, 1.0), ha="center", va="bottom", fontsize=8, **above)
    log_steps(axis, task.config.steps)
    name_beside(axis, levels)
    axis.set_ylabel(LOSS)
    make_room(figure, 0.4)
    legend_row(figure, axis)
    headline(figure, f"Fig. 6: t_d, just after each drop; {task.id}, seed 0")
    return figure


def values_figure(run: Run) -> Figure:
    """Draws the value weight of each head, over the solutions of Eq. 7."""
    figure, ((axis,),) = grid((1, 1), **SINGLE)
    steps, values = run.timeline.steps, run.timeline.series(VALUE)  # [step, head]
    for head, curve in enumerate(values.T):
        axis.plot(steps, curve, color=COLOURS[head % len(COLOURS)], lw=2.2, label=None if head else "heads")
    draw_predictions(axis, run, VALUE)
    log_steps(axis, float(steps[-1]))
    name_beside(axis, list(zip(values[-1], _heads_with_eigenvectors(run), strict=True)))
    axis.set_ylabel("value weight v")
    make_room(figure, 0.6, left=0.25)
    legend_row(figure, axis)
    headline(figure, f"Fig. 1b: the value of one head after the other grows; {title_of(run)}")
    return figure


def _heads_with_eigenvectors(run: Run) -> list[str]:
    """Returns each head's name, with the eigenvector nearest to its final key if keys were measured."""
    names = [f"head {head}" for head in range(run.timeline.series(VALUE).shape[1])]
    if KEY not in run.timeline:
        return names
    nearest = np.abs(run.timeline.series(KEY)[-1]).argmax(-1)  # [head]
    return [f"{name}, e{d + 1}" for name, d in zip(names, nearest.tolist(), strict=True)]


def keys_figure(task: Separate) -> Figure:
    """Draws the keys of all heads on each plateau, as rows, and the eigenvectors of Lambda."""
    panels = [*keys_on_plateaus(task), ("eigenvectors", task.covariance.eigenvectors)]
    figure, axes = grid((1, len(panels)), panel=(1.5, 1.5), gap=(0.3, 0.0), margin=(0.7, 1.05, 0.8, 0.35))
    for axis, (name, rows) in zip(axes[0], panels, strict=True):
        size = max(float(np.abs(rows).max()), 1e-12)
        image = axis.imshow(rows / size, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
        _write_numbers(axis, rows / size)
        axis.set_title(f"{name}\nlargest {size:.2g}", fontsize=8)
        axis.set_xticks([])
        last = axis is axes[0, -1]
        names = [f"e{row + 1}" if last else f"head {row}" for row in range(len(rows))]
        axis.set_yticks(range(len(rows)), names if last or axis is axes[0, 0] else [], fontsize=8)
        axis.tick_params(length=0, pad=2)
        axis.set_xlabel("weight of x", fontsize=8)
    corner, width = axes[0, -1].get_position(), figure.get_figwidth()
    scale = figure.add_axes((corner.x1 + 0.15 / width, corner.y0, 0.12 / width, corner.height))
    figure.colorbar(image, cax=scale, label="of the largest\n(written: tenths)")
    headline(figure, f"Fig. 1c: at each plateau one more key lies along ± an eigenvector; {task.id}, seed {task.seed}")
    return figure


def keys_on_plateaus(task: Separate) -> list[tuple[str, Any]]:
    """Returns the name and the keys [H, D] of the middle of each plateau, in log time, of the task's seed."""
    descent = descent_of(task, [task.seed])
    keys = descent.weights.k[:, 0, :, 0]  # [step, H, D]
    middles = descent.path(task).middles
    return [(f"M_{m}, step {descent.steps[index]}", keys[index]) for m, index in enumerate(middles)]


def _write_numbers(axis: Axes, values: Any) -> None:
    """Writes the entries of a small matrix in tenths, so that their signs do not depend on colour alone."""
    if max(values.shape) > MAX_NUMBERS:
        return
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if abs(value) > 0.7 else "0.2"
        axis.text(column, row, f"{10 * value:.0f}".replace("-0", "0"), color=colour, ha="center", va="center", size=8)
