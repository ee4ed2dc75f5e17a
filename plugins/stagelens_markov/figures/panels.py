"""What the paper's figures are made of: panels of excess loss and of KL divergence, and a row of attention maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from stagelens.figures import COLOURS, attention_maps, chosen_steps, composite, line_style
from stagelens_markov.measures import leaders

if TYPE_CHECKING:
    from stagelens import Run

KL, LEADER = "kl_to_references/kl", "head_specialization/leader"
MOMENTS = 5  # at which attention is shown
MAP, BETWEEN = 1.45, 0.12  # inches: the width of a map, and the gap to the next
FLATTEST = 0.5  # inches, the height of a map at least
REFERENCES = {
    "chain": "predictor of Eq. 3\n(dot: nearest)",
    "contexts": "model that sees c lags\n(dot: nearest)",
    "windows": "n-gram model, n = c\n(dot: nearest)",
}


def draw_excess(axis: Axes, runs: Mapping[str, Run]) -> None:
    for index, (label, run) in enumerate(runs.items()):
        steps, excess = run.timeline.scalar("excess")
        axis.plot(steps[1:], excess[1:], label=label, **line_style(index))
    axis.set(xscale="log", xlabel="training step", ylabel="excess loss (nats)", ylim=(0, None))


def draw_divergence(axis: Axes, run: Run) -> None:
    """KL from each reference to the model, with a dot at its least."""
    names, steps = run.timeline.column(KL).coordinate("reference"), run.timeline.steps
    for index, (name, values) in enumerate(zip(names, run.timeline.series(KL).T, strict=True)):
        look = line_style(index)
        axis.plot(steps[1:], values[1:], label=name, **look)
        least = max(int(values.argmin()), 1)
        axis.plot(steps[least], values[least], marker="o", ms=4.5, color=look["color"], mec="white", mew=0.7, zorder=3)
    axis.set(xscale="log", xlabel="training step", ylabel="KL(reference ‖ model) (nats)", ylim=(0, None))


def references_of(run: Run) -> str:
    """What the references of a run are, for the title of a legend."""
    return REFERENCES[run.manifest.config["compare"]]


@dataclass(frozen=True)
class AttentionRow:
    """Mean attention of the queries that predict at a few moments of a run, side by side on one scale."""

    run: Run

    @cached_property
    def maps(self) -> dict[int, Any]:
        """By step, [head, query, key]."""
        task: Any = self.run.experiment
        return {step: attention_maps(self.run, step)[0][:, task.queries()] for step in chosen_steps(self.run, MOMENTS)}

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the whole row in inches, without what stands around it."""
        _, queries, keys = next(iter(self.maps.values())).shape
        return len(self.maps) * (MAP + BETWEEN) - BETWEEN, max(MAP * queries / keys, FLATTEST)

    def draw(self, figure: Figure, left: float, bottom: float) -> None:
        """Draws the row with its lower left corner at (left, bottom) inches, and a legend of the heads below it."""
        width, height = figure.get_size_inches()
        full = max(float(maps.max()) for maps in self.maps.values())
        for number, (step, maps) in enumerate(self.maps.items()):
            corner = left + number * (MAP + BETWEEN)
            axis = figure.add_axes((corner / width, bottom / height, MAP / width, self.size[1] / height))
            axis.imshow(composite(maps, full), interpolation="nearest", aspect="auto")
            axis.set_title(f"step {step}", fontsize=8)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set(visible=True, color="0.7", lw=0.6)
            if not number:
                axis.set_ylabel("← query", fontsize=7, color="0.3")
                axis.set_xlabel("key →", fontsize=7, color="0.3", loc="left", labelpad=2)
        _number_heads(axis, maps)
        self._name_heads(figure, (left + 0.5) / width, (bottom - 0.06) / height, full)

    def _name_heads(self, figure: Figure, x: float, y: float, full: float) -> None:
        handles: list[Any] = [Patch(color=COLOURS[h % len(COLOURS)]) for h in range(len(self.heads))]
        labels = [*self.heads, f"full colour: attention {full:.2f}; heads that overlap darken"]
        place: Any = {"loc": "upper left", "bbox_to_anchor": (x, y), "borderaxespad": 0.0, "frameon": False}
        look: Any = {"fontsize": 7, "handlelength": 1.0, "columnspacing": 1.5, "ncols": len(labels)}
        figure.legend([*handles, Patch(color="none")], labels, **place, **look)

    @property
    def heads(self) -> Sequence[str]:
        """Each head's name, with the interval that has most of its attention in the end where that was measured."""
        count = len(next(iter(self.maps.values())))
        if LEADER not in self.run.timeline:
            return [f"head {head}" for head in range(count)]
        return [f"head {head}, ends at {where}" for head, where in enumerate(leaders(self.run.timeline)[-1])]


def _number_heads(axis: Axes, maps: Any) -> None:
    """Each head's number where it looks, [head, query, key], so that heads can be told apart without colours too."""
    heads, queries, _ = maps.shape
    look: Any = {"color": "white", "size": 6, "ha": "center", "va": "center", "weight": "bold"}
    for head, pattern in enumerate(maps):
        query = (head + 1) * queries // (heads + 1)
        edge = [withStroke(linewidth=1.2, foreground="black")]
        axis.text(pattern[query].argmax(), query, str(head), path_effects=edge, **look)
