"""The paper's figures. A run draws those of its preset: a preset with a figure's name draws that figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from stagelens import Run
from stagelens_linear_icl.claims.variations import FIG_2, FIG_8
from stagelens_linear_icl.figures import main, variations


def figures_for(run: Run, task: Any) -> Mapping[str, Figure]:
    """Returns the figures of the run's preset. Presets `quick` and `paper` draw Fig. 1."""
    if task.id == "linear-icl/sequences":
        return {"fig3": variations.softmax_figure(run)} if task.config.attention == "softmax" else {}
    ranks = variations.ranks_figure
    by_preset: dict[str, Callable[[], Figure]] = {
        "fig2": lambda: ranks(task, FIG_2, "Fig. 2: the plateaus at multiples of R are long"),
        "fig4": lambda: variations.scales_figure(task),
        "fig5": lambda: main.seeds_figure(run, task, "Fig. 5: the next-token loss (Eq. 9) also falls level by level"),
        "fig7": lambda: variations.values_by_rank_figure(task, (2, 3, 4)),
        "fig8": lambda: ranks(task, FIG_8, "Fig. 8: as Fig. 2, with further ranks R"),
        "fig9": lambda: ranks(task, (1, 2, 3, 4), "Fig. 9: with repeated eigenvalues plateaus have unequal lengths"),
    }
    if run.manifest.preset in by_preset:
        return {run.manifest.preset: by_preset[run.manifest.preset]()}
    return {
        "fig1a": main.seeds_figure(run, task, "Fig. 1a: the loss drops from level to level"),
        "fig1b": main.values_figure(run),
        "fig1c": main.keys_figure(task),
    }
