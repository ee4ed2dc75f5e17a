"""Attention maps at the ends of the stages, from checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from stagelens.figures.drawing import stages_of, title_of
from stagelens.figures.style import COLOURS, grid, headline

if TYPE_CHECKING:
    from stagelens.runs import Run

MOST_LAYERS = 6
PANEL = 1.45  # inches, the longer side of a map
Maps = dict[int, "np.ndarray[Any, np.dtype[np.float64]]"]


def attention_figure(run: Run, moments: int = 6) -> Figure | None:
    """Mean attention maps at the stages' ends: a row per head (and layer), a column per moment."""
    from stagelens.task import Task

    if not isinstance(run.experiment, Task) or not run.checkpoints:
        return None
    chosen = chosen_steps(run, moments)
    maps = [attention_maps(run, step) for step in chosen]
    if not maps[0]:
        return None
    rows = [(layer, head) for layer in list(maps[0])[:MOST_LAYERS] for head in range(len(maps[0][layer]))]
    if len(rows) > 8:
        return _composite_figure(run, chosen, maps)
    return _heads_figure(run, chosen, maps, rows)


def _heads_figure(run: Run, chosen: dict[int, str], maps: list[Maps], rows: list[tuple[int, int]]) -> Figure:
    """One small map per head and moment, on one scale of grey."""
    query, key = next(iter(maps[0].values())).shape[1:]
    scale = PANEL / max(query, key)
    several = len({layer for layer, _ in rows}) > 1
    margin = (0.55 if several else 0.4, 1.0, 0.75, 0.3)
    figure, axes = grid((len(rows), len(chosen)), (scale * key, scale * query), (0.08, 0.12), margin)
    top = max(float(np.abs(pattern).max()) for layers in maps for pattern in layers.values())
    low = 0.0 if all((pattern >= 0).all() for layers in maps for pattern in layers.values()) else -top
    look: Any = {"vmin": low, "vmax": top, "cmap": "Greys" if low == 0 else "PuOr", "interpolation": "nearest"}
    image = None
    for (row, (layer, head)), (column, layers) in _pairs(rows, maps):
        axis = axes[row, column]
        image = axis.imshow(layers[layer][head], aspect="equal", **look)
        _bare(axis)
        if column == 0:
            axis.set_ylabel(f"layer {layer}\nhead {head}" if several else f"head {head}", fontsize=8)
    _name_columns(axes, chosen)
    axes[-1, 0].set_xlabel("key →", fontsize=7, color="0.4")
    assert image is not None
    middle, width = axes[0, -1].get_position(), figure.get_figwidth()
    beside = figure.add_axes((middle.x1 + 0.12 / width, middle.y0, 0.12 / width, middle.height))
    figure.colorbar(image, cax=beside, label="mean attention")
    headline(figure, f"{title_of(run)}: attention (query down, key across) at the stages' ends")
    return figure


def _composite_figure(run: Run, chosen: dict[int, str], maps: list[Maps]) -> Figure:
    """One map per layer and moment, the heads as colours that add up: for models of many heads."""
    layers = list(maps[0])[:MOST_LAYERS]
    query, key = maps[0][layers[0]].shape[1:]
    scale = PANEL / max(query, key)
    figure, axes = grid((len(layers), len(chosen)), (scale * key, scale * query), (0.08, 0.12), (0.4, 0.15, 0.75, 0.45))
    for (row, layer), (column, found) in _pairs(layers, maps):
        axes[row, column].imshow(composite(found[layer]), aspect="equal", interpolation="nearest")
        _bare(axes[row, column])
        if column == 0:
            axes[row, column].set_ylabel(f"layer {layer}", fontsize=8)
    _name_columns(axes, chosen)
    heads = len(maps[0][layers[0]])
    handles = [Patch(color=COLOURS[h % len(COLOURS)], label=f"head {h}") for h in range(heads)]
    if heads <= len(COLOURS):
        figure.legend(handles=handles, loc="lower center", ncols=heads)
    headline(figure, f"{title_of(run)}: attention (query down, key across), heads added up")
    return figure


def attention_maps(run: Run, step: int) -> Maps:
    """The mean attention pattern of each layer at `step`, [head, query, key], on the evaluation batch."""
    from stagelens import Recorder
    from stagelens.batches import eval_batch

    task: Any = run.experiment
    recorder = Recorder(run.model_at(step), [_mean_pattern()], eval_batch(task), task=task)
    if "mean_pattern" not in recorder.probes:
        return {}
    found = [reading for reading in recorder.measure(step) if reading.name.startswith("mean_pattern/")]
    return {int(reading.name.rpartition("/")[2]): np.nan_to_num(reading.array()) for reading in found}


def _mean_pattern() -> Any:
    """A probe with one reading per layer, [head, query, key]; layers may differ in all three."""
    from stagelens import Probe, Reading
    from stagelens.probing import layers

    class MeanPattern(Probe):
        name = "mean_pattern"
        hooks = ("attn.hook_pattern",)

        def reduce(self, activation: Any, site: Any, scene: Any) -> Any:  # noqa: ARG002
            return activation.mean(0)

        def readings(self, reduced: Any, scene: Any) -> Any:  # noqa: ARG002
            for layer, pattern in zip(layers(reduced), reduced.values(), strict=True):
                yield Reading(str(layer), pattern, ("head", "query", "key"))

    return MeanPattern


def composite(pattern: Any) -> Any:
    """[head, query, key] -> an image [query, key, 3] on white, each head darkening it in its own colour."""
    colours = np.array([matplotlib.colors.to_rgb(COLOURS[h % len(COLOURS)]) for h in range(len(pattern))])
    strength = np.abs(pattern) / max(np.abs(pattern).max(), 1e-12)  # [head, query, key]
    return np.clip(1 - np.einsum("hqk,hc->qkc", strength, 1 - colours), 0, 1)


def chosen_steps(run: Run, moments: int) -> dict[int, str]:
    """Checkpoints to look at, each with what it stands for: the first, those nearest to the plateaus' ends, the last.

    Only checkpoints are chosen, so that nothing is trained again. With few plateaus, others fill up evenly.
    """
    saved = np.array(run.checkpoints)
    chosen = {int(saved[0]): "start", int(saved[-1]): "end"}
    plateaus = [stage for stage in stages_of(run) if stage.kind == "plateau"]
    for number, stage in enumerate(plateaus[:-1], start=1):
        if len(chosen) < moments:
            chosen.setdefault(int(saved[np.abs(saved - stage.end).argmin()]), f"end of plateau {number}")
    for extra in np.linspace(0, len(saved) - 1, moments).round().astype(int):
        if len(chosen) < moments:
            chosen.setdefault(int(saved[extra]), "")
    return dict(sorted(chosen.items()))


def _pairs(rows: list[Any], columns: list[Maps]) -> Any:
    return (((r, row), (c, column)) for r, row in enumerate(rows) for c, column in enumerate(columns))


def _bare(axis: Any) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(visible=True, color="0.7", lw=0.6)


def _name_columns(axes: Any, chosen: dict[int, str]) -> None:
    for axis, (step, what) in zip(axes[0], chosen.items(), strict=True):
        axis.set_title(f"step {step}\n{what}", fontsize=7.5)
