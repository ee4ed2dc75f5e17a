"""Fig. 4: gradient descent and Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from stagelens.experiments import eval_batch, trained
from stagelens.figures import draw_levels, levels_of, line_style, panels
from stagelens_rich.config import RATES
from stagelens_rich.figures.phases import LOSSES, LOWEST, visible
from stagelens_rich.tasks.toy import PARTS, HighDim

if TYPE_CHECKING:
    from stagelens import Run

TITLES = {"gd": "gradient descent", "adam": "Adam"}


def optimizers(run: Run) -> Figure:
    """Draws both partial losses under the run's optimizer and under the other one, which is trained here."""
    task: Any = run.experiment
    own = task.config.optimizer
    curves = {
        name: [run.timeline.scalar(part) for part in PARTS] if name == own else _retrained(task, name)
        for name in TITLES
    }
    figure, (axes,) = panels(1, 2, f"{run.name}: D = {task.config.D} (Fig. 4)", size=(4.5, 3.3), sharey=True)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
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
