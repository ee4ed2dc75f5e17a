"""The paper's figures, from runs: the phases (Figs. 1 and 3), the two optimizers (Fig. 4), and Theorem 4's scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens.figures import THEORY, line_style
from stagelens_rich.flow import RichFlow, solved_times
from stagelens_rich.tasks import NORM, PARTS, SECOND, HighDim, Toy

if TYPE_CHECKING:
    from stagelens import Run

NAMES = {"loss": "total", "loss_4gram": "4-gram", "loss_induction": "induction head"}
LOWEST = 1e-9  # of a loss that is drawn
GRIDS: dict[str, Any] = {
    "L": np.array([20, 40, 80, 160, 320]),
    "sigma_init": 10.0 ** -np.arange(2, 7),
    "alpha_star": np.array([0.5, 1, 2, 4, 8]),
    "w_star": np.array([0.2, 0.25, 0.3, 0.35, 0.4, 0.49]),
}
LAWS: dict[
    str, tuple[Callable[[Any], Any], str, int]
] = {  # Theorem 4's variable of each key, its label, and its exponent
    "L": (lambda x: x, "L", 1),
    "sigma_init": (lambda x: -np.log(x), "log(1/sigma)", 1),
    "alpha_star": (lambda x: 1 + x, "1 + alpha*", 2),
    "w_star": (lambda x: x, "w*", -2),
}


def second_stage(run: Run) -> tuple[Any, Any]:
    """Which measurements are of Stage II, and the steps (of a flow: times) since its start."""
    steps = run.timeline.steps
    start = getattr(run.experiment.config, "first_steps", 0)
    return steps >= start, steps[steps >= start] - start


def phases(run: Run) -> Figure:
    """Losses and parameters of the second layer through Stage II, with the flow and Theorem 4's times beside them."""
    figure = Figure(figsize=(10.0, 3.4))
    losses, grown = figure.subplots(1, 2)
    inside, steps = second_stage(run)
    for index, (name, label) in enumerate(NAMES.items()):
        values = run.timeline.scalar(name)[1][inside]
        losses.plot(steps, np.maximum(values, LOWEST / 10), label=label, **line_style(index))
    task = run.experiment
    if isinstance(task, Toy):
        for name in PARTS:
            t, values = task.flow.scalar(name)
            losses.plot(t / task.config.lr, np.maximum(values, LOWEST / 10), **THEORY)
        losses.plot([], [], label="flow (Eqs. 7, 10)", **THEORY)
    if isinstance(task, Toy | RichFlow):
        _mark_times(losses, task, run)
    losses.set(yscale="log", ylabel="loss", ylim=(LOWEST, None))
    losses.legend(loc="lower left")
    for index, (label, values) in enumerate(_parameters(run, inside).items()):
        grown.plot(steps, values, label=label, **line_style(index))
    grown.set(ylabel="parameter")
    grown.legend()
    for axis in (losses, grown):
        axis.set(xscale="log", xlabel="time" if isinstance(task, RichFlow) else "step of Stage II", xlim=(1, None))
    figure.suptitle(f"{run.name}: four phases ({_source(task)})", x=0.01, ha="left")
    return figure


def _source(task: Any) -> str:
    if isinstance(task, HighDim):
        return f"Fig. 4, {task.config.optimizer}"
    return "Fig. 1" if task.config.tokens == "gaussian" else "Fig. 3"


def _mark_times(axis: Axes, task: Any, run: Run) -> None:
    """Theorem 4's times of the run as vertical lines."""
    rate = getattr(task.config, "lr", 1.0)
    for name, time in task.measured_times(run.timeline)._asdict().items():
        if time is not None:
            axis.axvline(time / rate, color="0.6", lw=0.8, zorder=0)
            axis.annotate(
                name, (time / rate, 1.01), xycoords=("data", "axes fraction"), rotation=90, ha="center", fontsize=6
            )


def _parameters(run: Run, inside: Any) -> dict[str, Any]:
    """The parameters of the second layer by the paper's names; matrices as their norms."""
    if isinstance(run.experiment, RichFlow):
        return {name: run.timeline.scalar(name)[1] for name in run.experiment.initial()}
    return {
        name: run.timeline.scalar(NORM, {"parameter": f"{SECOND}{name}"})[1][inside]
        for name in ("p", "w_V1", "w_V2", "W_Q", "W_K")
    }


def first_layer(run: Run) -> Figure:
    """Training Stage I: p(1,1) and the attention to the previous token."""
    figure = Figure(figsize=(8.0, 3.0))
    axes = figure.subplots(1, 2)
    for axis, name, label in zip(
        axes, ("p_first", "previous_token"), ("p(1,1)", "attention to s - 1, at s = L"), strict=True
    ):
        t, values = run.timeline.scalar(name)
        axis.plot(t[1:], values[1:], **line_style(0))
        axis.set(xscale="log", xlabel="time", ylabel=label)
    axes[1].axhline(0.99, **THEORY)
    figure.suptitle(f"{run.name}: the first layer (Lemma 2)", x=0.01, ha="left")
    return figure


def scaling(run: Run) -> Figure:
    """T_II and T_III of flows about the run's own setting, over each variable of Theorem 4 and its power law."""
    config = run.experiment.config
    base = {key: getattr(config, key) for key in ("L", "sigma_init", "alpha_star", "w_star", "tokens", "system")}
    figure = Figure(figsize=(11.0, 3.2))
    axes: Any = figure.subplots(1, 4, sharey=True)
    for axis, (key, (variable, label, exponent)) in zip(axes, LAWS.items(), strict=True):
        values = GRIDS[key]
        times = [solved_times(**{**base, key: value.item()}) for value in values]
        x = variable(values.astype(float))
        for index, name in enumerate(("T_III", "T_II")):
            axis.plot(x, [getattr(t, name) for t in times], marker="os"[index], label=name, **line_style(index))
        law = (x / x[0]) ** exponent
        end = np.array([t.T_III for t in times], dtype=float)
        axis.plot(x, law * np.exp(np.mean(np.log(end / law))), label="Theorem 4", **THEORY)
        axis.set(xscale="log", yscale="log", xlabel=label, title=f"exponent {exponent}")
        axis.set_xticks(x, [f"{tick:.3g}" for tick in x], fontsize=7)
        axis.minorticks_off()
    axes[0].set_ylabel("time")
    axes[0].legend()
    figure.suptitle(f"{run.name}: the length of the plateau (Theorem 4)", x=0.01, ha="left")
    return figure


def optimizers(run: Run) -> Figure:
    """Fig. 4: both partial losses under the run's optimizer and under the other one, trained here."""
    figure = Figure(figsize=(9.0, 3.3))
    axes: Any = figure.subplots(1, 2, sharey=True)
    task: Any = run.experiment
    other = {"adam": "gd", "gd": "adam"}[task.config.optimizer]
    curves = {task.config.optimizer: [run.timeline.scalar(name) for name in PARTS], other: _descended(task, other)}
    for axis, name in zip(axes, ("gd", "adam"), strict=True):
        for index, (part, (steps, values)) in enumerate(zip(PARTS, curves[name], strict=True)):
            axis.plot(steps, np.maximum(values, LOWEST / 10), label=NAMES[part], **line_style(index + 1))
        axis.axhline(task.plateau(), label="plateau (Eq. 10, w = 0)", **THEORY)
        axis.set(
            yscale="log", ylim=(LOWEST, None), xlabel="step", title={"gd": "gradient descent", "adam": "Adam"}[name]
        )
    axes[0].set_ylabel("loss per dimension")
    axes[0].legend()
    figure.suptitle(f"{run.name}: D = {task.config.D} (Fig. 4)", x=0.01, ha="left")
    return figure


def _descended(task: HighDim, optimizer: str) -> list[tuple[Any, Any]]:
    """(steps, losses) of both parts under another optimizer, on the same evaluation batch."""
    import torch

    from stagelens.experiments import Training, eval_batch

    config = task.config.model_copy(update={"optimizer": optimizer, "lr": {"adam": 5e-4, "gd": 0.1}[optimizer]})
    other = HighDim(config, task.seed)
    training, batch = Training(other), eval_batch(other)
    steps = other.schedule().planned(config.steps)
    found = []
    for step in range(config.steps + 1):
        if step in steps:
            with torch.no_grad():
                found.append(other.parts(training.model(batch), batch).tolist())
        training.advance(step)
    return [(np.array(steps), values) for values in np.array(found).T]
