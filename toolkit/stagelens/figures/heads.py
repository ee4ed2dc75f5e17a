"""The look of lines that are heads: one colour per head if there are few, else a colour scale by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from stagelens.figures.palette import COLOURS
from stagelens.figures.style import line_style

SCALE = "viridis"
BRIGHTEST = 0.88  # of the colour scale: its yellow end cannot be seen on white
THIN: Any = {"lw": 0.8, "alpha": 0.8}
OTHERS = " others"  # how the entry of the lines that have no colour of their own ends
SAME = 1e-5  # of the largest value: lines this near to each other are the same


@dataclass(frozen=True)
class Look:
    """The look of one line: `style` for `axis.plot`, and its `entry` in the legend; lines of one entry look alike."""

    style: dict[str, Any]
    entry: str


def scale(number: int) -> list[str]:
    """Returns `number` colours of a scale from dark to light, each of which can be seen on white."""
    return [to_hex(colour) for colour in matplotlib.colormaps[SCALE](np.linspace(0, BRIGHTEST, number))]


def looks(dims: Sequence[str], shape: Sequence[int], labels: Sequence[str], layers: Sequence[Any] = ()) -> list[Look]:
    """Returns the look of each line of a series, in the order of `labels`, which `places` returns.

    Up to eight lines have a colour and a dash each. More have a colour scale: by layer if there are several layers,
    else by line. `layers` are the names of the layers; default: their numbers.
    """
    if len(labels) <= len(COLOURS):
        return [Look(line_style(index), label) for index, label in enumerate(labels)]
    if "layer" not in dims or shape[list(dims).index("layer")] == 1:
        return [Look({"color": colour} | THIN, label) for colour, label in zip(scale(len(labels)), labels, strict=True)]
    where = list(dims).index("layer")
    number = np.indices(tuple(shape))[where].ravel()  # [line]: the layer of each
    names, colours = list(layers) or list(range(shape[where])), scale(shape[where])
    return [Look({"color": colours[layer]} | THIN, f"layer {names[layer]}") for layer in number]


def most_changing(values: Any, labels: Sequence[str]) -> list[Look]:
    """Returns a look for each line of `values` [line, step]: those that change most are named, the others are grey."""
    finite = np.where(np.isfinite(values), values, np.nan)
    span = np.nan_to_num([np.ptp(line[~np.isnan(line)]) if (~np.isnan(line)).any() else 0.0 for line in finite])
    named = np.sort(np.argsort(-span, kind="stable")[: len(COLOURS) - 1]).tolist()
    found = [Look({"color": "0.72"} | THIN | {"zorder": 1}, f"{len(labels) - len(named)}{OTHERS}")] * len(labels)
    for number, index in enumerate(named):
        found[index] = Look(line_style(number), labels[index])
    return found


def same_together(values: Any, found: Sequence[Look]) -> list[Look]:
    """Returns the looks `found` of lines [line, step], in which lines that coincide share one look and one entry."""
    size = np.nanmax(np.abs(values), initial=0.0)
    alike: dict[int, list[int]] = {}
    for index, line in enumerate(values):
        near = (first for first in alike if np.allclose(values[first], line, 0, SAME * size, equal_nan=True))
        alike.setdefault(next(near, index), []).append(index)
    shared = list(found)
    for first, members in alike.items():
        entry = "\n= ".join(found[index].entry for index in members)
        for index in members:
            shared[index] = Look(found[first].style, entry)
    return shared
