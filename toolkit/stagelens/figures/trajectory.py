"""The trajectory of a run: the first two principal components of all readings, coloured by joint stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens.figures.drawing import title_of, x_label
from stagelens.figures.heat_map import joint_stages_of
from stagelens.figures.style import COLOURS, grid, headline
from stagelens.stages import components, tables_of

if TYPE_CHECKING:
    from stagelens.runs import Run
    from stagelens.stages import JointStages

MARKED = 8  # steps that are written next to the curve, at most
APART = 0.1  # of the curve's width or height: nearer steps are not written twice


def trajectory_figure(run: Run) -> Figure | None:
    """Draws where the model is in the plane of the first two components of all readings, at each step."""
    joint = joint_stages_of(run)
    steps, tables = tables_of(run.timeline)
    if joint is None or len(steps) < 4:
        return None
    found = components([table.values for table in tables], rotate=False)
    if len(found.shares) < 2:
        return None
    figure, axes = grid((1, 1), panel=(4.6, 3.8), gap=(0, 0), margin=(0.75, 2.1, 0.45, 0.5))
    axis = axes[0, 0]
    x, y = found.scores[:, 0], found.scores[:, 1]
    for start, end, colour, label in _coloured(joint, whole=bool((steps == np.round(steps)).all())):
        first, last = np.searchsorted(steps, start, "right") - 1, np.searchsorted(steps, end)  # around the stage
        part = slice(max(int(first), 0), int(last) + 1)
        above = 2.1 if label.startswith("transition") else 2.0  # of what lies between two measurements
        axis.plot(x[part], y[part], color=colour, label=label, marker=".", ms=3, lw=1.2, zorder=above)
    _mark(axis, steps, x, y)
    axis.set_xlabel(f"component 1 ({found.shares[0]:.0%} of the variance)")
    axis.set_ylabel(f"component 2 ({found.shares[1]:.0%})")
    axis.margins(0.08)
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0, "fontsize": 7}
    axis.legend(**place, title=f"joint stages, by {x_label(run).split()[-1]}", title_fontsize=7, alignment="left")
    headline(figure, f"{title_of(run)}: where all readings together are, step by step")
    return figure


def _coloured(joint: JointStages, whole: bool) -> list[tuple[float, float, str, str]]:
    """Returns start, end, colour and label of each stage; plateaus are grey. `whole`: steps are integers."""
    found, number = [], 0
    for stage in joint:
        span = " to ".join(f"{end:.0f}" if whole or end >= 100 else f"{end:.3g}" for end in (stage.start, stage.end))
        if stage.kind == "transition":
            number += 1
            found.append((stage.start, stage.end, COLOURS[(number - 1) % len(COLOURS)], f"transition {number}: {span}"))
        else:
            found.append((stage.start, stage.end, "0.65", f"plateau: {span}"))
    return found


def _mark(axis: Axes, steps: Any, x: Any, y: Any) -> None:
    """Writes the first step, the last one, and some between them that are far apart, next to their points."""
    length = np.append(0.0, np.cumsum(np.hypot(np.diff(x), np.diff(y))))
    wanted = np.clip(np.searchsorted(length, np.linspace(0, length[-1], MARKED)), 0, len(steps) - 1)
    points = np.stack([x, y], axis=-1) / np.maximum([np.ptp(x), np.ptp(y)], np.finfo(float).tiny)
    marked: list[int] = []
    for index in dict.fromkeys([0, len(steps) - 1, *wanted.tolist()]):
        if all(np.abs(points[index] - points[other]).max() > APART for other in marked):
            marked.append(index)
            axis.plot(x[index], y[index], "o", ms=4, mfc="white", mec="0.2", mew=0.8, zorder=3)
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8}
            place: Any = {"xytext": (5, 5), "textcoords": "offset points", "fontsize": 7, "color": "0.2"}
            step = steps[index].item()
            axis.annotate(f"{step:.0f}" if step >= 1000 else f"{step:.4g}", (x[index], y[index]), bbox=behind, **place)
