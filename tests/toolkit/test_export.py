"""Exports, read back by other libraries."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import xarray
from small import Regression, Repeats, run

import stagelens as sl
from stagelens.errors import EnvironmentFault, UsageError
from stagelens.export import export, netcdf
from stagelens.manifest import load_manifest
from stagelens.store import FILE
from stagelens.timeline import Timeline, pack


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    kind = type("WithPhases", (Repeats,), {"probes": ("attention_sparsity", "head_specialization", "weight_norms")})
    return run(kind, tmp_path_factory.mktemp("runs"), settings={"steps": 8})


def check_table(table, timeline):
    """Every measured number is one row, at its step and coordinates; nothing else is."""
    assert set(table["series"]) == set(timeline)
    for name in timeline:
        expected = timeline[name]
        rows = table[table["series"] == name]
        assert len(rows) == int(expected.notnull().sum())
        for row in rows.to_dict("records"):
            place = {d: row[d] for d in expected.dims if d != "step"}
            labelled = expected.assign_coords({d: [str(v) for v in expected[d].values] for d in place})
            assert labelled.sel(step=row["step"], **place).item() == row["value"]
            assert all(
                pandas.isna(row[d]) for d in table.columns if d not in {*expected.dims, "series", "value", "step"}
            )


def test_parquet_holds_every_number_exactly(done):
    path = export(done, "parquet")
    assert path == done.folder / "timeline.parquet"
    check_table(pandas.read_parquet(path), done.timeline)


def test_csv_holds_every_number_exactly(done, tmp_path):
    path = export(done, "csv", tmp_path / "out.csv")
    kinds = dict.fromkeys(pandas.read_csv(path, nrows=0).columns.difference(["step", "value"]), "string")
    check_table(pandas.read_csv(path, dtype=kinds, converters={"value": float}), done.timeline)


def test_netcdf_holds_the_labelled_arrays(done):
    with xarray.open_dataset(export(done, "netcdf"), engine="scipy") as found:
        assert set(found.data_vars) == {name.replace("/", ".") for name in done.timeline}
        for name, array in done.timeline.items():
            back = found[name.replace("/", ".")]
            assert back.dims == array.dims
            assert np.array_equal(back.values, array.values, equal_nan=True)
            for dim in array.dims:
                assert [str(v) for v in back[dim].values] == [str(v) for v in array[dim].values]
        assert found.attrs["task"] == Repeats.id and found.attrs["seed"] == 0
        assert found["head_specialization.phase"].attrs["flag_meanings"] == "diffuse competitive cooperative"


def test_mistakes_of_an_export(done, tmp_path):
    with pytest.raises(UsageError, match=r"unknown format 'parket' \(did you mean 'parquet'\?\)"):
        export(done, "parket")
    with pytest.raises(EnvironmentFault, match=r"cannot write .*nowhere"):
        export(done, "csv", tmp_path / "nowhere" / "out.csv")
    empty = run(Regression, tmp_path / "runs", settings={"steps": 1})
    (empty.folder / FILE).unlink()
    with pytest.raises(EnvironmentFault, match="holds 0 measurements, which are not those that the run ended with"):
        export(sl.load(empty.folder), "csv")
    manifest = load_manifest(empty.folder)
    manifest.timeline = ""  # as of a run that was killed before it measured
    manifest.save(empty.folder)
    for format in ("parquet", "csv", "netcdf"):
        with pytest.raises(UsageError, match="has recorded nothing yet"):
            export(sl.load(empty.folder), format)
    assert not list(empty.folder.glob("timeline.*"))


def test_netcdf_takes_steps_beyond_its_whole_numbers():
    steps = [0, 2**31, 2**62]
    found = netcdf(Timeline([pack(step, [sl.Reading("loss", 1.0)]) for step in steps]))
    written = xarray.open_dataset(found.to_netcdf(engine="scipy"), engine="scipy")
    assert written.step.values.tolist() == steps
