"""The timeline: all readings of a run over its steps, as labelled arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stagelens.errors import unknown
from stagelens.reading import Reading

if TYPE_CHECKING:
    import xarray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """One series of a measurement: its name, dims, shape, coordinates and, where categorical, labels."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    coords: tuple[tuple[str, tuple[Any, ...]], ...]
    labels: tuple[str, ...] = ()

    def __hash__(self) -> int:  # of all fields it would take most of the time of storing a flow
        return hash(self.name)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def coordinate(self, dim: str) -> tuple[Any, ...]:
        return dict(self.coords).get(dim) or tuple(range(self.shape[self.dims.index(dim)]))

    def label(self, code: float) -> str:
        """What `code` stands for; a code without a label stands for itself."""
        return label_of(self.labels, code)


def label_of(labels: Sequence[str], code: float) -> str:
    return labels[int(code)] if 0 <= code < len(labels) else f"{code:g}"


Layout = tuple[Column, ...]


@dataclass(frozen=True)
class Measurement:
    """All readings of one step: a layout and the values in its order, flat."""

    step: float
    layout: Layout
    values: Floats


def pack(step: float, readings: Iterable[Reading], known: Mapping[str, Column] | None = None) -> Measurement:
    """`readings` as one measurement; a column that is among the `known` ones is taken from there."""
    columns, values = [], []
    for reading in readings:
        array = reading.array()
        columns.append(column_of(reading, array.shape, (known or {}).get(reading.name)))
        values.append(array.ravel())
    return Measurement(step, tuple(columns), np.concatenate(values) if values else np.empty(0))


def column_of(reading: Reading, shape: tuple[int, ...], known: Column | None = None) -> Column:
    """The column of `reading`; `known` itself where nothing about it is different."""
    form = (tuple(reading.dims), shape, tuple((dim, tuple(labels)) for dim, labels in reading.coords.items()))
    labels = tuple(reading.labels)
    if known is not None and (known.dims, known.shape, known.coords) == form and known.labels == labels:
        return known
    coords = tuple((dim, tuple(_plain(value) for value in values)) for dim, values in form[2])
    return Column(reading.name, form[0], shape, coords, labels)


def layout_to_json(layout: Layout) -> str:
    return json.dumps([[c.name, c.dims, c.shape, c.coords, c.labels] for c in layout])


def layout_from_json(text: str) -> Layout:
    """The layout that `layout_to_json` wrote; what it cannot have written is a `ValueError`."""
    read = json.loads(text)
    json.dumps(read, ensure_ascii=False).encode()  # half a surrogate pair is no text that can be shown
    layout = tuple(
        Column(n, tuple(d), tuple(s), tuple((k, tuple(v)) for k, v in c), tuple(b)) for n, d, s, c, b in read
    )
    if len({column.name for column in layout}) < len(layout) or not all(map(_can_be, layout)):
        raise ValueError("its layout is none of a timeline")
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
    """`timeline.dataset` is an `xarray.Dataset` over `step`; `timeline[name]` one `DataArray` of it."""

    def __init__(self, measurements: Sequence[Measurement], attributes: Mapping[str, Any] | None = None) -> None:
        self._measurements = sorted(measurements, key=lambda m: m.step)
        self.attributes = dict(attributes or {})
        self._columns: dict[str, Column] = {}
        for layout in self._rows:
            for column in layout:
                self._columns.setdefault(column.name, column)

    @cached_property
    def _rows(self) -> dict[Layout, NDArray[np.int64]]:
        """The places of the measurements with each layout. A layout that many share is hashed and compared once."""
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
        with np.errstate(invalid="ignore"):  # a time beyond the whole numbers
            whole = steps.astype(np.int64)
        return whole if np.array_equal(whole, steps) else steps

    def column(self, name: str) -> Column:
        if name not in self._columns:
            raise unknown("series", name, self._columns)
        return self._columns[name]

    def series(self, name: str) -> Floats:
        """The values of `name`, [step, ...]; nan where it was not measured."""
        column = self.column(name)
        return self._values[name].reshape(len(self._measurements), *column.shape)

    @cached_property
    def _values(self) -> dict[str, Floats]:
        """Each column's values, [step, size], gathered one layout at a time."""
        values = {name: np.full((len(self._measurements), c.size), np.nan) for name, c in self._columns.items()}
        for layout, rows in self._rows.items():
            block = np.stack([self._measurements[row].values for row in rows])
            start = 0
            for column in layout:
                if column.size == self._columns[column.name].size:
                    values[column.name][rows] = block[:, start : start + column.size]
                start += column.size
        return values

    def scalar(self, name: str, place: Mapping[str, Any] | None = None) -> tuple[NDArray[Any], Floats]:
        """(steps, values) of a series of one number a step, without the steps at which it was not measured.

        `place` picks one number of a series with dims, by coordinate: `{"head": 2}`.
        """
        from stagelens.errors import UsageError

        column = self.column(name)
        values = self.series(name)
        for dim, label in (place or {}).items():
            values = values.take([column.coordinate(dim).index(label)], axis=1 + column.dims.index(dim))
        if values.size != len(values):
            raise UsageError(
                f"series {name!r} has dims {column.dims} of shape {column.shape}; a single number was expected"
            )
        values = values.reshape(-1)
        there = ~np.isnan(values)
        return self.steps[there], values[there]

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
        attrs = {"flag_values": list(range(len(column.labels))), "flag_meanings": " ".join(column.labels)}
        return xarray.Variable(("step", *column.dims), self.series(name), attrs if column.labels else {})

    def __getitem__(self, name: str) -> xarray.DataArray:
        import xarray

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


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
