"""Exports of a timeline: parquet and csv as a tidy table, netCDF as labelled arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stagelens.base import UsageError, unknown, writing
from stagelens.timelines.timeline import distinct

if TYPE_CHECKING:
    import pandas
    import xarray

    from stagelens.runs import Run
    from stagelens.timelines.timeline import Timeline

ENDINGS = {"parquet": ".parquet", "netcdf": ".nc", "csv": ".csv"}
FIXED = ("step", "series", "value", "label")  # columns of a table; a dim of such a name gets another heading


def export(run: Run, format: str, path: Path | None = None) -> Path:
    """Writes the timeline of `run` and returns the path of the file."""
    if format not in ENDINGS:
        raise unknown("format", format, ENDINGS)
    if not len(run.timeline.steps):
        raise UsageError(f"run {run.name!r} has recorded nothing yet, so there is nothing to export")
    path = path or run.folder / f"timeline{ENDINGS[format]}"
    with writing(path) as aside:
        if format == "netcdf":
            netcdf(run.timeline).to_netcdf(aside, engine="scipy")
        elif format == "csv":
            tidy(run.timeline).to_csv(aside, index=False)
        else:
            tidy(run.timeline).to_parquet(aside, index=False)
    return path


def tidy(timeline: Timeline) -> pandas.DataFrame:
    """Returns a table with one row per number: step, series, a column for each dim, value, label.

    `label` is the label of a code. A cell is empty if the series has no such dim, or no labels.
    """
    import pandas

    dims = list(dict.fromkeys(dim for name in timeline for dim in timeline.column(name).dims))
    headings = dict(zip(dims, distinct([*FIXED, *dims])[len(FIXED) :], strict=True))
    frames = []
    for name in timeline:
        column, values = timeline.column(name), timeline.series(name)
        index = np.indices(values.shape).reshape(values.ndim, -1)
        frame = pandas.DataFrame({"step": timeline.steps[index[0]], "series": name})
        for position, dim in enumerate(column.dims, start=1):
            places = np.array([str(label) for label in column.coordinate(dim)], dtype=object)
            frame[headings[dim]] = places[index[position]]
        frame["value"] = values.ravel()
        frame = frame[~np.isnan(values.ravel())]
        if column.labels:
            frame = frame.assign(label=[column.label(code) for code in frame["value"]])
        frames.append(frame)
    words = [*headings.values(), "label"]
    table = pandas.concat(frames, ignore_index=True).reindex(columns=["step", "series", *headings.values(), *FIXED[2:]])
    return table.astype(dict.fromkeys(words, "string"))


def netcdf(timeline: Timeline) -> xarray.Dataset:
    """Returns the dataset with names and steps that netCDF allows: no '/' in a name, no integers beyond 2^31.

    The attribute `series` of a variable is its original name.
    """
    dataset = timeline.dataset
    if np.abs(timeline.steps).max(initial=0) >= 2**31:
        dataset = dataset.assign_coords(step=timeline.steps.astype(np.float64))
    names = [str(name) for name in dataset.data_vars]
    dataset = dataset.assign({name: dataset[name].assign_attrs(series=name) for name in names})
    return dataset.rename(dict(zip(names, distinct(name.replace("/", ".") for name in names), strict=True)))
