"""Strips: rows of colours over the steps, one row per head or layer, for readings that are labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from stagelens.figures.palette import FILLS, NO_ROLE, PHASE_FILLS
from stagelens.timelines import NO_GROUP, Timeline, lines_named, settled

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEADER = "head_specialization/leader"
MASS = "head_specialization/mass"
PHASE = "head_specialization/phase"
ROW, THIN_ROW = 0.14, 0.065  # inches of one row, of one of many rows
MOST_ROWS = 12  # that are named one by one
MOST_LABELS = len(FILLS)  # that have a colour of their own
PALEST = 0.12  # strength of the colour of a head without mass on its group


@dataclass(frozen=True)
class Strip:
    """A reading of labels: `codes` and `strength` (0 to 1: how much of the full colour) are [step, row]."""

    title: str
    note: str
    names: list[str]  # of the rows
    labels: list[str]
    codes: NDArray[np.float64]
    colours: dict[str, str]  # of the labels; another label is grey
    strength: NDArray[np.float64]

    @property
    def height(self) -> float:
        """The height of the whole strip in inches."""
        return len(self.names) * (ROW if len(self.names) <= MOST_ROWS else THIN_ROW)


def strips_of(timeline: Timeline) -> list[Strip]:
    """Returns the phase of each layer and the role of each head, as far as they were measured."""
    return [strip for strip in (_phases(timeline), _roles(timeline)) if strip is not None]


def draw_strip(axis: Axes, steps: Any, strip: Strip) -> dict[str, Any]:
    """Draws the rows of a strip, the first on top, and returns the entries of its legend."""
    known = np.isfinite(strip.codes)
    paint = np.array([to_rgb(strip.colours.get(label, NO_ROLE)) for label in strip.labels])  # [label, 3]
    chosen = paint[np.where(known, strip.codes, 0).astype(int)]  # [step, row, 3]
    strength = np.where(known, strip.strength, 0.0)[..., None]
    rows = np.arange(len(strip.names) + 1) - 0.5
    image = (1 - strength * (1 - chosen)).transpose(1, 0, 2)
    axis.pcolormesh(edges(steps), rows, image, zorder=0.2, linewidth=0, rasterized=True)
    axis.set_ylim(len(strip.names) - 0.5, -0.5)
    for row in rows[1:-1]:
        axis.axhline(row, color="white", lw=0.8 if len(strip.names) <= MOST_ROWS else 0.3, zorder=0.8)
    _name_rows(axis, strip.names)
    axis.spines["left"].set_visible(False)
    return _entries(strip)


def edges(steps: Any) -> NDArray[np.float64]:
    """Returns the edges between the measurements, [step + 1]: halfway to the neighbours."""
    steps = np.asarray(steps, dtype=np.float64)
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    return np.concatenate([steps[:1], (steps[1:] + steps[:-1]) / 2, steps[-1:]])


def _entries(strip: Strip) -> dict[str, Any]:
    """Returns a patch for each label that occurs; labels without a colour of their own share one."""
    present = {strip.labels[int(code)] for code in np.unique(strip.codes[np.isfinite(strip.codes)])}
    entries: dict[str, Any] = {
        label: Patch(facecolor=colour) for label, colour in strip.colours.items() if label in present
    }
    if rest := sorted(present - set(entries)):
        entries[rest[0] if len(rest) == 1 else "other"] = Patch(facecolor=NO_ROLE)
    return entries


def _name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Names the rows: each of them, or of many heads each layer."""
    axis.tick_params(axis="y", length=0, labelsize=7)
    short = [name.replace("layer ", "L").replace("head ", "H") for name in names]
    if len(names) <= MOST_ROWS:
        axis.set_yticks(range(len(names)), short)
        return
    layers = [name.split(" H")[0] for name in short]
    where = {layer: float(np.mean([row for row, one in enumerate(layers) if one == layer])) for layer in layers}
    if len(where) == len(names):  # heads of one layer
        axis.set_yticks([0, len(names) - 1], [short[0], short[-1]])
        return
    axis.set_yticks(list(where.values()), list(where))
    for row in range(1, len(names)):
        if layers[row] != layers[row - 1]:
            axis.axhline(row - 0.5, color="0.25", lw=0.6, zorder=0.9)


def _phases(timeline: Timeline) -> Strip | None:
    if PHASE not in timeline:
        return None
    column, codes = timeline.column(PHASE), timeline.series(PHASE)
    there = np.flatnonzero(np.isfinite(codes).any(axis=0))
    if not len(there):
        return None
    names = [f"layer {column.coordinate('layer')[index]}" for index in there]
    colours = dict(zip(column.labels, PHASE_FILLS, strict=False))
    codes = _settled(codes[:, there], timeline)
    return Strip("phase", "", names, list(column.labels), codes, colours, np.ones(codes.shape))


def _roles(timeline: Timeline) -> Strip | None:
    if LEADER not in timeline:
        return None
    column, values = timeline.column(LEADER), timeline.series(LEADER)
    codes = values.reshape(len(values), -1)
    there = np.flatnonzero(np.isfinite(codes).any(axis=0))
    if not len(there):
        return None
    names = [lines_named(column)[index] for index in there]
    by_lag = MASS in timeline and timeline.column(MASS).dims[-1] == "lag"
    labels = [f"lag {label}" if by_lag else label for label in column.labels]
    codes = _settled(codes, timeline)
    codes, mass = codes[:, there], _mass_of(timeline, codes)[:, there]
    note = f"the {'lag' if by_lag else 'group'} that each head attends to; paler: less mass on it"
    strength = PALEST + (1 - PALEST) * np.clip(mass, 0, 1)
    return Strip("roles", note, names, labels, codes, _role_colours(labels, codes), strength)


def _mass_of(timeline: Timeline, codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the attention mass of each head on its leading group, as `codes` [step, head]; 1 if there is none."""
    if MASS not in timeline:
        return np.ones(codes.shape)
    column, leader = timeline.column(MASS), timeline.column(LEADER)
    groups = [str(group) for group in column.coordinate(column.dims[-1])]
    mass = timeline.series(MASS).reshape(len(codes), -1, len(groups))
    if mass.shape[1] != codes.shape[1]:
        return np.ones(codes.shape)
    at = np.array([groups.index(label) if label in groups else -1 for label in leader.labels])
    place = at[np.where(np.isfinite(codes), codes, 0).astype(int)]  # [step, head]
    found = np.take_along_axis(mass, np.maximum(place, 0)[..., None], axis=-1)[..., 0]
    led = np.array([label not in NO_GROUP for label in leader.labels])[
        np.where(np.isfinite(codes), codes, 0).astype(int)
    ]
    return np.where((place >= 0) & led, np.nan_to_num(found, nan=0.0), 1.0)


def _settled(codes: NDArray[np.float64], timeline: Timeline) -> NDArray[np.float64]:
    """Returns `codes` [step, row] without labels that do not last."""
    return np.stack([settled(row, timeline.steps) for row in codes.T], axis=1)


def _role_colours(labels: Sequence[str], codes: NDArray[np.float64]) -> dict[str, str]:
    """Returns the colours of the roles that heads have, in the order of `labels`; of many, the most common ones."""
    counts = Counter(int(code) for code in codes[np.isfinite(codes)])
    named = [code for code, _ in counts.most_common() if labels[code] not in NO_GROUP]
    return {labels[code]: FILLS[index] for index, code in enumerate(sorted(named[:MOST_LABELS]))}
