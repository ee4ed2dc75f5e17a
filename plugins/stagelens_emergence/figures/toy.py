"""Figs. 1, 2 and 6 to 10: the toy model and its flow. A preset with the name of a figure draws that figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens import Law, Run
from stagelens.claims import Lab
from stagelens.figures import THEORY, line_style, panels, title_of
from stagelens_emergence import theory
from stagelens_emergence.claims import measures
from stagelens_emergence.claims.measures import DIMENSIONS, LENGTHS, PROBABILITIES, REPEATS, PlateauFit
from stagelens_emergence.claims.toy import trained
from stagelens_emergence.flow import trajectory
from stagelens_emergence.theory import ReducedModel, paper_flow

MARKERS = ("o", "s", "^", "D", "v", "P")
OPTIMUM: Any = {"color": "0.6", "ls": ":", "lw": 1.0, "zorder": 0.5}
WIDE = (3.5, 3.2)  # inches of a panel of three
LESS_WIDE = (4.2, 3.3)  # inches of a panel of two
RIGHT: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}  # a legend right of its panel, where no line is


def flow_figures(run: Run) -> Mapping[str, Figure]:
    """Returns the figure of the run's preset; Fig. 1 for `quick` and `paper`."""
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
    """Returns Fig. 9: the trained model and the flow of the reduced one."""
    needed = {"loss", "single_location/w", "single_location/alpha"}
    return {"fig9": reduction_figure([run])} if needed <= set(run.timeline) and len(run.timeline.steps) > 1 else {}


def lab_fig9(lab: Lab) -> Figure:
    """Draws Fig. 9 with five seeds, from the runs of S2."""
    return reduction_figure(list(trained(lab.with_seeds(5)).values()))


def emergence_figure(run: Run, problem: ReducedModel) -> Figure:
    """Draws Fig. 1: the loss for several d, w and attention of the run, and plateau lengths over T with their law."""
    title = f"Fig. 1: sparse attention emerges; {title_of(run)}"
    figure, ((loss, state, law),) = panels(1, 3, title, WIDE)
    for index, d in enumerate((16, 64, 256)):
        here = paper_flow(problem.T, d, problem.B, problem.p)
        times = np.linspace(0, 1.6 * here.plateau_law(), 800)
        curve = here.without_repetition.loss(*trajectory(here, times))
        loss.plot(times, curve, label=f"d = {d}", **line_style(index))
    loss.set(xlabel="time", ylabel="test loss", title=f"a. T = {problem.T}")
    loss.legend()
    timeline = run.timeline
    inside = timeline.steps <= 2.5 * problem.plateau_law()
    times, w = timeline.steps[inside], timeline.series("w")[inside]
    state.plot(times, w / np.sqrt(problem.d), label="w / √d", **line_style(0))
    state.plot(times, timeline.series("relevant")[inside], label="attention", **line_style(1))
    state.axhline(1.0, label="optimum", **OPTIMUM)
    state.set(xlabel="time", title=f"b. T = {problem.T}, d = {problem.d}, B = {problem.B}, p = {problem.p:g}")
    state.legend()
    fit = measures.length_fit()
    draw_fit(law, LENGTHS, fit, [f"d = {d}" for d in DIMENSIONS], order="F")
    law.set(xlabel="T", title=f"c. {law_text(fit.law)}")
    return figure


def law_text(law: Law, *names: str) -> str:
    """Returns the law as a panel's title: `1.51 T^0.98 d^0.49, R² = 0.9999`. `names` replace those of the columns."""
    columns = zip(names or law.exponents, law.exponents.values(), strict=True)
    powers = " ".join(f"{name}^{exponent.value:.2f}" for name, exponent in columns)
    return f"{law.constant:.2f} {powers}, R² = {law.r2:.4f}"


def draw_fit(axis: Axes, x: Sequence[float], fit: PlateauFit, labels: Sequence[str], order: Any = "C") -> None:
    """Draws plateau lengths over `x` as markers, one kind for each label, and the power law as dashed lines.

    The problems of `fit` are [label, x]; with `order` "F" they are [x, label].
    """
    values, fitted = (np.reshape(a, (len(labels), len(x)), order=order) for a in (fit.lengths, fit.fitted))
    for index, (row, line, label) in enumerate(zip(values, fitted, labels, strict=True)):
        axis.plot(x, line, zorder=1, **THEORY | {"lw": 0.8})
        marker: Any = {"color": line_style(index)["color"], "marker": MARKERS[index % len(MARKERS)], "ms": 4}
        axis.plot(x, row, ls="", label=label, **marker)
    axis.set(xscale="log", yscale="log", ylabel="plateau length")
    axis.set_xticks(x, [f"{value:g}" for value in x], minor=False)
    axis.set_xticks([], minor=True)
    axis.legend(fontsize=7, **RIGHT)


def repetition_figure(T: int) -> Figure:
    """Draws Fig. 2: plateau lengths over d for several B, and for several p, each with its law."""
    figure, ((left, right),) = panels(1, 2, f"Fig. 2: repetition shortens the plateau; T = {T}", LESS_WIDE)
    fit = measures.in_context_fit(T)
    draw_fit(left, DIMENSIONS, fit, [f"B = {B}" for B in REPEATS])
    left.set(xlabel="d", title=f"in-context: {law_text(fit.law, '(T/B)', 'd')}")
    fit = measures.cross_sample_fit(T)
    draw_fit(right, DIMENSIONS, fit, [f"p = {p:g}" for p in PROBABILITIES])
    law = law_text(fit.law, "x")
    right.set(xlabel="d", title=f"cross-sample: {law}\nx = √d T / √(p²d + (1-p)²)")
    return figure


def landscape_figure(problem: ReducedModel, time: float) -> Figure:
    """Draws Fig. 6: the loss over (Delta a, w), and the flow from (0, 0) on it up to `time`."""
    title = f"Fig. 6: the loss and the flow on it; T = {problem.T}, d = {problem.d}"
    figure, ((axis,),) = panels(1, 1, title, (5.6, 3.8))
    drop = problem.plateau_law() * np.linspace(0.8, 1.3, 2000)
    times = np.unique(np.concatenate([np.linspace(0, time, 400), drop[drop < time]]))
    columns, delta_a = trajectory(problem, times)
    w = problem.projection(columns)
    a_axis = np.linspace(-1, delta_a.max() + 1.5, 240)
    w_axis = np.linspace(-2, 1.5 * w.max(), 240)
    A, W = np.meshgrid(a_axis, w_axis)
    loss = problem.loss([W * r / np.sqrt(problem.d) for r in problem.norm], A)
    levels = np.geomspace(1e-4, 10, 26)
    shown = axis.contourf(A, W, np.clip(loss, levels[0], levels[-1]), levels, cmap="viridis", norm="log")
    figure.colorbar(shown, ax=axis, label="loss", ticks=[1e-4, 1e-3, 1e-2, 0.1, 1, 10])
    axis.plot(delta_a, w, color="white", lw=2, label="flow")
    axis.plot(0, 0, color="white", marker="x", ms=8, mew=2, ls="", label="its start, (0, 0)")
    alpha = problem.attention(a_axis)
    valley = problem.equilibrium(alpha)[-1] * np.sqrt(problem.d) / problem.norm[-1]
    axis.plot(a_axis, np.where(valley <= w_axis[-1], valley, np.nan), color="white", ls=":", label="w at equilibrium")
    axis.legend(loc="lower right", labelcolor="white", facecolor="0.2", edgecolor="none", framealpha=0.6, frameon=True)
    axis.set(xlabel="Δa", ylabel="w", xlim=(a_axis[0], a_axis[-1]), ylim=(w_axis[0], w_axis[-1]))
    return figure


def linearization_figure(d: int) -> Figure:
    """Draws Fig. 7: w and Delta a at early times, with sinh and cosh - 1."""
    title = f"Fig. 7: early dynamics and their linearization (A.3.2); d = {d}"
    figure, ((left, right),) = panels(1, 2, title, LESS_WIDE)
    for index, T in enumerate((64, 256, 1024)):
        problem = paper_flow(T, d)
        times = np.linspace(0, 1.0 / problem.rate, 300)
        w, delta_a = trajectory(problem, times)
        curves = (w[0], theory.linear_w), (delta_a, theory.linear_delta_a)
        for axis, (curve, linear) in zip((left, right), curves, strict=True):
            axis.plot(times, curve, label=f"T = {T}", **line_style(index) | {"ls": "-"})
            axis.plot(times, linear(times, problem.rate), **THEORY)
    for axis, name in ((left, "w"), (right, "Δa")):
        axis.plot([], [], label="linearized", **THEORY)
        axis.set(xlabel="time", ylabel=name, xscale="log", yscale="log", ylim=(1e-4, 3), xlim=(1, None))
        axis.legend()
    return figure


def late_figure(run: Run, problem: ReducedModel) -> Figure:
    """Draws Fig. 8: w_inf over alpha; w and its equilibrium; the Hessian's eigenvalues along the flow."""
    title = f"Fig. 8: w follows its equilibrium after the drop; {title_of(run)}"
    figure, ((left, middle, right),) = panels(1, 3, title, WIDE)
    alpha = np.geomspace(1e-3, 1, 400)
    for index, T in enumerate((128, 512, 2048)):
        reached = alpha[alpha >= 1 / T]
        left.plot(reached, paper_flow(T, problem.d).equilibrium(reached)[0], label=f"T = {T}", **line_style(index))
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
    return figure


def reduction_figure(runs: Sequence[Run]) -> Figure:
    """Draws Fig. 9: loss, attention and w of the trained models, with the reduced flow from (0, 0)."""
    task: Any = runs[0].experiment
    problem, lr = task.reduced, task.config.lr
    steps = np.linspace(0, float(runs[0].timeline.steps[-1]), 1500)
    w, delta_a = trajectory(problem, steps * lr)
    theories = {
        "test loss": ("loss", problem.without_repetition.loss(w, delta_a)),
        "α": ("single_location/alpha", problem.attention(delta_a)),
        "w": ("single_location/w", problem.projection(w)),
    }
    c = task.config
    who = title_of(runs[0]) if len(runs) == 1 else f"{len(runs)} seeds"
    title = f"Fig. 9: T = {c.T}, d = {c.d}, B = {c.B}, p = {c.p:g}; {who}"
    figure, (axes,) = panels(1, 3, title, WIDE)
    for axis, (label, (name, curve)) in zip(axes, theories.items(), strict=True):
        for number, run in enumerate(runs):
            name_of = None if number else "SGD" if task.config.sampled else "descent"
            axis.plot(*run.timeline.scalar(name), label=name_of, **line_style(0) | {"lw": 1.0})
        axis.plot(steps, curve, label="reduced flow", **THEORY)
        axis.set(xlabel="training step", ylabel=label)
    axes[0].legend()
    return figure


def cross_sample_figure(T: int, d: int) -> Figure:
    """Draws Fig. 10: test loss, w (dashed: the repeated column) and alpha for several p."""
    title = f"Fig. 10: cross-sample repetition; T = {T}, d = {d}"
    figure, ((loss, weights, attention),) = panels(1, 3, title, WIDE)
    times = np.linspace(0, 1.4 * paper_flow(T, d).plateau_law(), 1200)
    for index, p in enumerate((0.0, 0.1, 0.3, 0.5)):
        problem = paper_flow(T, d, 1, p, variables=3)
        w, delta_a = trajectory(problem, times)
        style = line_style(index) | {"ls": "-"}
        loss.plot(times, problem.without_repetition.loss(w, delta_a), **style)
        weights.plot(times, w[1] / problem.norm[1], **style)
        weights.plot(times, w[0], **style | {"ls": "--"})
        attention.plot(times, problem.attention(delta_a), label=f"p = {p:g}", **style)
    weights.axhline(1.0, **OPTIMUM)
    weights.plot([], [], color="0.3", label="w / √(d-1)")
    weights.plot([], [], color="0.3", ls="--", label="repeated column")
    for axis, label in ((loss, "test loss, p = 0"), (weights, "fraction of the target"), (attention, "α")):
        axis.set(xlabel="time", ylabel=label)
    weights.legend()
    attention.legend(**RIGHT)
    return figure
