"""One style for every figure: legible in grayscale and for the colour-blind."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from stagelens.base import writing
from stagelens.figures.palette import COLOURS, DASHES

__all__ = ["COLOURS", "DASHES", "LEVEL", "THEORY", "TIME", "line_style", "save", "styled"]

STYLE: Any = {
    "figure.dpi": 130,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.35",
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 5),
    "xtick.color": "0.25",
    "ytick.color": "0.25",
    "legend.frameon": True,  # white, without an edge: a line that passes below does not cross the words
    "legend.facecolor": "white",
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.fancybox": False,
    "legend.fontsize": 8,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "stagelens",  # the same figure is the same file
}
THEORY: Any = {"color": "black", "ls": (0, (4, 2)), "lw": 1.1}  # a curve
LEVEL: Any = {"color": "0.45", "ls": (0, (4, 2)), "lw": 0.8}  # the level of a plateau
TIME: Any = {"color": "0.3", "ls": ":", "lw": 1.1}  # the time of a transition

MOST_LETTERS = 200  # of one text
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # characters that an svg file may not contain


@contextmanager
def styled() -> Iterator[None]:
    """Applies the style of all figures inside a `with` block."""
    with matplotlib.rc_context(STYLE):
        yield


def line_style(index: int) -> dict[str, Any]:
    """Returns colour and dash of the line number `index`; neighbours differ in both, for grayscale."""
    return {"color": COLOURS[index % len(COLOURS)], "ls": DASHES[index % len(DASHES)]}


def grid(
    shape: tuple[int, int],
    panel: tuple[float, float],
    gap: tuple[float, float],
    margin: tuple[float, float, float, float],
    **sharing: bool | str,
) -> tuple[Figure, Any]:
    """Returns a figure and its axes [row, column]; panel and gap (width, height), margin (left, right, top, bottom).

    All sizes are in inches and known beforehand, so no layout engine is needed: it would take longer than drawing the
    figure. `sharing` is `sharex` or `sharey`: True, or `row` or `col`.
    """
    (rows, columns), (left, right, top, bottom) = shape, margin
    width = left + columns * panel[0] + (columns - 1) * gap[0] + right
    height = top + rows * panel[1] + (rows - 1) * gap[1] + bottom
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("none")
    place = {"left": left / width, "right": 1 - right / width, "bottom": bottom / height, "top": 1 - top / height}
    spacing = {"wspace": gap[0] / panel[0], "hspace": gap[1] / panel[1]}
    options: Any = {"squeeze": False, "gridspec_kw": place | spacing, **sharing}
    return figure, figure.subplots(rows, columns, **options)


def make_room(figure: Figure, inches: float) -> None:
    """Widens a figure of `grid` at its right, for what is next to its axes; the axes keep their size."""
    old = figure.get_figwidth()
    figure.set_figwidth(old + inches)
    for axis in figure.axes:
        place, share = axis.get_position(), old / (old + inches)
        axis.set_position((place.x0 * share, place.y0, place.width * share, place.height))


def panels(
    rows: int, columns: int, title: str, size: tuple[float, float] = (3.4, 3.0), **sharing: bool | str
) -> tuple[Figure, Any]:
    """Returns a figure with a headline and its axes [row, column], which matplotlib lays out around their labels.

        figure, ((loss, law),) = panels(1, 2, "Fig. 2: repetition shortens the plateau")

    `size` is the width and height of one panel with its labels, in inches. `sharing` is `sharex` or `sharey`: True, or
    `row` or `col`. `grid` is the alternative that has panels of an exact size and takes less time to draw.
    """
    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    headline(figure, title)
    options: Any = {"squeeze": False, **sharing}
    return figure, figure.subplots(rows, columns, **options)


def headline(figure: Figure, text: str) -> None:
    """Writes the title of a figure at its upper left corner."""
    corner: Any = {"x": 0.08 / figure.get_figwidth(), "ha": "left", "va": "top"}
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.suptitle(text, **corner)  # the engine chooses the height, and keeps the panels below it
    else:
        figure.suptitle(text, y=1 - 0.07 / figure.get_figheight(), **corner)


def save(figure: Figure, path: Path) -> None:
    """Writes `figure` as a png or svg file, by the ending of `path`, completely or not at all.

    This calls the canvas directly, because `savefig` would draw every figure twice.
    """
    dpi = figure.dpi
    with styled(), writing(path) as aside, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the warning would print untrusted letters
        _clip_texts(figure)
        _lay_out(figure)
        if path.suffix.lower() == ".svg":
            FigureCanvasSVG(figure).print_svg(drawn := StringIO(), metadata={"Date": None})
            aside.write_text(NOT_XML.sub("\N{REPLACEMENT CHARACTER}", drawn.getvalue()), encoding="utf-8")
        else:
            FigureCanvasAgg(figure).print_png(str(aside))
    figure.set_dpi(dpi)  # the svg canvas changes it


def _clip_texts(figure: Figure) -> None:
    """Shortens long texts: an untrusted name of a million letters would take minutes to draw."""
    for text in figure.findobj(Text):
        if len(words := text.get_text()) > MOST_LETTERS:
            text.set_text(f"{words[: MOST_LETTERS - 1]}…")


def _lay_out(figure: Figure) -> None:
    """Lays out the panels once, because the layout takes longer than drawing and would be repeated for each file."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
