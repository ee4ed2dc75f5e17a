"""Exports, read back by other libraries."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import xarray

import stagelens as sl
from kit.tasks import Regression, Repeats, run
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.runs.manifest import load_manifest
from stagelens.runs.store import FILE
from stagelens.timelines.exporting import export, netcdf
from stagelens.timelines.timeline import Timeline, pack


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    kind = type("WithPhases", (Repeats,), {"probes": ("attention_sparsity", "head_specialization", "weight_norms")})
    return run(kind, tmp_path_factory.mktemp("runs"), settings={"steps": 8})


def check_table(table, timeline):
    """Every measured number is one row, at its step and coordinates; nothing else is."""
    assert set(table["series"]) == set(timeline)
    for name, array in timeline.items():
        labelled = array.assign_coords({d: [str(v) for v in array[d].values] for d in array.dims if d != "step"})
        rows = table[table["series"] == name]
        found = rows.set_index(list(array.dims))["value"]
        assert found.index.is_unique and found.to_dict() == labelled.to_series().dropna().to_dict()
        labels = timeline.column(name).labels
        named = [labels[int(value)] for value in rows["value"]] if labels else [pandas.NA] * len(rows)
        assert rows["label"].fillna("").tolist() == pandas.Series(named, dtype="string").fillna("").tolist()
        others = set(table.columns) - {*array.dims, "series", "value", "step", "label"}
        assert rows[list(others)].isna().all(axis=None)


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


WORDS = {
    "blanks": ("0 back", "1 back", "rest"),
    "alike in CF": ("0 back", "0_back", "0/back", "0_back_2"),
    "of any kind": (
        "I(2)",
        "\u03b2\u2192\u00e9",
        'a "quoted", one',
        "two\nlines",
        "1",
        "-",
        "x;y\tz",
        "NA",
        "None",
        "nan",
    ),
}


@pytest.mark.parametrize("labels", WORDS.values(), ids=WORDS)
def test_labels_are_read_back_from_every_format(labels, tmp_path):
    """A series that has all of its labels, one with other labels, and one without labels."""
    steps = range(len(labels) + 1)
    leaders = np.stack([[step % len(labels), (step + 1) % len(labels)] for step in steps]).astype(float)

    def readings(step):
        coords = {"head": labels[:2]}
        yield sl.Reading("p/leader", leaders[step], ("head",), coords, labels=labels)
        yield sl.Reading("p/phase", float(step % 2), labels=("one two", "three"))
        yield sl.Reading("loss", float(step))

    timeline = Timeline([pack(step, readings(step)) for step in steps])
    expected = [[labels[int(code)] for code in row] for row in leaders]
    run = SimpleNamespace(timeline=timeline, name="r", folder=tmp_path)

    with xarray.open_dataset(export(run, "netcdf"), engine="scipy") as found:
        leader = found["p.leader"]
        names = json.loads(leader.attrs["labels"])
        assert [[names[int(code)] for code in row] for row in leader.values] == expected
        assert leader.attrs["series"] == "p/leader" and json.loads(found["p.phase"].attrs["labels"])[0] == "one two"
        assert [*leader["head"].values] == [*labels[:2]]
        meanings = leader.attrs["flag_meanings"].split(" ")  # as CF says
        assert len({*meanings}) == len(labels) == len(np.atleast_1d(leader.attrs["flag_values"]))
        assert all(re.fullmatch(r"[A-Za-z0-9_.+@-]+", word) for word in meanings)
        assert "labels" not in found["loss"].attrs

    parquet = pandas.read_parquet(export(run, "parquet"))
    csv = pandas.read_csv(export(run, "csv"), keep_default_na=False, dtype=dict.fromkeys(("label", "head"), str))
    for table in (parquet, csv):
        for head in (0, 1):
            rows = table[(table["series"] == "p/leader") & (table["head"] == labels[head])]
            assert rows["label"].tolist() == [row[head] for row in expected]
        assert table[table["series"] == "p/phase"]["label"].tolist() == [("one two", "three")[s % 2] for s in steps]
        assert not table[table["series"] == "loss"]["label"].fillna("").str.len().any()


def test_names_that_a_format_cannot_hold_stay_apart(tmp_path):
    """Two series that are alike without '/', and dims with the names of a table's own columns."""
    given = [sl.Reading("a/b", 1.0), sl.Reading("a.b", 2.0)]
    given += [sl.Reading("c", np.array([[3.0, 4.0]]), ("value", "label"), {"label": ["x", "y"]})]
    run = SimpleNamespace(timeline=Timeline([pack(0, given)]), name="r", folder=tmp_path)
    with xarray.open_dataset(export(run, "netcdf"), engine="scipy") as found:
        assert {array.attrs["series"]: array.values.ravel().tolist() for array in found.values()} == {
            "a/b": [1.0],
            "a.b": [2.0],
            "c": [3.0, 4.0],
        }
    for table in (pandas.read_parquet(export(run, "parquet")), pandas.read_csv(export(run, "csv"))):
        assert table["value"].tolist() == [1.0, 2.0, 3.0, 4.0]
        assert table[table["series"] == "c"]["label_2"].tolist() == ["x", "y"]


@pytest.mark.parametrize("task", ["markov", "recall/simplified", "recall/original"])
def test_labels_of_a_run_decode_to_what_the_timeline_says(task, tmp_path):
    """The leaders and phases of heads in tasks with labels of their own."""
    done = sl.run(task, settings={"steps": 3, "batch_size": 4, "eval_size": 4}, runs=tmp_path, report=False)
    table = pandas.read_parquet(export(done, "parquet"))
    checked = 0
    with xarray.open_dataset(export(done, "netcdf"), engine="scipy") as found:
        for array in found.values():
            column = done.timeline.column(array.attrs["series"])
            if column.labels:
                names = json.loads(array.attrs["labels"])
                codes = array.values[~np.isnan(array.values)]
                rows = table[table["series"] == column.name]
                assert [names[int(c)] for c in codes] == [column.label(c) for c in codes] == rows["label"].tolist()
                checked += 1
    assert checked >= 2


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


def test_netcdf_takes_steps_beyond_its_integers():
    steps = [0, 2**31, 2**62]
    found = netcdf(Timeline([pack(step, [sl.Reading("loss", 1.0)]) for step in steps]))
    written = xarray.open_dataset(found.to_netcdf(engine="scipy"), engine="scipy")
    assert written.step.values.tolist() == steps
