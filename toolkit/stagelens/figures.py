"""The figures that every run gets: loss and KL, heads over groups, probes, attention maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.patches
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from stagelens.runs import Run

FOLDER = "figures"
# Okabe and Ito's palette, which the colour-blind can tell apart, ordered so that neighbours differ in lightness too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", "-.", ":")
STYLE: Any = {
    "figure.dpi": 120,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS),
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
}


@contextmanager
def styled() -> Iterator[None]:
    """One style for every figure."""
    with matplotlib.rc_context(STYLE):
        yield


def write_figures(run: Run) -> list[Path]:
    """Draws all figures of `run` into its folder and returns their files."""
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    files = []
    with styled():
        for name, figure in figures_of(run).items():
            for ending in ("png", "svg"):
                figure.savefig(folder / f"{name}.{ending}")
            files.append(folder / f"{name}.png")
    return files


def figures_of(run: Run) -> dict[str, Figure]:
    """Every figure that the run's timeline can fill, by name."""
    drawn: dict[str, Figure | None] = {
        "loss": loss_figure(run),
        "specialization": specialization_figure(run),
        "probes": probes_figure(run),
        "attention": attention_figure(run),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None} | dict(run.experiment.figures(run))


def loss_figure(run: Run) -> Figure | None:
    """The loss with its stages; below it, in one panel each, the excess and the KL to the references."""
    timeline = run.timeline
    panels = [name for name in ("loss", "excess", "kl_to_references/kl") if name in timeline]
    if not panels:
        return None
    figure = Figure(figsize=(7, 1 + 2 * len(panels)))
    axes: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, panels, strict=True):
        draw_series(axis, run, name)
        shade_stages(axis, run)
        axis.set_ylabel(
            {"kl_to_references/kl": "KL(reference ‖ model), nats"}.get(
                name, f"{name}, nats" if name == "excess" else name
            )
        )
    if "train_loss" in timeline and panels[0] == "loss":
        axes[0].plot(
            timeline.steps,
            timeline.series("train_loss"),
            color="0.7",
            lw=0.8,
            label="training batch",
            zorder=1,
        )
        axes[0].legend()
    _label_transitions(axes[0], run)
    axes[-1].set_xlabel(x_label(run))
    axes[0].set_title(title_of(run), loc="left", pad=16)
    return figure


def specialization_figure(run: Run) -> Figure | None:
    """Each head's attention mass over the groups (or lags) through training, one panel per head, one row per layer."""
    name = "head_specialization/mass"
    if name not in run.timeline:
        return None
    column, values = run.timeline.column(name), run.timeline.series(name)  # [step, layer, head, group]
    n_layers, n_heads, n_groups = values.shape[1:]
    figure = Figure(figsize=(2.4 * n_heads + 1.2, 2.2 * n_layers + 0.6))
    axes: Any = figure.subplots(n_layers, n_heads, sharex=True, sharey=True, squeeze=False)
    for layer, head in np.ndindex(n_layers, n_heads):
        axis = axes[layer, head]
        _draw_masses(axis, run.timeline.steps, values[:, layer, head], column.coordinate(column.dims[-1]))
        _shade_phases(axis, run, column.coordinate("layer")[layer])
        axis.set_title(f"head {head}" if n_layers == 1 else f"layer {column.coordinate('layer')[layer]} head {head}")
        axis.set_ylim(0, 1)
    for axis in axes[:, 0]:
        axis.set_ylabel("attention mass")
    for axis in axes[-1]:
        axis.set_xlabel(x_label(run))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if n_groups <= 8:
        figure.legend(handles, labels, loc="outside right upper", title=column.dims[-1])
    figure.suptitle(f"{title_of(run)}: where each head looks", x=0.01, ha="left")
    return figure


def probes_figure(run: Run) -> Figure | None:
    """One small panel per reading of every probe; lines are heads, layers or whatever its dims are."""
    names = [
        name for name in run.timeline if "/" in name and name != "head_specialization/mass" and _lines(run, name) <= 24
    ]
    if not names:
        return None
    columns = 3
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.1 * rows + 0.4))
    axes: Any = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axis, name in zip(axes, names, strict=False):
        draw_series(axis, run, name, legend=False)
        axis.set_title(name, fontsize=8)
        labels = run.timeline.column(name).labels
        if labels and len(labels) <= 8:
            axis.set_yticks(range(len(labels)), labels)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    for axis in axes[max(0, len(names) - columns) : len(names)]:
        axis.set_xlabel(x_label(run))
        axis.tick_params(labelbottom=True)
    figure.suptitle(f"{title_of(run)}: probes", x=0.01, ha="left")
    return figure


def attention_figure(run: Run, moments: int = 6) -> Figure | None:
    """Mean attention maps at a few checkpoints, one row per layer, the heads as colours that add up."""
    from stagelens.task import Task

    if not isinstance(run.experiment, Task) or not run.checkpoints:
        return None
    steps = _chosen_steps(run, moments)
    maps = [attention_maps(run, step) for step in steps]
    if not maps[0]:
        return None
    n_layers = len(maps[0])
    figure = Figure(figsize=(2.0 * len(steps) + 0.8, 2.2 * n_layers + 0.6))
    axes: Any = figure.subplots(n_layers, len(steps), squeeze=False)
    for column, (step, layers) in enumerate(zip(steps, maps, strict=True)):
        for row, (layer, pattern) in enumerate(layers.items()):
            axis = axes[row, column]
            axis.imshow(composite(pattern), aspect="equal", interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            if row == 0:
                axis.set_title(f"step {step}")
            if column == 0:
                axis.set_ylabel("query" if n_layers == 1 else f"layer {layer}, query")
            if row == n_layers - 1:
                axis.set_xlabel("key")
    n_heads = next(iter(maps[0].values())).shape[0]
    handles = [matplotlib.patches.Patch(color=COLOURS[h % len(COLOURS)], label=f"head {h}") for h in range(n_heads)]
    if n_heads <= 8:
        figure.legend(handles=handles, loc="outside lower center", ncols=n_heads)
    figure.suptitle(f"{title_of(run)}: mean attention, heads added up", x=0.01, ha="left")
    return figure


def attention_maps(run: Run, step: int) -> dict[int, np.ndarray[Any, np.dtype[np.float64]]]:
    """The mean attention pattern of each layer at `step`, [head, query, key], on the evaluation batch."""
    from stagelens import Recorder
    from stagelens.batches import eval_batch
    from stagelens.probing import probe

    @probe(hooks="attn.hook_pattern", dims=("head", "query", "key"), name="mean_pattern")
    def mean_pattern(pattern: Any, scene: Any) -> Any:  # noqa: ARG001
        return pattern.mean(0)

    task: Any = run.experiment
    recorder = Recorder(run.model_at(step), [mean_pattern], eval_batch(task), task=task)
    if "mean_pattern" not in recorder.probes:
        return {}
    (reading,) = [r for r in recorder.measure(step) if r.name == "mean_pattern/value"]
    return dict(zip(reading.coords["layer"], np.nan_to_num(reading.array()), strict=True))


def composite(pattern: Any) -> Any:
    """[head, query, key] -> an image [query, key, 3] on white, each head darkening it in its own colour."""
    colours = np.array([matplotlib.colors.to_rgb(COLOURS[h % len(COLOURS)]) for h in range(len(pattern))])
    strength = np.abs(pattern) / max(np.abs(pattern).max(), 1e-12)  # [head, query, key]
    return np.clip(1 - np.einsum("hqk,hc->qkc", strength, 1 - colours), 0, 1)


def draw_series(axis: Axes, run: Run, name: str, legend: bool = True) -> None:
    """A series over steps; one line for each place along its dims, told apart by colour and dash."""
    column, values = run.timeline.column(name), run.timeline.series(name)
    flat = values.reshape(len(values), -1)
    places = list(np.ndindex(*column.shape))
    for index, place in enumerate(places):
        label = " ".join(_place(column, dim, at) for dim, at in zip(column.dims, place, strict=True))
        line: Any = {"color": COLOURS[index % len(COLOURS)], "ls": DASHES[index // len(COLOURS) % len(DASHES)]}
        axis.plot(
            run.timeline.steps,
            flat[:, index],
            label=label,
            drawstyle="steps-post" if column.labels else "default",
            **line,
        )
    if legend and 1 < len(places) <= 8:
        axis.legend()


def shade_stages(axis: Axes, run: Run) -> None:
    """Transitions of the run's metric as grey bands, their steepest points as thin lines."""
    for stage in _stages(run):
        if stage.kind == "transition":
            axis.axvspan(stage.start, stage.end, color="0.92", zorder=0)
            axis.axvline(stage.at, color="0.6", lw=0.6, zorder=0)


def title_of(run: Run) -> str:
    return f"{run.manifest.task}, seed {run.manifest.seed}"


def x_label(run: Run) -> str:
    return "time" if run.manifest.kind == "flow" else "training step"


def _stages(run: Run) -> Sequence[Any]:
    from stagelens.errors import StagelensError

    try:
        found: Sequence[Any] = run.stages()
        return found
    except StagelensError:
        return ()


def _label_transitions(axis: Axes, run: Run) -> None:
    for stage in _stages(run):
        if stage.kind == "transition" and stage.name:
            place: Any = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom", "fontsize": 7}
            axis.annotate(stage.name, (stage.at, 1.0), **place)


def _shade_phases(axis: Axes, run: Run, layer: Any) -> None:
    for phase in run.phases:
        if phase["layer"] == layer:
            grey = {"diffuse": "1.0", "competitive": "0.93", "cooperative": "0.86"}[phase["phase"]]
            axis.axvspan(phase["start"], phase["end"], color=grey, zorder=0)


def _draw_masses(axis: Axes, steps: Any, masses: Any, names: Sequence[Any]) -> None:
    if len(names) > 8:  # lags: too many for lines
        axis.stackplot(steps, masses.T, colors=matplotlib.colormaps["viridis"](np.linspace(0, 1, len(names))))
        return
    for index, name in enumerate(names):
        colour = "0.6" if name == "rest" else COLOURS[index % len(COLOURS)]
        axis.plot(
            steps,
            masses[:, index],
            color=colour,
            ls=":" if name == "rest" else DASHES[index % 3],
            label=str(name),
        )


def _chosen_steps(run: Run, moments: int) -> list[int]:
    """Checkpoints just before each transition of the metric and the last one, filled up evenly."""
    saved = np.array(run.checkpoints)
    ends = [stage.end for stage in _stages(run) if stage.kind == "plateau"]
    wanted = [0.0, *ends, float(saved[-1])]
    nearest = {int(saved[np.abs(saved - at).argmin()]) for at in wanted}
    for extra in np.linspace(0, len(saved) - 1, moments).round().astype(int):
        if len(nearest) < moments:
            nearest.add(int(saved[extra]))
    return sorted(nearest)[:: max(1, len(nearest) // moments)]


def _lines(run: Run, name: str) -> int:
    return run.timeline.column(name).size


def _place(column: Any, dim: str, at: int) -> str:
    label = column.coordinate(dim)[at]
    if isinstance(label, str):
        return label
    return "" if dim == "layer" and column.shape[column.dims.index("layer")] == 1 else f"{dim} {label}"
