"""Theorem 3.1: the first jump of the flow."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens import Run, Timeline
from stagelens.experiments import integrate
from stagelens.figures import THEORY, line_style, panels, title_of
from stagelens_recall import theory
from stagelens_recall.config import RecallFlowConfig
from stagelens_recall.flow import RecallFlow

EPSILONS = np.geomspace(0.005, 0.2, 8)  # initial betas of the escape-time panel
LEAST_DRIFT = 1e-17  # a drift of exactly 0 is drawn here


def first_jump(run: Run) -> Figure | None:
    """Draws alpha and beta in the flow, the drift of the conserved quantity, and the escape time over initial beta.

    Returns None if the run has a single recorded time.
    """
    timeline, config = run.timeline, run.experiment.config
    if len(timeline.steps) < 2:
        return None
    figure, ((growth, drift, escape),) = panels(
        1, 3, f"{title_of(run)}: the first jump (Theorem 3.1)", size=(3.35, 3.2)
    )
    for index, name in enumerate(("alpha", "beta")):
        growth.plot(timeline.steps[1:], timeline.series(name)[1:, 0], label=f"{name}_1", **line_style(index))
    growth.set(xscale="log", xlabel="time", title="head 1")
    _draw_drift(drift, timeline)
    _draw_escape(escape, config.order, config.responses)
    for axis in (growth, drift, escape):
        axis.legend()
    return figure


def _draw_drift(axis: Axes, timeline: Timeline) -> None:
    for index, form in enumerate(("proof", "statement")):
        values = timeline.series(f"conserved/{form}")[:, 0]
        distance = np.maximum(np.abs(values - values[0])[1:], LEAST_DRIFT)
        axis.plot(timeline.steps[1:], distance, label=f"sign of the {form}", **line_style(index))
    axis.set(xscale="log", yscale="log", xlabel="time", title="drift of f(alpha) - beta²/4 (3.1d)")


def _draw_escape(axis: Axes, order: int, responses: int) -> None:
    measured = [escape_from(float(epsilon), order, responses) for epsilon in EPSILONS]
    axis.plot(EPSILONS, measured, ls="", marker="o", label="measured")
    expected = [theory.escape_time(epsilon, order, responses) for epsilon in EPSILONS]
    axis.plot(EPSILONS, expected, label="theory", **THEORY)
    axis.set(xscale="log", yscale="log", xlabel="initial beta", title="escape time")


def escape_from(epsilon: float, order: int, responses: int) -> float:
    """Returns the time at which the loss of Theorem 3.1's equations is half-way down, from beta = epsilon."""
    time = 3 * theory.escape_time(epsilon, order, responses)
    config = RecallFlowConfig(
        order=order, responses=responses, heads=1, betas=(epsilon,), system="first-jump", time=time, points=2
    )
    return integrate(RecallFlow(config)).events["escape"]
