"""Figs. 1 and 3, the four phases, and Fig. 4, gradient descent and Adam."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.experiments import eval_batch, trained
from stagelens.figures import THEORY, draw_levels, levels_of, line_style, panels, title_of
from stagelens_rich.config import RATES
from stagelens_rich.flow import RichFlow
from stagelens_rich.tasks.toy import PARTS, HighDim, RichToy, second_layer

LOSSES = {"loss": "total", "loss_4gram": "4-gram", "loss_induction": "induction head"}
LOWEST = 1e-9  # the bottom of the loss axis
NAME = 10.0  # points that the upright name of a time takes
OPTIMIZERS = {"gd": "gradient descent", "adam": "Adam"}


def visible(losses: Any) -> Any:
    """Returns `losses` clipped just below the bottom of the axis: a loss of 0 has no logarithm."""
    return np.maximum(losses, LOWEST / 10)


def phases(run: Run) -> Figure:
    """Draws the losses and parameters of the second layer in Stage II, with the flow and Theorem 4's times."""
    task = run.experiment
    figure, ((losses, grown),) = panels(1, 2, f"{title_of(run)}: four phases ({_source(task)})", size=(5.0, 3.4))
    start = getattr(task.config, "first_steps", 0)
    inside = run.timeline.steps >= start
    steps = run.timeline.steps[inside] - start
    for index, (name, label) in enumerate(LOSSES.items()):
        losses.plot(steps, visible(run.timeline.scalar(name)[1][inside]), label=label, **line_style(index))
    if isinstance(task, RichToy):
        for name in PARTS:
            t, values = task.flow.scalar(name)
            losses.plot(t / task.config.lr, visible(values), **THEORY)
        losses.plot([], [], label="flow (Eqs. 7, 10)", **THEORY)
    losses.set(yscale="log", ylabel="loss", ylim=(LOWEST, None))
    losses.legend(loc="lower left")
    for index, (label, values) in enumerate(_parameters(run).items()):
        grown.plot(steps, values[inside], label=label, **line_style(index))
    grown.set(ylabel="parameter")
    grown.legend()
    for axis in (losses, grown):
        axis.set(xscale="log", xlabel="time" if isinstance(task, RichFlow) else "step of Stage II", xlim=(1, None))
    if isinstance(task, RichToy | RichFlow):
        _mark_times(losses, task, run)
    return figure


def _source(task: Any) -> str:
    """Returns the paper's figure that a task reproduces."""
    if isinstance(task, HighDim):
        return f"Fig. 4, {task.config.optimizer}"
    return "Fig. 1" if task.config.tokens == "gaussian" else "Fig. 3"


def _mark_times(axis: Axes, task: Any, run: Run) -> None:
    """Draws Theorem 4's times of the run as vertical lines. Names above near lines are moved apart."""
    rate = getattr(task.config, "lr", 1.0)
    times = [(time / rate, name) for name, time in task.measured_times(run.timeline)._asdict().items() if time]
    end = -np.inf  # where the name before ends, in points
    for time, name in sorted(times):
        axis.axvline(time, color="0.6", lw=0.8, zorder=0)
        here = float(axis.transData.transform((time, 1.0))[0]) * 72 / axis.figure.dpi
        end = max(here, end + NAME)
        corner: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (end - here, 2)}
        axis.annotate(name, (time, 1.0), rotation=90, ha="center", fontsize=8, **corner)


def _parameters(run: Run) -> dict[str, Any]:
    """Returns the parameters of the second layer [step], by the paper's names; matrices as their norms."""
    if isinstance(run.experiment, RichFlow):
        return {name: run.timeline.scalar(name)[1] for name in run.experiment.initial()}
    return {name: second_layer(run.timeline, name) for name in ("p", "w_V1", "w_V2", "W_Q", "W_K")}


def optimizers(run: Run) -> Figure:
    """Draws both partial losses under the run's optimizer and under the other one, which is trained here."""
    task: Any = run.experiment
    own = task.config.optimizer
    curves = {
        name: [run.timeline.scalar(part) for part in PARTS] if name == own else _retrained(task, name)
        for name in OPTIMIZERS
    }
    figure, (axes,) = panels(1, 2, f"{title_of(run)}: D = {task.config.D} (Fig. 4)", size=(4.5, 3.3), sharey=True)
    for axis, (name, title) in zip(axes, OPTIMIZERS.items(), strict=True):
        for index, (part, (steps, values)) in enumerate(zip(PARTS, curves[name], strict=True), start=1):
            axis.plot(steps, visible(values), label=LOSSES[part], **line_style(index))
        draw_levels(axis, levels_of(run), label="plateau (Eq. 10, w = 0)")
        axis.set(yscale="log", ylim=(LOWEST, None), xlabel="training step", title=title)
    axes[0].set_ylabel("loss per dimension")
    axes[0].legend()
    return figure


def _retrained(task: HighDim, optimizer: str) -> list[tuple[Any, Any]]:
    """Returns (steps, losses) of both parts after training with another optimizer, on the same evaluation batch."""
    config = task.config.model_copy(update={"optimizer": optimizer, "lr": RATES[optimizer]})
    other = HighDim(config, task.seed)
    batch, steps = eval_batch(other), other.schedule().planned(config.steps)
    found = []

    def watch(step: int, model: Any) -> None:
        if step in steps:
            found.append(other.parts(model(batch), batch).tolist())

    trained(other, watch=watch)
    return [(np.array(steps), values) for values in np.array(found).T]
