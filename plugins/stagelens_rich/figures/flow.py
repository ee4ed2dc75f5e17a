"""The flow: Lemma 2's first layer, and Theorem 4's scaling of the plateau."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from stagelens import Run
from stagelens.figures import THEORY, line_style, panels, title_of
from stagelens_rich.claims.measures import BASE, VARIABLES
from stagelens_rich.flow import solved_times


def first_layer(run: Run) -> Figure:
    """Draws p(1,1) and the attention to the previous token in Training Stage I."""
    figure, (axes,) = panels(1, 2, f"{title_of(run)}: the first layer (Lemma 2)", size=(4.0, 3.0))
    labels = (("p_first", "p(1,1)"), ("previous_token", "attention to s - 1, at s = L"))
    for axis, (name, label) in zip(axes, labels, strict=True):
        t, values = run.timeline.scalar(name)
        axis.plot(t[1:], values[1:], **line_style(0))
        axis.set(xscale="log", xlabel="time", ylabel=label)
    axes[1].axhline(0.99, label="0.99", **THEORY)
    axes[1].legend()
    return figure


def scaling(run: Run) -> Figure:
    """Draws T_II and T_III of flows over each variable of Theorem 4, with its power law; other keys as in the run."""
    config = run.experiment.config
    base = {key: getattr(config, key) for key in (*BASE, "tokens", "system")}
    figure, (axes,) = panels(
        1, 4, f"{title_of(run)}: the length of the plateau (Theorem 4)", size=(2.75, 3.2), sharey=True
    )
    for axis, (key, variable) in zip(axes, VARIABLES.items(), strict=True):
        times = [solved_times(**{**base, key: value}) for value in variable.grid]
        x = variable.of(np.array(variable.grid, dtype=float))
        for index, name in enumerate(("T_III", "T_II")):
            axis.plot(x, [getattr(t, name) for t in times], marker="os"[index], label=name, **line_style(index))
        law = x**variable.exponent
        end = np.array([t.T_III for t in times], dtype=float)
        axis.plot(x, law * np.exp(np.mean(np.log(end / law))), label="Theorem 4", **THEORY)
        axis.set(xscale="log", yscale="log", xlabel=variable.label, title=f"exponent {variable.exponent}")
        axis.set_xticks(x, [f"{tick:.3g}" for tick in x], fontsize=6)
        axis.minorticks_off()
    axes[0].set_ylabel("time")
    axes[0].legend()
    return figure
