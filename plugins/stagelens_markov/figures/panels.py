"""The parts of the figures: panels of excess loss and of KL divergence, and a row of attention maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullFormatter

from stagelens import Run
from stagelens.figures import COLOURS, attention_maps, chosen_steps, composite, line_style
from stagelens_markov.claims.measures import leaders

KL, LEADER = "kl_to_references/kl", "head_specialization/leader"
MOMENTS = 5  # steps at which attention is shown
MAP = 1.45  # inches, the width of an attention map
BETWEEN = 0.12  # inches between two maps
MIN_HEIGHT = 0.5  # inches, of a map
REFERENCES = {  # the title of the legend, for each value of the config key `compare`
    "chain": "predictor of Eq. 3\n(dot: nearest)",
    "contexts": "model that sees c lags\n(dot: nearest)",
    "windows": "n-gram model, n = c\n(dot: nearest)",
}


def draw_excess(axis: Axes, runs: Mapping[str, Run]) -> None:
    """Draws the excess loss of each run over log time."""
    for index, (label, run) in enumerate(runs.items()):
        steps, excess = run.timeline.scalar("excess")
        axis.plot(steps[1:], excess[1:], label=label, **line_style(index))
    axis.set(xscale="log", xlabel="training step", ylabel="excess loss (nats)", ylim=(0, None))
    axis.xaxis.set_minor_formatter(NullFormatter())


def draw_divergence(axis: Axes, run: Run) -> None:
    """Draws the KL divergence from each reference to the model, with a dot at its minimum."""
    names, steps = run.timeline.column(KL).coordinate("reference"), run.timeline.steps
    for index, (name, values) in enumerate(zip(names, run.timeline.series(KL).T, strict=True)):
        style = line_style(index)
        axis.plot(steps[1:], values[1:], label=name, **style)
        least = max(int(values.argmin()), 1)
        axis.plot(steps[least], values[least], marker="o", ms=4.5, color=style["color"], mec="white", mew=0.7, zorder=3)
    axis.set(xscale="log", xlabel="training step", ylabel="KL(reference ‖ model) (nats)", ylim=(0, None))
    axis.xaxis.set_minor_formatter(NullFormatter())


def legend_options(run: Run) -> Any:
    """Returns the options of a legend that names the references of a run."""
    return {"title": REFERENCES[run.manifest.config["compare"]], "alignment": "left", "title_fontsize": 8}


@dataclass(frozen=True)
class AttentionRow:
    """Mean attention of the predicting queries at a few steps of a run, next to each other on one colour scale."""

    run: Run

    @cached_property
    def maps(self) -> dict[int, Any]:
        """The attention [head, query, key] at each step."""
        task: Any = self.run.experiment
        return {step: attention_maps(self.run, step)[0][:, task.queries()] for step in chosen_steps(self.run, MOMENTS)}

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the row in inches, without titles and legend."""
        _, queries, keys = next(iter(self.maps.values())).shape
        return len(self.maps) * (MAP + BETWEEN) - BETWEEN, max(MAP * queries / keys, MIN_HEIGHT)

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
        style: Any = {"fontsize": 7, "handlelength": 1.0, "columnspacing": 1.5, "ncols": len(labels)}
        figure.legend([*handles, Patch(color="none")], labels, **place, **style)

    @property
    def heads(self) -> Sequence[str]:
        """Each head's name, with the interval that has most of its final attention if that was measured."""
        count = len(next(iter(self.maps.values())))
        if LEADER not in self.run.timeline:
            return [f"head {head}" for head in range(count)]
        return [f"head {head}, ends at {group}" for head, group in enumerate(leaders(self.run.timeline)[-1])]


def _number_heads(axis: Axes, maps: Any) -> None:
    """Writes each head's number where it attends most, so that heads differ without colours too."""
    heads, queries, _ = maps.shape
    style: Any = {"color": "white", "size": 6, "ha": "center", "va": "center", "weight": "bold"}
    for head, pattern in enumerate(maps):
        query = (head + 1) * queries // (heads + 1)
        edge = [withStroke(linewidth=1.2, foreground="black")]
        axis.text(pattern[query].argmax(), query, str(head), path_effects=edge, **style)
