"""The paper's figures of the toy model and its flow. A preset that is named after a figure draws that figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens import Law, fit_law
from stagelens.figures import THEORY, line_style, title_of
from stagelens_emergence import theory
from stagelens_emergence.flow import flow_plateaus, solve
from stagelens_emergence.theory import Reduced

if TYPE_CHECKING:
    from stagelens import Run

DIMENSIONS = (16, 32, 64, 128, 256)
LENGTHS = (128, 256, 512, 1024, 2048)
REPEATS = (1, 2, 4, 8, 16)
PROBABILITIES = (0.0, 0.1, 0.2, 0.3, 0.5)
MARKS = ("o", "s", "^", "D", "v", "P")
OPTIMUM: Any = {"color": "0.6", "ls": ":", "lw": 1.0, "zorder": 0.5}


def flow_figures(run: Run) -> Mapping[str, Figure]:
    """The figure of the run's preset; of `quick` and `paper`, Fig. 1."""
    problem = run.experiment.config.problem
    by_preset: dict[str, Callable[[], Figure]] = {
        "fig2": lambda: repetition_figure(problem.T),
        "fig6": lambda: landscape_figure(problem, run.experiment.config.time),
        "fig7": lambda: linearization_figure(problem.d),
        "fig8": lambda: late_figure(run, problem),
        "fig10": lambda: cross_sample_figure(problem.T, problem.d),
    }
    name = run.manifest.preset if run.manifest.preset in by_preset else "fig1"
    if len(run.timeline.steps) < 2:
        return {}
    return {name: by_preset.get(name, lambda: emergence_figure(run, problem))()}


def toy_figures(run: Run) -> Mapping[str, Figure]:
    """The trained model over the flow of the reduced one: Fig. 9."""
    needed = {"loss", "single_location/w", "single_location/alpha"}
    return {"fig9": reduction_figure(run)} if needed <= set(run.timeline) and len(run.timeline.steps) > 1 else {}


def emergence_figure(run: Run, problem: Reduced) -> Figure:
    """Fig. 1: the loss for several d, w and alpha of the run, and plateau lengths over T with their law."""
    figure = Figure(figsize=(10.5, 3.2))
    loss, state, law = figure.subplots(1, 3)
    for index, d in enumerate((16, 64, 256)):
        here = Reduced(problem.T, d, problem.B, problem.p)
        times = np.linspace(0, 1.6 * here.plateau_law(), 800)
        loss.plot(times, here.without_repetition.loss(*solve(here, times)), label=f"d = {d}", **line_style(index))
    loss.set(xlabel="time", ylabel="test loss", title=f"a. T = {problem.T}")
    loss.legend()
    timeline, end = run.timeline, 2.5 * problem.plateau_law()
    times = timeline.steps
    inside = times <= end
    state.plot(times[inside], timeline.series("w")[inside] / np.sqrt(problem.d), label="w / √d", **line_style(0))
    state.plot(times[inside], timeline.series("relevant")[inside], label="attention", **line_style(1))
    state.axhline(1.0, label="optimum", **OPTIMUM)
    state.set(xlabel="time", title=f"b. T = {problem.T}, d = {problem.d}, B = {problem.B}, p = {problem.p:g}")
    state.legend()
    grid = [Reduced(T, d) for d in DIMENSIONS for T in LENGTHS]
    lengths = flow_plateaus(grid)
    found = fit_law({"T": [q.T for q in grid], "d": [q.d for q in grid]}, lengths)
    values = np.reshape(lengths, (len(DIMENSIONS), len(LENGTHS)))
    draw_law(law, LENGTHS, values, np.reshape(_fitted(found, lengths), values.shape), [f"d = {d}" for d in DIMENSIONS])
    law.set(xlabel="T", title=f"c. {_says(found)}")
    figure.suptitle(f"Fig. 1: sparse attention emerges; {title_of(run)}", x=0.01, ha="left")
    return figure


def _fitted(law: Law, lengths: Sequence[float]) -> Any:
    """What the law says of each point."""
    return np.asarray(lengths) / np.exp(law.residuals)


def _says(law: Law) -> str:
    powers = " ".join(f"{key}^{exponent.value:.2f}" for key, exponent in law.exponents.items())
    return f"{law.constant:.2f} {powers}, R² = {law.r2:.4f}"


def draw_law(axis: Axes, x: Sequence[float], values: Any, fitted: Any, labels: Sequence[str]) -> None:
    """Plateau lengths [line, x] as marks, and the law through them as dashed lines."""
    for index, (row, line, label) in enumerate(zip(values, fitted, labels, strict=True)):
        axis.plot(x, line, zorder=1, **THEORY | {"lw": 0.8})
        look = {"color": line_style(index)["color"], "marker": MARKS[index % len(MARKS)], "ms": 4}
        axis.plot(x, row, ls="", label=label, **look)
    axis.set(xscale="log", yscale="log", ylabel="plateau length")
    axis.set_xticks(x, [f"{value:g}" for value in x], minor=False)
    axis.set_xticks([], minor=True)
    axis.legend(fontsize=7)


def repetition_figure(T: int) -> Figure:
    """Fig. 2: plateau lengths over d for several B, and for several p, each with its law."""
    figure = Figure(figsize=(8.4, 3.4))
    left, right = figure.subplots(1, 2)
    grid = [Reduced(T, d, B) for B in REPEATS for d in DIMENSIONS]
    lengths = flow_plateaus(grid)
    law = fit_law({"(T/B)": [q.T / q.B for q in grid], "d": [q.d for q in grid]}, lengths)
    _draw_grid(left, lengths, law, [f"B = {B}" for B in REPEATS])
    left.set(title=f"in-context: {_says(law)}")
    grid = [Reduced(T, d, 1, p) for p in PROBABILITIES for d in DIMENSIONS]
    lengths = flow_plateaus(grid)
    law = fit_law({"x": [float(np.sqrt(q.d) * q.T / theory.repetition(q.p, q.d)) for q in grid]}, lengths)
    _draw_grid(right, lengths, law, [f"p = {p:g}" for p in PROBABILITIES])
    right.set(title=f"cross-sample: {_says(law)}\nx = √d T / √(p²d + (1-p)²)")
    figure.suptitle(f"Fig. 2: repetition shortens the plateau; T = {T}", x=0.01, ha="left")
    return figure


def _draw_grid(axis: Axes, lengths: Sequence[float], law: Law, labels: Sequence[str]) -> None:
    shape = len(labels), len(DIMENSIONS)
    draw_law(axis, DIMENSIONS, np.reshape(lengths, shape), np.reshape(_fitted(law, lengths), shape), labels)
    axis.set(xlabel="d")


def landscape_figure(problem: Reduced, time: float) -> Figure:
    """Fig. 6: the loss over (Delta a, w), and the flow from (0, 0) on it up to `time`."""
    figure = Figure(figsize=(5.6, 3.8))
    axis = figure.subplots()
    drop = problem.plateau_law() * np.linspace(0.8, 1.3, 2000)
    columns, delta_a = solve(problem, np.unique(np.concatenate([np.linspace(0, time, 400), drop[drop < time]])))
    w = problem.projection(columns)
    a_axis = np.linspace(-1, delta_a.max() + 1.5, 240)
    w_axis = np.linspace(-2, 1.5 * w.max(), 240)
    A, W = np.meshgrid(a_axis, w_axis)
    loss = problem.loss([W * r / np.sqrt(problem.d) for r in problem.norm], A)
    levels = np.geomspace(1e-4, 10, 26)
    shown = axis.contourf(A, W, np.clip(loss, levels[0], levels[-1]), levels, cmap="viridis", norm="log")
    figure.colorbar(shown, ax=axis, label="loss", ticks=[1e-4, 1e-3, 1e-2, 0.1, 1, 10])
    axis.plot(delta_a, w, color="white", lw=2)
    axis.plot(0, 0, color="white", marker="x", ms=8, mew=2)
    alpha = problem.attention(a_axis)
    valley = problem.equilibrium(alpha)[-1] * np.sqrt(problem.d) / problem.norm[-1]
    axis.plot(a_axis, np.where(valley <= w_axis[-1], valley, np.nan), color="white", ls=":", label="w at equilibrium")
    axis.legend(loc="lower right", labelcolor="white", frameon=False)
    axis.set(xlabel="Δa", ylabel="w", xlim=(a_axis[0], a_axis[-1]), ylim=(w_axis[0], w_axis[-1]))
    axis.set_title(f"Fig. 6: the loss and the flow on it; T = {problem.T}, d = {problem.d}", loc="left")
    return figure


def linearization_figure(d: int) -> Figure:
    """Fig. 7: w and Delta a early on, over sinh and cosh - 1."""
    figure = Figure(figsize=(8.4, 3.2))
    left, right = figure.subplots(1, 2)
    for index, T in enumerate((64, 256, 1024)):
        problem = Reduced(T, d)
        times = np.linspace(0, 1.0 / problem.rate, 300)
        w, delta_a = solve(problem, times)
        curves = (w[0], theory.linear_w), (delta_a, theory.linear_delta_a)
        for axis, (curve, linear) in zip((left, right), curves, strict=True):
            axis.plot(times, curve, label=f"T = {T}", **line_style(index) | {"ls": "-"})
            axis.plot(times, linear(times, problem.rate), **THEORY)
    for axis, name in ((left, "w"), (right, "Δa")):
        axis.plot([], [], label="linearized", **THEORY)
        axis.set(xlabel="time", ylabel=name, xscale="log", yscale="log", ylim=(1e-4, 3), xlim=(1, None))
        axis.legend()
    figure.suptitle(f"Fig. 7: early dynamics over their linearization (A.3.2); d = {d}", x=0.01, ha="left")
    return figure


def late_figure(run: Run, problem: Reduced) -> Figure:
    """Fig. 8: w_inf over alpha; w beside its equilibrium; the Hessian's eigenvalues along the flow."""
    figure = Figure(figsize=(10.5, 3.2))
    left, middle, right = figure.subplots(1, 3)
    alpha = np.geomspace(1e-3, 1, 400)
    for index, T in enumerate((128, 512, 2048)):
        reached = alpha[alpha >= 1 / T]
        left.plot(reached, Reduced(T, problem.d).equilibrium(reached)[0], label=f"T = {T}", **line_style(index))
    left.axhline(np.sqrt(problem.d), label="√d", **OPTIMUM)
    left.set(xlabel="α", ylabel="w at equilibrium", xscale="log", yscale="log", title=f"d = {problem.d}, B = 1")
    left.legend()
    timeline = run.timeline
    inside = timeline.steps <= 2 * problem.plateau_law()
    times = timeline.steps[inside]
    middle.plot(times, timeline.series("w")[inside], label="w", **line_style(0))
    middle.plot(times, timeline.series("w_equilibrium")[inside], label="at equilibrium", **THEORY)
    middle.set(xlabel="time", ylim=(0, 3 * np.sqrt(problem.d)), title=f"T = {problem.T}, d = {problem.d}")
    middle.legend()
    for index, name in enumerate(("largest", "smallest")):
        right.plot(times, timeline.series(f"curvature/{name}")[inside], label=name, **line_style(index))
    right.axhline(1 / problem.d, label="1/d", **OPTIMUM)
    right.set(xlabel="time", title="eigenvalues of the Hessian")
    right.set_yscale("symlog", linthresh=problem.rate)
    right.legend()
    figure.suptitle(f"Fig. 8: w follows its equilibrium after the drop; {title_of(run)}", x=0.01, ha="left")
    return figure


def reduction_figure(run: Run) -> Figure:
    """Fig. 9: loss, attention and w of the trained model over the reduced flow from (0, 0)."""
    task: Any = run.experiment
    problem, lr, timeline = task.reduced, task.config.lr, run.timeline
    steps = np.linspace(0, float(timeline.steps[-1]), 1500)
    w, delta_a = solve(problem, steps * lr)
    theories = {
        "test loss": ("loss", problem.without_repetition.loss(w, delta_a)),
        "α": ("single_location/alpha", problem.attention(delta_a)),
        "w": ("single_location/w", problem.projection(w)),
    }
    figure = Figure(figsize=(10.5, 3.2))
    axes: Any = figure.subplots(1, 3)
    for axis, (label, (name, curve)) in zip(axes, theories.items(), strict=True):
        axis.plot(*timeline.scalar(name), label="SGD" if task.config.sampled else "descent", **line_style(0))
        axis.plot(steps, curve, label="reduced flow", **THEORY)
        axis.set(xlabel="training step", ylabel=label)
    axes[0].legend()
    c = task.config
    figure.suptitle(f"Fig. 9: T = {c.T}, d = {c.d}, B = {c.B}, p = {c.p:g}; {title_of(run)}", x=0.01, ha="left")
    return figure


def cross_sample_figure(T: int, d: int) -> Figure:
    """Fig. 10: test loss, w (dashed: the repeated column) and alpha for several p."""
    figure = Figure(figsize=(10.5, 3.2))
    loss, weights, attention = figure.subplots(1, 3)
    times = np.linspace(0, 1.4 * Reduced(T, d).plateau_law(), 1200)
    for index, p in enumerate((0.0, 0.1, 0.3, 0.5)):
        problem = Reduced(T, d, 1, p, split=True)
        w, delta_a = solve(problem, times)
        look = line_style(index) | {"ls": "-"}
        loss.plot(times, problem.without_repetition.loss(w, delta_a), label=f"p = {p:g}", **look)
        weights.plot(times, w[1] / problem.norm[1], **look)
        weights.plot(times, w[0], **look | {"ls": "--"})
        attention.plot(times, problem.attention(delta_a), **look)
    weights.axhline(1.0, **OPTIMUM)
    weights.plot([], [], color="0.3", label="w / √(d-1)")
    weights.plot([], [], color="0.3", ls="--", label="repeated column")
    for axis, label in ((loss, "test loss, p = 0"), (weights, "share of the target"), (attention, "α")):
        axis.set(xlabel="time", ylabel=label)
    loss.legend()
    weights.legend()
    figure.suptitle(f"Fig. 10: cross-sample repetition; T = {T}, d = {d}", x=0.01, ha="left")
    return figure
