"""One style for every figure: legible in grayscale and for the colour-blind."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from stagelens.base import writing
from stagelens.figures.palette import COLOURS, DASHES
from stagelens.figures.ticks import simplify_ticks

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
    "pdf.fonttype": 42,  # TrueType, which publishers take
    "svg.fonttype": "none",
    "svg.hashsalt": "stagelens",  # the same figure is the same file
}
THEORY: Any = {"color": "black", "ls": (0, (4, 2)), "lw": 1.1}  # a curve
LEVEL: Any = {"color": "0.45", "ls": (0, (4, 2)), "lw": 0.8}  # the level of a plateau
TIME: Any = {"color": "0.3", "ls": ":", "lw": 1.1}  # the time of a transition

MOST_LETTERS = 200  # of one text
HEADLINE = 10.8  # points
DPI = 200  # at which texts are measured
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


def stack(
    width: float, heights: Sequence[float], gap: float, margin: tuple[float, float, float, float]
) -> tuple[Figure, list[Any]]:
    """Returns a figure and its axes, one below the other, of different heights, which share the x axis.

    All sizes are in inches; margin is (left, right, top, bottom).
    """
    left, right, top, bottom = margin
    whole = (left + width + right, top + sum(heights) + gap * (len(heights) - 1) + bottom)
    figure = Figure(figsize=whole)
    figure.set_layout_engine("none")
    axes: list[Any] = []
    foot = whole[1] - top
    for height in heights:
        foot -= height
        place = (left / whole[0], foot / whole[1], width / whole[0], height / whole[1])
        axes.append(figure.add_axes(place, sharex=axes[0] if axes else None))
        foot -= gap
    return figure, axes


def make_room(figure: Figure, inches: float, left: float = 0.0) -> None:
    """Widens a figure of `grid` at its right, and by `left` at its left; axes and texts keep their size."""
    old = figure.get_figwidth()
    new = old + inches + left
    figure.set_figwidth(new)
    for axis in figure.axes:
        place = axis.get_position()
        axis.set_position(((place.x0 * old + left) / new, place.y0, place.width * old / new, place.height))
    for text in figure.texts:
        text.set_x((text.get_position()[0] * old + left) / new)


def lower_top(figure: Figure, inches: float) -> None:
    """Cuts `inches` off the top of a figure of `grid` or `stack`; axes and texts stay where they are."""
    old = figure.get_figheight()
    figure.set_figheight(old - inches)
    share = old / (old - inches)
    for axis in figure.axes:
        place = axis.get_position()
        axis.set_position((place.x0, place.y0 * share, place.width, place.height * share))
    for text in figure.texts:
        text.set_y(text.get_position()[1] * share)


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
    room = 72 * (figure.get_figwidth() - 0.16)  # points; a long title has smaller letters
    size = HEADLINE * min(1.0, room / max(width_of(text, HEADLINE), 1.0))
    while size > 2 and width_of(text, size) > 0.98 * room:  # the width of letters is not proportional to their size
        size *= 0.97
    corner["fontsize"] = size
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.suptitle(text, **corner)  # the engine chooses the height, and keeps the panels below it
    else:
        figure.suptitle(text, y=1 - 0.07 / figure.get_figheight(), **corner)


def width_of(text: str, size: float = 7) -> float:
    """Returns the width of a text in points, of its longest line."""
    letters = FontProperties(size=size)
    lines = [line for line in text[:MOST_LETTERS].splitlines() if line]
    with unprinted_letters():
        widths = [_measuring().get_text_width_height_descent(line, letters, ismath=False)[0] for line in lines]
    return max(widths, default=0.0) * 72 / DPI


@cache
def _measuring() -> RendererAgg:
    return RendererAgg(1, 1, DPI)


@contextmanager
def unprinted_letters() -> Iterator[None]:
    """Silences the warning about a letter without a glyph, which would print untrusted letters to the terminal."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        yield


def save(figure: Figure, *paths: Path) -> None:
    """Writes `figure` as png, svg and pdf files, by the endings of `paths`, each completely or not at all.

    This calls the canvas directly, because `savefig` would draw every figure twice.
    """
    dpi = figure.dpi
    with styled(), unprinted_letters():
        _clip_texts(figure)
        _lay_out(figure)
        for path in paths:
            with writing(path) as aside:
                if path.suffix.lower() == ".svg":
                    FigureCanvasSVG(figure).print_svg(drawn := StringIO(), metadata={"Date": None})
                    text = NOT_XML.sub("\N{REPLACEMENT CHARACTER}", drawn.getvalue())
                    aside.write_text(text, encoding="utf-8")
                elif path.suffix.lower() == ".pdf":
                    with aside.open("wb") as file:
                        FigureCanvasPdf(figure).print_pdf(file, metadata={"CreationDate": None})
                else:
                    FigureCanvasAgg(figure).print_png(str(aside))
            figure.set_dpi(dpi)  # the svg and pdf canvases change it


def _clip_texts(figure: Figure) -> None:
    """Shortens long texts: an untrusted name of a million letters would take minutes to draw."""
    for text in _texts(figure):
        if len(words := text.get_text()) > MOST_LETTERS:
            text.set_text(f"{words[: MOST_LETTERS - 1]}…")


def _texts(artist: Artist) -> Iterator[Text]:
    """Yields the texts of a figure except those of ticks, which matplotlib makes when it draws them."""
    if isinstance(artist, Text):
        yield artist
    for child in (artist.label,) if isinstance(artist, Axis) else artist.get_children():
        yield from _texts(child)


def _lay_out(figure: Figure) -> None:
    """Lays out the panels once, because the layout takes longer than drawing and would be repeated for each file."""
    simplify_ticks(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if not axis.label.get_text():
            axis.set_label_coords(0, 0)  # else matplotlib measures all tick labels to place an empty label
