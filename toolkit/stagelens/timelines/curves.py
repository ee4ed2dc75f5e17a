"""Curves: one number per step of a series, and the name of each.

A series has dims. Only `AVERAGED` dims (layers, heads, positions) are averaged, because their elements are instances of
one quantity. Every other dim (references, directions, groups, sides, quantities, parameters, ...) names different
quantities, so each of its elements is a curve of its own: `kl_to_references/kl[reference=bigram]`.

A user names curves in one way everywhere: `PROBE/READING[layer=1,head=0]` picks elements of dims, `[head=*]` asks for
one curve for each head, and `mean(PROBE/READING[layer=1])` averages all that is not picked.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stagelens.base import UsageError, unknown
from stagelens.timelines.reading import CHANCE

if TYPE_CHECKING:
    import xarray

    from stagelens.timelines.timeline import Column, Timeline

Floats = NDArray[np.float64]

AVERAGED = ("layer", "head", "position", "query", "key")  # dims that one number per step is a mean over
LISTED = 12  # curves that an error lists
NAMED = re.compile(r"(?P<series>[^\[\]]+)\[(?P<place>.*)\]")
MEAN = re.compile(r"mean\((?P<inside>.+)\)")
FORM = "PROBE/READING[layer=1,head=0]"
EACH = "*"  # instead of a label: one curve for each element of the dim


@dataclass(frozen=True)
class SeriesCurve:
    """One curve of a series. `place` picks one element of some dims; `averaged` are the dims that it is a mean over."""

    source: str  # the series in the timeline
    place: tuple[tuple[str, str], ...] = ()
    averaged: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # of a series of labels
    is_mean: bool = False  # asked for as `mean(...)`

    @property
    def name(self) -> str:
        """`kl_to_references/kl[reference=bigram]`: what a user writes to ask for this curve."""
        name = self.source + (f"[{','.join(f'{dim}={label}' for dim, label in self.place)}]" if self.place else "")
        return f"mean({name})" if self.is_mean else name

    @property
    def rule(self) -> str:
        """How several numbers per step become one, such as `mean over head`; empty if there is only one."""
        return rule_of(self.averaged, self.labels)

    @property
    def label(self) -> str:
        """The name and the rule, as on axes and in table headers."""
        return f"{self.name} ({self.rule})" if self.rule else self.name

    def middle(self, values: Floats, axis: int) -> Floats:
        """The mean of `values` along `axis`; of labels the most common one (the first of equals)."""
        return middle(values, axis, self.labels)

    def named(self, value: float) -> float | str:
        """The label that `value` is the code of, or the value itself."""
        from stagelens.timelines.timeline import label_of

        return label_of(self.labels, value) if self.labels else value

    def numbers(self, timeline: Timeline) -> Floats:
        """Returns the numbers that `middle` reduces, [step, number]; nan if one was not measured."""
        column, values = timeline.column(self.source), timeline.series(self.source)
        for dim, label in self.place:
            values = values.take([_labels(column, dim).index(label)], axis=1 + column.dims.index(dim))
        return values.reshape(len(values), -1)

    def read(self, timeline: Timeline) -> tuple[NDArray[Any], Floats]:
        """Returns (steps, values), each [step], at the steps at which the curve was measured."""
        numbers = self.numbers(timeline)
        there = ~np.isnan(numbers).all(axis=1)
        if not there.any():
            raise UsageError(f"series {self.name!r} has no values")
        return timeline.steps[there], self.middle(numbers[there], 1)


@dataclass(frozen=True)
class CurveName:
    """The name of one or several curves, parsed: the series, the labels of the dims that it picks, and `mean(...)`."""

    series: str
    place: Mapping[str, str] = field(default_factory=dict)
    is_mean: bool = False


def curves_of(*columns: Column, place: Mapping[str, str] | None = None, is_mean: bool = False) -> list[SeriesCurve]:
    """Returns the curves that the same series of several timelines has in all of them, in the first one's order.

    `place` picks elements of dims by label, or with `*` all of them, one curve each. Other dims that are not averaged
    enter the names of the curves if they have several elements, or other labels in another column. With `is_mean` the
    mean over all that is not picked is taken. Each curve is one number per step in every column.
    """
    first = columns[0]
    picked = place_in(first, place or {})
    for dim, label in picked.items():
        for column in columns:
            _check_place(column, dim, label)
    if is_mean and first.labels:
        raise UsageError(f"mean({first.name}): the series holds labels ({', '.join(first.labels)}), which have no mean")
    named = [d for c in columns for d in c.dims if d in picked or (not is_mean and _is_named(d, columns))]
    choices = []
    for dim in dict.fromkeys(named):
        if any(dim not in column.dims for column in columns):
            return []
        shared = [label for label in _labels(first, dim) if all(label in _labels(c, dim) for c in columns)]
        wanted = picked.get(dim, EACH)
        choices.append([(dim, label) for label in dict.fromkeys(shared) if wanted in (EACH, label)])
    wide = [d for c in columns for d, size in zip(c.dims, c.shape, strict=True) if size > 1 and d not in named]
    averaged = tuple(dict.fromkeys(wide))
    return [SeriesCurve(first.name, chosen, averaged, first.labels, is_mean) for chosen in product(*choices)]


def one_curve(timeline: Timeline, text: str, place: Mapping[str, str] | None = None) -> SeriesCurve:
    """The curve that `text` names: `loss`, `kl_to_references/kl[reference=bigram]`. An error lists what it may mean."""
    name = curve_name(text, timeline)
    found = curves_of(timeline.column(name.series), place={**name.place, **(place or {})}, is_mean=name.is_mean)
    if len(found) != 1:
        raise UsageError(f"series {text!r} has {len(found)} curves; give one of them: {listed(found)}")
    return found[0]


def one_number(timeline: Timeline, text: str, place: Mapping[str, Any] | None = None) -> tuple[NDArray[Any], Floats]:
    """Returns (steps, values) of what is one number per step: a series or an element of one. Only `mean()` averages."""
    curve = one_curve(timeline, text, {dim: str(label) for dim, label in (place or {}).items()})
    numbers = curve.numbers(timeline)
    if curve.is_mean:
        numbers = curve.middle(numbers, 1)[:, None]
    if numbers.shape[1] != 1:
        column = timeline.column(curve.source)
        raise UsageError(
            f"series {text!r} has dims {column.dims} of shape {column.shape}; a single number was expected"
        )
    there = ~np.isnan(numbers[:, 0])
    return timeline.steps[there], numbers[there, 0]


def curve_name(text: str, known: Container[str] = ()) -> CurveName:
    """Returns `PROBE/READING[layer=1,head=0]` or `mean(...)` in its parts. A series of `known` is taken as it is."""
    text = text.strip()
    if text in known:
        return CurveName(text)
    if mean := MEAN.fullmatch(text):
        return replace(curve_name(mean["inside"], known), is_mean=True)
    if not (found := NAMED.fullmatch(text)):
        if "[" in text or "]" in text:
            raise UsageError(f"series {text!r}: the brackets are wrong; expected a name such as loss or {FORM}")
        return CurveName(text)
    return CurveName(found["series"].strip(), parse_place(found["place"], text))


def picked(timeline: Timeline, text: str) -> xarray.DataArray:
    """Returns the part of a series that `text` picks: without the dims of which it gives one element.

    `mean(...)` leaves only the steps and the dims that are given with `*`.
    """
    name = curve_name(text)
    column = timeline.column(name.series)
    array = timeline[name.series]
    place = place_in(column, name.place)
    for dim, label in place.items():
        _check_place(column, dim, label)
        if label != EACH:
            array = array.isel({dim: _labels(column, dim).index(label)})
    left = [dim for dim in array.dims if dim != "step" and place.get(str(dim)) != EACH]
    return array.mean(left) if name.is_mean else array


def parse_place(text: str, whole: str) -> dict[str, str]:
    """`layer=1,head=0` as a mapping. A comma separates only before `dim=`, so labels may contain commas."""
    pairs = [part.partition("=") for part in re.split(r",(?=\s*\w+\s*=)", text) if part.strip()]
    if any(not equals or not dim.strip() for dim, equals, _ in pairs):
        raise UsageError(f"{whole!r}: expected elements such as [layer=1,head=0], got [{text}]")
    place = {dim.strip(): label.strip() for dim, _, label in pairs}
    if len(place) < len(pairs):
        raise UsageError(f"{whole!r}: a dim is given twice; give one label for each dim, or * for all of them")
    return place


def place_in(column: Column, place: Mapping[str, str]) -> dict[str, str]:
    """Returns `place` with the labels of `column`. What was parsed as a dim may be part of a label: `[group=a,b=1]`."""
    found: dict[str, str] = {}
    for dim, label in place.items():
        last = next(reversed(found), "")
        longer = f"{found.get(last)},{dim}={label}"
        labels = _labels(column, last) if last in column.dims and dim not in column.dims else []
        if any(one == longer or one.startswith(f"{longer},") for one in labels):
            found[last] = longer
        else:
            found[dim] = label
    return found


def listed(curves: Sequence[SeriesCurve]) -> str:
    """The names of `curves` for an error message, the first few if there are many."""
    more = f", ... ({len(curves) - LISTED} more)" if len(curves) > LISTED else ""
    return ", ".join(curve.name for curve in curves[:LISTED]) + more


def average(column: Column, values: Floats) -> tuple[Column, Floats, str]:
    """Averages `values` [step, *dims] over the `AVERAGED` dims.

    Returns the column and the values [step, *other dims] of what is left, and the rule, which says what was averaged.
    The rule is empty if nothing was.
    """
    wide = [dim for dim, size in zip(column.dims, column.shape, strict=True) if dim in AVERAGED and size > 1]
    kept = [index for index, dim in enumerate(column.dims) if dim not in AVERAGED]
    order = [0, *(1 + index for index in kept), *(1 + i for i in range(len(column.dims)) if i not in kept)]
    shape = tuple(column.shape[index] for index in kept)
    left = values.transpose(order).reshape(len(values), *shape, -1)
    dims = tuple(column.dims[index] for index in kept)
    coords = tuple((dim, labels) for dim, labels in column.coords if dim in dims)
    left_over = replace(column, dims=dims, shape=shape, coords=coords)
    return left_over, middle(left, -1, column.labels), rule_of(wide, column.labels)


@dataclass(frozen=True)
class Lines:
    """A series as lines over the steps: `values` [step, line], and a label for each line, such as `layer 0 head 2`.

    `rule` says what was averaged; it is empty if nothing was.
    """

    column: Column
    values: Floats
    labels: list[str]
    rule: str


def lines_of(timeline: Timeline, name: str, most: float = np.inf) -> Lines:
    """Returns each number of the series `name` as a line. A series of more than `most` is averaged by `average`."""
    column, values, rule = timeline.column(name), timeline.series(name), ""
    if column.size > most:
        column, values, rule = average(column, values)
    return Lines(column, values.reshape(len(values), -1), places(column), rule)


def places(column: Column) -> list[str]:
    """Returns a label for each number of a series, in order: `layer 0 head 2`. Dims of size one are left out."""
    wide = [dim for dim, size in zip(column.dims, column.shape, strict=True) if size > 1]
    words = [
        [label if isinstance(label, str) else f"{dim} {label}" for label in column.coordinate(dim)] for dim in wide
    ]
    return [" ".join(chosen) for chosen in product(*words)]


def element_names(column: Column) -> list[str]:
    """Returns the name of each number of a series, in order, as a user writes it: `probe/reading[layer=0,head=2]`.

    Dims of size one are left out.
    """
    wide = [dim for dim, size in zip(column.dims, column.shape, strict=True) if size > 1]
    choices = [[(dim, label) for label in _labels(column, dim)] for dim in wide]
    return [SeriesCurve(column.name, chosen).name for chosen in product(*choices)]


def chance_levels(timeline: Timeline, name: str) -> Floats:
    """Returns the distinct chance levels of the series `name`, [step, level]; none if they were not recorded."""
    if f"{name}{CHANCE}" not in timeline:
        return np.empty((len(timeline.steps), 0))
    values = timeline.series(f"{name}{CHANCE}")
    return distinct(values.reshape(len(values), -1))


def distinct(lines: Floats) -> Floats:
    """Returns the lines [step, line] that differ, in their order. `np.unique` would compare them step by step."""
    found = {line.tobytes(): line for line in lines.T}
    return np.array(list(found.values())).reshape(len(found), len(lines)).T


def rule_of(dims: Sequence[str], labels: Sequence[str] = ()) -> str:
    """`mean over layer, head`, or `most common over` them for labels; empty without dims."""
    return f"{'most common' if labels else 'mean'} over {', '.join(dims)}" if dims else ""


def middle(values: Floats, axis: int, labels: Sequence[str] = ()) -> Floats:
    """The mean of `values` along `axis` over what was measured, or the most common code; nan if nothing was."""
    if not labels:
        return mean_of_measured(values, axis)
    counts = np.stack([(values == code).sum(axis) for code in range(len(labels))])
    return np.where(counts.any(axis=0), counts.argmax(axis=0), np.nan)


def mean_of_measured(values: Floats, axis: int) -> Floats:
    """The mean of `values` along `axis` over what was measured; nan if nothing was."""
    there = ~np.isnan(values)
    count = there.sum(axis)
    return np.where(count > 0, np.where(there, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan)


def _is_named(dim: str, columns: Sequence[Column]) -> bool:
    """True if the elements of `dim` are different quantities, which need separate names."""
    if dim in AVERAGED:
        return False
    known = {tuple(_labels(column, dim)) if dim in column.dims else () for column in columns}
    return len(known) > 1 or any(len(labels) > 1 for labels in known)


def _labels(column: Column, dim: str) -> list[str]:
    return [str(label) for label in column.coordinate(dim)]


def _check_place(column: Column, dim: str, label: str) -> None:
    if not column.dims:
        raise UsageError(f"series {column.name!r} is one number per step; leave out [{dim}={label}]")
    if dim not in column.dims:
        raise unknown("dim", dim, column.dims, f"of {column.name!r}")
    if label != EACH and label not in (labels := _labels(column, dim)):
        raise unknown(dim, label, labels, f"of {column.name!r}")
