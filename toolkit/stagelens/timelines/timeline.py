"""The timeline: all readings of a run over its steps, as labelled arrays."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stagelens.base import UsageError, plain, unknown
from stagelens.timelines.reading import Reading

if TYPE_CHECKING:
    import xarray

    from stagelens.runs import Run

Floats = NDArray[np.float64]
LARGEST_STEP = 1e100  # beyond any training or flow; an axis needs room above it


@dataclass(frozen=True)
class Column:
    """One series of a measurement: its name, dims, shape, coordinates and, if it is categorical, labels."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    coords: tuple[tuple[str, tuple[Any, ...]], ...]
    labels: tuple[str, ...] = ()

    def __hash__(self) -> int:  # hashing all fields would take most of the time of storing a flow
        return hash(self.name)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def coordinate(self, dim: str) -> tuple[Any, ...]:
        return dict(self.coords).get(dim) or tuple(range(self.shape[self.dims.index(dim)]))

    def label(self, code: float) -> str:
        """Returns the label of `code`, or the code itself as text if it has none."""
        return label_of(self.labels, code)


def label_of(labels: Sequence[str], code: float) -> str:
    """Returns the label of a code; the code itself as text if it has none."""
    return labels[int(code)] if 0 <= code < len(labels) and code == int(code) else f"{code:g}"


def flags(labels: Sequence[str]) -> dict[str, Any]:
    """Returns the attributes of a series of codes: `labels` has the exact names as JSON; the others follow CF.

    CF separates `flag_meanings` by blanks and allows few other characters, so the names are adapted there.
    """
    words = distinct(re.sub(r"[^A-Za-z0-9_.+@-]", "_", label) or "_" for label in labels)
    codes = [float(code) for code in range(len(labels))]  # of the same type as the values
    return {"labels": json.dumps(list(labels)), "flag_values": codes, "flag_meanings": " ".join(words)}


def distinct(names: Iterable[str]) -> list[str]:
    """Returns `names` in their order; a repeated one gets a number."""
    found: list[str] = []
    for name in names:
        number = 1
        while (candidate := name if number == 1 else f"{name}_{number}") in found:
            number += 1
        found.append(candidate)
    return found


Layout = tuple[Column, ...]


@dataclass(frozen=True)
class Measurement:
    """All readings of one step: a layout and the values in its order, flat."""

    step: float
    layout: Layout
    values: Floats


def plain_step(step: Any) -> float:
    """Returns `step` as a finite Python number: an int if it was one and float64 represents it exactly."""
    number = step.item() if getattr(step, "ndim", None) == 0 else step  # of numpy or torch
    if not isinstance(number, int | float) or isinstance(number, bool) or not abs(number) <= LARGEST_STEP:
        raise UsageError(
            f"step {step!r} is not a finite number (of at most {LARGEST_STEP:g}); "
            "give the training step, or the time of a flow"
        )
    return number if isinstance(number, int) and abs(number) <= 2**53 else float(number)


def pack(step: float, readings: Iterable[Reading], known: Mapping[str, Column] | None = None) -> Measurement:
    """Returns `readings` as one measurement; an unchanged column is taken from the `known` ones."""
    step = plain_step(step)
    columns, values = [], []
    for reading in readings:
        array = reading.array()
        columns.append(column_of(reading, array.shape, (known or {}).get(reading.name)))
        values.append(array.ravel())
    return Measurement(step, tuple(columns), np.concatenate(values) if values else np.empty(0))


def column_of(reading: Reading, shape: tuple[int, ...], known: Column | None = None) -> Column:
    """Returns the column of `reading`: `known` itself if it is equal."""
    form = (tuple(reading.dims), shape, tuple((dim, tuple(labels)) for dim, labels in reading.coords.items()))
    labels = tuple(reading.labels)
    if known is not None and (known.dims, known.shape, known.coords) == form and known.labels == labels:
        return known
    coords = tuple((dim, tuple(plain(values, keep_nan=True))) for dim, values in form[2])
    return Column(reading.name, form[0], shape, coords, labels)


def joined(known: Column, other: Column) -> Column:
    """Returns a column with every coordinate and label of both, first those of `known`."""
    if set(known.dims) != set(other.dims):
        raise UsageError(f"series {known.name!r} has dims {known.dims} at some steps and {other.dims} at others")
    coordinates = {dim: tuple(dict.fromkeys(known.coordinate(dim) + other.coordinate(dim))) for dim in known.dims}
    shape = tuple(len(coordinates[dim]) for dim in known.dims)
    named = {dim for dim, _ in (*known.coords, *other.coords)}
    coords = tuple((dim, coordinates[dim]) for dim in known.dims if dim in named)
    return Column(known.name, known.dims, shape, coords, tuple(dict.fromkeys(known.labels + other.labels)))


def check_same(column: Column, before: Column) -> None:
    """Raises a ValueError if `column` has other dims, coordinates or labels than `before`; their order may differ."""
    if sorted(zip(column.dims, column.shape, strict=True)) != sorted(zip(before.dims, before.shape, strict=True)):
        was, now = (dict(zip(one.dims, one.shape, strict=True)) for one in (before, column))
        raise ValueError(f"reading {column.name!r} changed from shape {was} to {now}")
    kept = [(f"coordinates of {dim!r}", before.coordinate(dim), column.coordinate(dim)) for dim in before.dims]
    for what, old, new in (*kept, ("labels", before.labels, column.labels)):
        if set(old) != set(new):
            raise ValueError(f"reading {column.name!r} changed its {what} from {list(old)} to {list(new)}")


def placed(values: Floats, column: Column, target: Column) -> Floats:
    """Returns `values` [n, *column.shape] in the layout of `target`, [n, *target.shape]; nan if `column` has none.

    Dims, coordinates and labels are matched by name, so their order does not matter.
    """
    if (column.dims, column.shape, column.coords) != (target.dims, target.shape, target.coords):
        values = values.transpose(0, *(1 + column.dims.index(dim) for dim in target.dims))
        found = np.full((len(values), *target.shape), np.nan)
        found[np.ix_(range(len(values)), *(_places(column, target, dim) for dim in target.dims))] = values
        values = found
    if column.labels and column.labels != target.labels:
        values = _recoded(values, [target.labels.index(label) for label in column.labels])
    return values


def _places(column: Column, target: Column, dim: str) -> list[int]:
    """Returns the index in `target` of each coordinate of `column`."""
    index = {label: place for place, label in enumerate(target.coordinate(dim))}
    return [index[label] for label in column.coordinate(dim)]


def _recoded(codes: Floats, new: Sequence[int]) -> Floats:
    """Returns `codes` with `new[code]` for every code that has a label."""
    labelled = (codes >= 0) & (codes < len(new)) & (codes == np.floor(codes))
    found = codes.copy()
    found[labelled] = np.asarray(new, dtype=np.float64)[codes[labelled].astype(np.int64)]
    return found


def layout_to_json(layout: Layout) -> str:
    """Returns the layout as one JSON text."""
    return json.dumps([[c.name, c.dims, c.shape, c.coords, c.labels] for c in layout])


def layout_from_json(text: str) -> Layout:
    """Reads a layout that `layout_to_json` wrote; anything else is a `ValueError`."""
    read = json.loads(text)
    json.dumps(read, ensure_ascii=False).encode()  # raises an error for half a surrogate pair
    layout = tuple(
        Column(n, tuple(d), tuple(s), tuple((k, tuple(v)) for k, v in c), tuple(b)) for n, d, s, c, b in read
    )
    if len({column.name for column in layout}) < len(layout) or not all(map(_can_be, layout)):
        raise ValueError("its layout is not that of a timeline")
    return layout


def _can_be(column: Column) -> bool:
    sizes = dict(zip(column.dims, column.shape, strict=True))
    return (
        all(isinstance(word, str) for word in (column.name, *column.dims, *column.labels))
        and all(type(size) is int and size >= 0 for size in column.shape)
        and len(sizes) == len(column.dims)
        and all(len(labels) == sizes.get(dim) for dim, labels in column.coords)
        and all(isinstance(label, str | int | float) for _, labels in column.coords for label in labels)
    )


class Timeline(Mapping[str, Any]):
    """`timeline.dataset` is an `xarray.Dataset` over `step`; `timeline[name]` is one `DataArray` of it.

    The steps are strictly increasing. If a step was measured twice, the later measurement is used. If the coordinates
    or labels of a series change between measurements, they are matched by name.
    """

    def __init__(self, measurements: Sequence[Measurement], attributes: Mapping[str, Any] | None = None) -> None:
        one_per_step = {plain_step(m.step): m for m in measurements}  # the last one of several counts
        self._measurements = [one_per_step[step] for step in sorted(one_per_step)]
        self.attributes = dict(attributes or {})
        self._columns: dict[str, Column] = {}
        for layout in self._rows:
            for column in layout:
                known = self._columns.setdefault(column.name, column)
                if known != column:
                    self._columns[column.name] = joined(known, column)

    @property
    def measurements(self) -> Sequence[Measurement]:
        """The measurements, one for each of `steps`."""
        return self._measurements

    def save(self, name: str, **options: Any) -> Run:
        """Writes the timeline as the run `name`, with stages and a report, and returns the run.

        Options as of `sl.Recorder`: `runs`, `config`, `stage_names` and `predictions`.
        """
        saved: Run = import_module("stagelens.api").save_timeline(self, name, **options)  # a room above this one
        return saved

    @cached_property
    def _rows(self) -> dict[Layout, NDArray[np.int64]]:
        """The indices of the measurements with each layout. A layout that many share is hashed and compared once."""
        shared: dict[int, list[int]] = {}
        for index, measurement in enumerate(self._measurements):
            shared.setdefault(id(measurement.layout), []).append(index)
        rows: dict[Layout, list[int]] = {}
        for own in shared.values():
            rows.setdefault(self._measurements[own[0]].layout, []).extend(own)
        return {layout: np.array(own, dtype=np.int64) for layout, own in rows.items()}

    @cached_property
    def steps(self) -> NDArray[Any]:
        """The measured steps (int64), or times of a flow (float64), sorted."""
        steps = np.array([m.step for m in self._measurements], dtype=np.float64)
        with np.errstate(invalid="ignore"):  # a time beyond the range of int64
            whole = steps.astype(np.int64)
        return whole if np.array_equal(whole, steps) else steps

    def column(self, name: str) -> Column:
        if name not in self._columns:
            raise unknown("series", name, self._columns)
        return self._columns[name]

    def series(self, name: str) -> Floats:
        """Returns the values of `name`, [step, ...]; nan if it was not measured."""
        column = self.column(name)
        return self._values[name].reshape(len(self._measurements), *column.shape)

    @cached_property
    def _values(self) -> dict[str, Floats]:
        """The values of each column, [step, size], collected one layout at a time."""
        values = {name: np.full((len(self._measurements), c.size), np.nan) for name, c in self._columns.items()}
        for layout, rows in self._rows.items():
            block = np.stack([self._measurements[row].values for row in rows])
            start = 0
            for column in layout:
                own = block[:, start : start + column.size]
                target = self._columns[column.name]
                if column is not target:
                    own = placed(own.reshape(-1, *column.shape), column, target).reshape(-1, target.size)
                values[column.name][rows] = own
                start += column.size
        return values

    def scalar(self, name: str, place: Mapping[str, Any] | None = None) -> tuple[NDArray[Any], Floats]:
        """Returns (steps, values) of a series of one number per step, at the steps at which it was measured.

        `probe/reading[head=2]`, or `place={"head": 2}`, picks one number of a series with dims. Only `mean()` averages.
        """
        from stagelens.timelines.curves import one_number

        return one_number(self, name, place)

    @cached_property
    def dataset(self) -> xarray.Dataset:
        """All series over `step`, with named dims and coordinates."""
        import xarray

        coords: dict[str, Any] = {"step": self.steps}
        agree = True
        for column in self._columns.values():
            for dim in column.dims:
                agree &= list(coords.setdefault(dim, list(column.coordinate(dim)))) == list(column.coordinate(dim))
        if agree:
            dataset = xarray.Dataset({name: self._variable(name) for name in self._columns}, coords)
        else:
            dataset = xarray.merge([self[name] for name in self._columns], join="outer")
        dataset.attrs.update(
            {key: value for key, value in self.attributes.items() if isinstance(value, str | int | float)}
        )
        return dataset

    def _variable(self, name: str) -> xarray.Variable:
        import xarray

        column = self.column(name)
        attrs = flags(column.labels) if column.labels else {}
        return xarray.Variable(("step", *column.dims), self.series(name), attrs)

    def __getitem__(self, name: str) -> xarray.DataArray:
        """Returns a series with its dims, or the part of it that a name such as `probe/reading[head=0]` selects."""
        import xarray

        from stagelens.timelines.curves import picked

        if name not in self:
            return picked(self, name)
        column = self.column(name)
        coords = {dim: list(column.coordinate(dim)) for dim in column.dims}
        return xarray.DataArray(self._variable(name), coords={"step": self.steps, **coords}, name=name)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        last = f", last {self.steps[-1]}" if len(self.steps) else ""
        return f"<Timeline: {len(self.steps)} steps{last}; {', '.join(self._columns)}>"
