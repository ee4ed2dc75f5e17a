"""The paper's figures, from runs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from stagelens.figures import THEORY, line_style
from stagelens_recall import theory

if TYPE_CHECKING:
    from stagelens import Run

BETA, MASS = "recall_circuit/beta", "head_specialization/mass"
MOMENTS = 5  # at which attention is shown


def staged_learning(run: Run) -> Figure | None:
    """Figs. 1 and 4: the loss over the plateaus of theory, the betas, and where each head looks at the plateaus."""
    timeline = run.timeline
    if BETA not in timeline or MASS not in timeline or len(timeline.steps) < 2:
        return None
    steps, betas = timeline.steps, timeline.series(BETA)  # [step], [step, head]
    heads, order = betas.shape[1], run.experiment.config.order
    masses = timeline.series(MASS)[:, 0, :, :order]  # [step, head, token]
    figure = Figure(figsize=(7.2, 6.2))
    rows: Any = figure.subfigures(2, 1, height_ratios=(2.2, 1))
    loss, beta = rows[0].subplots(2, 1, sharex=True)
    loss.plot(*timeline.scalar("loss"), **line_style(0))
    levels = [p for p in run.experiment.predictions() if p.kind == "level"]
    for level in levels:
        loss.axhline(level.expected, zorder=0, **THEORY | {"lw": 0.8})
    loss.set_ylabel("loss")
    for h in range(heads):
        beta.plot(steps, betas[:, h], label=f"head {h + 1}", **line_style(h))
    beta.set(ylabel="beta", xlabel="step")
    beta.legend()
    moments = _plateau_moments(betas, len(steps))
    for axis, moment in zip(rows[1].subplots(1, len(moments), sharey=True), moments, strict=True):
        axis.imshow(masses[moment], vmin=0, vmax=1, cmap="Greys", aspect="auto")
        axis.set_title(f"step {steps[moment]}", fontsize=8)
        axis.set_xticks(range(order), range(1, order + 1))
        axis.set_yticks(range(heads), [f"head {h + 1}" for h in range(heads)])
        axis.set_xlabel("token from the end", fontsize=8)
    figure.suptitle(f"{run.name}: stages, betas and attention (Figs. 1 and 4)", x=0.01, ha="left")
    return figure


def _plateau_moments(betas: Any, points: int) -> list[int]:
    """Indices of measurements: the first, one between each two heads' departures, and the last."""
    left = [int(np.argmax(column > betas.max() / 4)) for column in betas.T if column.max() > betas.max() / 4]
    marks = [0, *sorted(left), points - 1]
    middles = [(a + b) // 2 for a, b in pairwise(marks[1:])]
    return sorted({0, *middles, points - 1})[:MOMENTS]


def first_jump(run: Run) -> Figure | None:
    """Theorem 3.1: alpha and beta in the flow, the drift of its conserved quantity, and the escape-time law."""
    timeline = run.timeline
    if len(timeline.steps) < 2:
        return None
    times, config = timeline.steps[1:], run.experiment.config
    figure = Figure(figsize=(10.0, 3.2))
    growth, drift, law = figure.subplots(1, 3)
    for index, name in enumerate(("alpha", "beta")):
        growth.plot(times, timeline.series(name)[1:, 0], label=f"{name}_1", **line_style(index))
    growth.set(xscale="log", xlabel="time", title="head 1")
    growth.legend()
    for index, form in enumerate(("proof", "statement")):
        values = timeline.series(f"conserved/{form}")[:, 0]
        distance = np.maximum(np.abs(values - values[0])[1:], 1e-17)
        drift.plot(times, distance, label=f"sign of the {form}", **line_style(index))
    drift.set(xscale="log", yscale="log", xlabel="time", title="drift of f(alpha) - beta²/4 (3.1d)")
    drift.legend()
    epsilon = np.geomspace(0.005, 0.2, 8)
    measured = [escape_from(float(e), config.order, config.responses) for e in epsilon]
    law.plot(epsilon, measured, ls="", marker="o", label="measured")
    law.plot(
        epsilon, [theory.escape_time(e, config.order, config.responses) for e in epsilon], label="theory", **THEORY
    )
    law.set(xscale="log", yscale="log", xlabel="initial beta", title="escape time")
    law.legend()
    figure.suptitle(f"{run.name}: the first jump (Theorem 3.1)", x=0.01, ha="left")
    return figure


def escape_from(epsilon: float, order: int, responses: int) -> float:
    """The time at which the loss of Theorem 3.1's equations is half-way down, from alpha = 0 and beta = epsilon."""
    from stagelens.experiments import integrate
    from stagelens_recall.flow import GradientFlow, RecallFlowConfig

    time = 3 * theory.escape_time(epsilon, order, responses)
    config = RecallFlowConfig(
        order=order, responses=responses, heads=1, betas=(epsilon,), system="first-jump", time=time, points=2
    )
    return integrate(GradientFlow(config)).events["escape"]
