"""Finds texts of a figure that overlap or leave the canvas. Writes runs with many heads to draw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from kit.written_runs import staircase, write_run
from stagelens.figures import styled
from stagelens.figures.style import _clip_texts, _lay_out
from stagelens.runs import Run

SLACK = 1.0  # pixels: letters rarely fill the box of their line
FEW = np.arange(0, 1001, 20)
GROUPS = ("previous token", "own token", "same token earlier", "induction target", "first token", "two back")


def flaws(figure: Figure) -> list[str]:
    """Describes each text that overlaps another or is not inside the canvas, as the figure is saved."""
    texts: list[Text] = []
    draw = Text.draw

    def record(text: Text, renderer: Any) -> None:
        texts.append(text)
        draw(text, renderer)

    with styled(), patch.object(Text, "draw", record):
        _clip_texts(figure)
        _lay_out(figure)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    shown = [text for text in dict.fromkeys(texts) if text.get_text().strip() and text.get_visible()]
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in shown]
    named = [(text.get_text(), box) for text, box in zip(shown, boxes, strict=True)]
    outside = [f"{words!r} leaves the canvas" for words, box in named if not _inside(box, figure.bbox)]
    pairs = combinations(named, 2)
    return outside + [f"{one!r} overlaps {other!r}" for (one, a), (other, b) in pairs if _overlap(a, b)]


def empty_panels(figure: Figure) -> list[str]:
    """Describes each panel that shows nothing: no image, area or bar, and no line with a finite point inside."""
    shown = [axis for axis in figure.axes if axis.get_visible() and axis.axison]
    return [f"panel {number} is empty" for number, axis in enumerate(shown) if not _shows_something(axis)]


def _shows_something(axis: Any) -> bool:
    if axis.images or axis.collections or axis.containers or axis.tables:
        return True
    (left, right), (low, high) = sorted(axis.get_xlim()), sorted(axis.get_ylim())
    points = [np.asarray(line.get_xydata(), float) for line in axis.lines if line.get_transform() == axis.transData]
    return any(((left <= x) & (x <= right) & (low <= y) & (y <= high)).any() for x, y in (xy.T for xy in points))


def _inside(box: Bbox, canvas: Any) -> bool:
    return bool(box.x0 >= -SLACK and box.y0 >= -SLACK and box.x1 <= canvas.x1 + SLACK and box.y1 <= canvas.y1 + SLACK)


def _overlap(a: Bbox, b: Bbox) -> bool:
    across, up = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return bool(across > SLACK and up > SLACK)


def run_of_heads(
    folder: Path, layers: int, heads: int, groups: Sequence[str] = GROUPS[:3], **manifest: Any
) -> tuple[Run, dict[str, Any]]:
    """A run whose heads form one after another, each for one of `groups`, and its series."""
    rng = np.random.default_rng(layers * 100 + heads)
    at = rng.uniform(100, 800, (layers, heads))
    rise = 1 / (1 + np.exp(-(FEW[:, None, None] - at) / 30))  # [step, layer, head]
    led = rng.integers(0, len(groups), (layers, heads))
    part = rise[..., None]
    mass = (1 - part) / (len(groups) + 1) + part * np.eye(len(groups) + 1)[led]
    dims, names = ("layer", "head"), (*groups, "rest")
    phase = (FEW[:, None] > 300) * 1.0 + (FEW[:, None] > 600) + np.zeros((len(FEW), layers))
    series: dict[str, Any] = {
        "loss": staircase(FEW, (200, 600), (3.0, 2.0, 1.0)),
        "attention_sparsity/sparsity": (0.9 * rise, dims),
        "attention_sparsity/entropy": (3 - 2.5 * rise, dims),
        "head_specialization/mass": (mass, (*dims, "group"), {"group": names}),
        "head_specialization/leader": (np.where(rise > 0.1, led, len(groups)), dims, names),
        "head_specialization/phase": (phase, ("layer",), ("diffuse", "competitive", "cooperative")),
        "head_specialization/overlap": (1 - 0.9 * rise.mean(-1), ("layer",)),
        "induction/prefix_matching": (0.05 + 0.5 * rise, dims),
        "induction/prefix_matching_error": (0.05 * rise, dims),
        "induction/prefix_matching_chance": (np.full((len(FEW), layers), 0.05), ("layer",)),
        "qk_alignment/score_top": (0.2 + 0.6 * rise, dims),
        "kl_to_references/kl": (1 - rise[:, 0, :1] * np.ones(5), ("reference",)),
        "weight_norms/norm": (1 + FEW[:, None] * np.linspace(0, 1, 20), ("parameter",), {"parameter": PARAMETERS}),
    }
    return write_run(folder, f"{layers}-{heads}-{len(groups)}", series, FEW, **manifest), series


PARAMETERS = tuple(f"blocks.{layer}.attn.W_{kind}" for layer in range(5) for kind in "QKVO")
