"""Attention maps at the ends of the stages."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from stagelens.figures.drawing import stages_of, title_of
from stagelens.figures.style import COLOURS, grid, headline

if TYPE_CHECKING:
    from stagelens.runs import Run

MOST_LAYERS = 6  # that are drawn
PANEL = 1.45  # inches, the longer side of a map
NARROWEST = 0.3  # inches, the shorter side at least
BAR = 1.45  # inches, the largest height of the colour bar
REPLAY = 5.0  # seconds at most of replaying the training between checkpoints
Maps = dict[int, "np.ndarray[Any, np.dtype[np.float64]]"]


def attention_figure(run: Run, moments: int = 6) -> Figure | None:
    """Draws the mean attention maps at the ends of the stages: a row per layer and head, a column per step."""
    from stagelens.experiments import Task

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
    """Draws one small map per head and step, all on one grey scale."""
    query, key = next(iter(maps[0].values())).shape[1:]
    several = len({layer for layer, _ in rows}) > 1
    margin = (0.75, 1.25, 0.75, 0.3)
    figure, axes = grid((len(rows), len(chosen)), _panel(query, key), (0.08, 0.12), margin)
    top = max(float(np.abs(pattern).max()) for layers in maps for pattern in layers.values())
    low = 0.0 if all((pattern >= 0).all() for layers in maps for pattern in layers.values()) else -top
    look: Any = {"vmin": low, "vmax": top, "cmap": "Greys" if low == 0 else "PuOr", "interpolation": "nearest"}
    image = None
    for (row, (layer, head)), (column, layers) in _pairs(rows, maps):
        axis = axes[row, column]
        image = axis.imshow(layers[layer][head], aspect="auto", **look)
        _bare(axis)
        if column == 0:
            _name_row(axis, f"layer {layer}\nhead {head}" if several else f"head {head}")
    _name_columns(axes, chosen)
    axes[-1, 0].set_xlabel("key →", fontsize=7, color="0.4")
    assert image is not None
    top_right, foot = axes[0, -1].get_position(), axes[-1, -1].get_position().y0
    (width, height), whole = figure.get_size_inches(), top_right.y1 - foot
    tall = min(whole, BAR / height)
    beside = figure.add_axes((top_right.x1 + 0.12 / width, top_right.y1 - tall, 0.12 / width, tall))
    figure.colorbar(image, cax=beside).ax.tick_params(labelsize=7)
    beside.set_ylabel("mean\nattention", rotation=0, ha="left", va="center", fontsize=8)
    down = "one query" if query == 1 else "query down"
    headline(figure, f"{title_of(run)}: attention ({down}, key across) at the stages' ends")
    return figure


def _composite_figure(run: Run, chosen: dict[int, str], maps: list[Maps]) -> Figure:
    """Draws one map per layer and step, in which the colours of the heads add up: for models with many heads."""
    layers = list(maps[0])[:MOST_LAYERS]
    query, key = maps[0][layers[0]].shape[1:]
    full = max(float(np.abs(found[layer]).max()) for found in maps for layer in layers)
    figure, axes = grid((len(layers), len(chosen)), _panel(query, key), (0.08, 0.12), (0.75, 0.15, 0.75, 0.45))
    for (row, layer), (column, found) in _pairs(layers, maps):
        axes[row, column].imshow(composite(found[layer], full), aspect="auto", interpolation="nearest")
        _bare(axes[row, column])
        if column == 0:
            _name_row(axes[row, column], f"layer {layer}")
    _name_columns(axes, chosen)
    heads = len(maps[0][layers[0]])
    handles = [Patch(color=COLOURS[h % len(COLOURS)], label=f"head {h}") for h in range(heads)]
    if heads <= len(COLOURS):
        figure.legend(handles=handles, loc="lower center", ncols=heads)
    headline(figure, f"{title_of(run)}: attention (query down, key across), heads added up")
    return figure


def attention_maps(run: Run, step: int) -> Maps:
    """Returns the mean attention pattern of each layer at `step`, [head, query, key], on the evaluation batch."""
    known = _measured.setdefault(run, {})
    if step not in known:
        known[step] = _measure(run, step)
    return known[step]


_measured: WeakKeyDictionary[Run, dict[int, Maps]] = WeakKeyDictionary()  # a replay to a step may take seconds


def _measure(run: Run, step: int) -> Maps:
    from stagelens.experiments import eval_batch
    from stagelens.recording import Recorder

    task: Any = run.experiment
    recorder = Recorder(run.model_at(step), [_mean_pattern()], eval_batch(task), task=task)
    if "mean_pattern" not in recorder.probes:
        return {}
    found = [reading for reading in recorder.measure(step) if reading.name.startswith("mean_pattern/")]
    return {int(reading.name.rpartition("/")[2]): np.nan_to_num(reading.array()) for reading in found}


def _mean_pattern() -> Any:
    """Returns a probe with one reading per layer, [head, query, key]; layers may differ in all three sizes."""
    from stagelens.recording import Probe, layers
    from stagelens.timelines import Reading

    class MeanPattern(Probe):
        name = "mean_pattern"
        hooks = ("attn.hook_pattern",)

        def reduce(self, activation: Any, site: Any, context: Any) -> Any:  # noqa: ARG002
            return activation.mean(0)

        def readings(self, reduced: Any, context: Any) -> Any:  # noqa: ARG002
            for layer, pattern in zip(layers(reduced), reduced.values(), strict=True):
                yield Reading(str(layer), pattern, ("head", "query", "key"))

    return MeanPattern


def composite(pattern: Any, full: float | None = None) -> Any:
    """Returns an image [query, key, 3] of a pattern [head, query, key]: each head adds its own colour to white.

    Attention of `full` (default: the maximum) has the full colour of the head.
    """
    colours = np.array([matplotlib.colors.to_rgb(COLOURS[h % len(COLOURS)]) for h in range(len(pattern))])
    strength = np.abs(pattern) / max(np.abs(pattern).max() if full is None else full, 1e-12)  # [head, query, key]
    return np.clip(1 - np.einsum("hqk,hc->qkc", strength, 1 - colours), 0, 1)


def chosen_steps(run: Run, moments: int) -> dict[int, str]:
    """Returns at most `moments` steps to draw, each with its name: the first, the ends of the plateaus, the last.

    The model at the end of a plateau is replayed from the checkpoint before it. If all replays together would take
    longer than `REPLAY` seconds, that checkpoint itself is used; a later one would show what the transition learns.
    With few plateaus, uniformly chosen checkpoints are added.
    """
    saved = np.array(run.checkpoints)
    chosen = {int(saved[0]): "start", int(saved[-1]): "end"}
    ends = [int(stage.end) for stage, _ in pairwise(stages_of(run)) if stage.kind == "plateau"]
    seconds = 0.0
    for number, end in enumerate(ends, start=1):
        before = int(saved[saved <= end].max())
        seconds += run.manifest.seconds * (end - before) / max(run.manifest.step, 1)
        if len(chosen) < moments and seconds <= REPLAY:
            chosen.setdefault(end, f"end of plateau {number}")
        elif len(chosen) < moments:
            chosen.setdefault(before, f"before the end of\nplateau {number} (step {end})")
    for extra in np.linspace(0, len(saved) - 1, moments).round().astype(int):
        if len(chosen) < moments:
            chosen.setdefault(int(saved[extra]), "")
    return dict(sorted(chosen.items()))


def _pairs(rows: list[Any], columns: list[Maps]) -> Any:
    return (((r, row), (c, column)) for r, row in enumerate(rows) for c, column in enumerate(columns))


def _panel(query: int, key: int) -> tuple[float, float]:
    """Returns width and height of a map in inches. Its entries are squares, unless it would be too flat or narrow."""
    scale = PANEL / max(query, key)
    return max(scale * key, NARROWEST), max(scale * query, NARROWEST)


def _name_row(axis: Any, name: str) -> None:
    axis.set_ylabel(name, fontsize=8, rotation=0, ha="right", va="center")


def _bare(axis: Any) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(visible=True, color="0.7", lw=0.6)


def _name_columns(axes: Any, chosen: dict[int, str]) -> None:
    for axis, (step, what) in zip(axes[0], chosen.items(), strict=True):
        axis.set_title(f"step {step}\n{what}", fontsize=7.5, y=1.0)  # else it is measured whether something is above
