"""The headline reading of each of the four probes that every run should have: one line per head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.timelines.curves import distinct, places
from stagelens.timelines.reading import CHANCE, ERROR
from stagelens.timelines.timeline import Column, Timeline

Floats = NDArray[np.float64]
NO_GROUP = ("rest", "none")  # labels of keys that belong to no named group


@dataclass(frozen=True)
class Headline:
    """What one probe is best known by: the first of `readings` that a timeline has, and its `title` in figures."""

    probe: str
    readings: tuple[str, ...]
    title: str
    note: str  # what the ends of its range mean

    def series(self, timeline: Timeline) -> str | None:
        """Returns the name of the series in `timeline`; None if it has none of them."""
        names = (f"{self.probe}/{reading}" for reading in self.readings)
        return next((name for name in names if name in timeline and _is_measured(timeline, name)), None)


SPARSITY = Headline("attention_sparsity", ("sparsity",), "attention sparsity", "0: uniform, 1: one key")
SPECIALIZATION = Headline("head_specialization", ("mass",), "head specialization", "mass on each head's leading group")
INDUCTION = Headline("induction", ("prefix_matching",), "induction", "prefix matching")
ALIGNMENT = Headline(
    "qk_alignment", ("score_top", "key_query"), "key-query alignment", "fraction of the first component"
)
HEADLINES = (SPARSITY, SPECIALIZATION, INDUCTION, ALIGNMENT)


@dataclass(frozen=True)
class HeadLines:
    """A headline reading as lines over the steps, one for each head that exists.

    `values` and `error` are [step, line], `chance` is [step, line] or [step, 0] if it was not recorded. The error is
    None if it was not recorded.
    """

    series: str
    column: Column  # dims and shape, with heads that do not exist
    names: list[str]  # of all heads in `column`
    labels: list[str]  # of the lines
    values: Floats
    error: Floats | None
    chance: Floats

    @property
    def levels(self) -> Floats:
        """The distinct chance levels, [step, level]."""
        return distinct(self.chance)


def head_lines(timeline: Timeline, headline: Headline) -> HeadLines | None:
    """Returns the headline reading of one probe; None if the timeline does not have it.

    Of `head_specialization/mass` each line is the mass on the head's leading named group, or on its leading lag. Heads
    of a layer that no group names have no line.
    """
    name = headline.series(timeline)
    if name is None:
        return None
    column = timeline.column(name)
    arrays = [timeline.series(name), companion(timeline, name, ERROR), companion(timeline, name, CHANCE)]
    if headline is SPECIALIZATION:
        picked = _leading(timeline, column, timeline.series(name))
        if picked is None:
            return None
        arrays = [None if array is None else _taken(array, picked) for array in arrays]
        column = replace(column, dims=column.dims[:-1], shape=column.shape[:-1])
    values, error, chance = (None if x is None else x.reshape(len(timeline.steps), -1) for x in arrays)
    assert values is not None
    if headline is SPECIALIZATION and chance is not None:
        values = np.where((chance == 0).all(axis=0), np.nan, values)
    there = np.flatnonzero(~np.isnan(values).all(axis=0))
    if not len(there):
        return None
    names = lines_named(column)
    labels = [names[index] for index in there]
    error = None if error is None else error[:, there]
    chance = np.empty((len(values), 0)) if chance is None else chance[:, there]
    return HeadLines(name, column, names, labels, values[:, there], error, chance)


def companion(timeline: Timeline, name: str, ending: str) -> Floats | None:
    """Returns the error or chance level of the series `name`, [step, ...] as the series itself; None if it has none.

    A dim that the companion lacks is filled with copies: heads of one layer may share a chance level.
    """
    if f"{name}{ending}" not in timeline:
        return None
    column, found = timeline.column(name), timeline.column(f"{name}{ending}")
    values = timeline.series(found.name)
    if not set(found.dims) <= set(column.dims):
        return None
    order = [found.dims.index(dim) for dim in column.dims if dim in found.dims]
    values = values.transpose(0, *(1 + index for index in order))
    shape = [found.shape[found.dims.index(dim)] if dim in found.dims else 1 for dim in column.dims]
    try:
        return np.array(np.broadcast_to(values.reshape(len(values), *shape), (len(values), *column.shape)))
    except ValueError:  # a reading whose companion has other elements
        return None


def lines_named(column: Column) -> list[str]:
    """Returns a name for each line: `layer 0 head 2`, `head 2` in a model of one layer, `head 0` of a single head.

    If only one layer was measured and it is not layer 0, the model has several, and the names have the layer.
    """
    names = [name or ("head 0" if "head" in column.dims else "") for name in places(column)]
    layers = column.coordinate("layer") if "layer" in column.dims else (0,)
    return names if len(layers) > 1 or layers[0] == 0 else [f"layer {layers[0]} {name}".rstrip() for name in names]


def _leading(timeline: Timeline, column: Column, mass: Floats) -> NDArray[Any] | None:
    """Returns the index of each head's leading named group, [step, layer, head]; None if no group is named."""
    groups: Sequence[Any] = column.coordinate(column.dims[-1])
    named = np.array([group not in NO_GROUP for group in groups])
    if not named.any():
        return None
    most: NDArray[Any] = np.where(named, np.nan_to_num(mass, nan=-np.inf), -np.inf).argmax(-1)
    name = "head_specialization/leader"
    if name not in timeline or timeline.column(name).shape != column.shape[:-1]:
        return most
    labels = timeline.column(name).labels
    at = {str(group): index for index, group in enumerate(groups) if named[index]}
    place = np.array([at.get(label, -1) for label in labels])
    codes = timeline.series(name)
    known = np.isfinite(codes)
    led = np.where(known, place[np.where(known, codes, 0).astype(int)], -1)
    return np.where(led >= 0, led, most)


def _taken(values: Floats, picked: NDArray[Any]) -> Floats:
    return np.take_along_axis(values, picked[..., None], axis=-1)[..., 0]


def _is_measured(timeline: Timeline, name: str) -> bool:
    return bool(np.isfinite(timeline.series(name)).any())
