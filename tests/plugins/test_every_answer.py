"""Every run has the same numbers in Python, on the command line, and in its report."""

from __future__ import annotations

import json
import math
import re
import shutil

import numpy as np
import pandas
import pytest

import stagelens as sl
from kit.store import host
from kit.tiny import reported_run, task_ids
from stagelens.base.errors import UsageError

every_task = pytest.mark.parametrize("task_id", task_ids())
CHART = re.compile(r'<script type="application/json" id="chart-data">(.*?)</script>', re.DOTALL)


def as_json(value):
    """`value` as a JSON document has it: lists for tuples, null for what is no number."""
    if isinstance(value, dict):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [as_json(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


@every_task
def test_the_command_line_prints_what_python_returns(task_id, cli, tmp_path):
    run = reported_run(task_id)
    folder = run.folder
    assert cli("show", folder, "--json").json == as_json(sl.load(folder).summary())
    scalars = [name for name in run.timeline if not run.timeline.column(name).dims]
    whole = [name for name in scalars if np.isfinite(run.timeline.series(name)).all()]
    for metric in {run.manifest.metric, whole[-1]}:
        found = sl.load(folder).stages(metric)
        answer = cli("stages", folder, "--metric", metric, "--json").json
        assert answer["stages"] == as_json(found.to_dicts()) and answer["metric"] == metric
        assert answer["transitions"] == [float(one.at) for one in found.transitions]
    exported = cli("export", folder, "--format", "csv", "-o", tmp_path / "all.csv", "--json").json
    assert_table_is(run, pandas.read_csv(exported["file"]))


def assert_table_is(run, table):
    """Every number of every series is in the exported table, once."""
    assert set(table["series"]) == set(run.timeline)
    for name in run.timeline:
        rows = table[table["series"] == name]
        values = run.timeline.series(name)
        assert len(rows) == values.size or len(rows) == np.isfinite(values).sum()
        found, expected = (np.sort(np.asarray(v, float).ravel()) for v in (rows["value"].dropna(), values))
        np.testing.assert_allclose(found, expected[np.isfinite(expected)], rtol=1e-12, err_msg=name)


@every_task
def test_a_run_and_its_copy_compare_as_one_run_twice(task_id, cli, tmp_path):
    run = reported_run(task_id)
    copy = shutil.copytree(run.folder, tmp_path / "runs" / "copy")
    for align in ("step", "fraction", "loss", "stage"):
        try:
            compared = sl.compare([run.folder, copy], align=align)
        except UsageError as error:  # a curve of a few points may have no stages, or rise
            assert align in ("loss", "stage") and len(str(error).split()) > 3
            continue
        groups = [[row | {"group": ""} for row in compared.table if row["group"] == group.name] for group in
                  compared.groups]  # fmt: skip
        if len(groups) == 2:
            assert as_json(groups[0]) == as_json(groups[1])
        else:  # the copy counts as the same seed
            assert len(compared.groups[0].members) == 2
        curves = compared.curves_by(align)
        half = len(curves) // len(compared.groups)
        if len(groups) == 2:
            for one, other in zip(curves[::2], curves[1::2], strict=True):
                np.testing.assert_array_equal(one.middle, other.middle)
        assert half
        words = ["compare", run.folder, copy, "--align", align, "--json"]
        assert cli(*words).json == as_json(compared.to_dict() | {"file": None})


@every_task
def test_the_chart_of_a_report_shows_every_number_of_the_timeline(task_id):
    run = reported_run(task_id)
    timeline = run.timeline
    chart = json.loads(CHART.search((run.folder / "report.html").read_text(encoding="utf-8"))[1])
    assert_close(chart["axes"]["run"]["step"], timeline.steps)
    drawn = {series["name"]: series for series in chart["series"]}
    companions = {name for name in timeline if re.fullmatch(r".*/.*_(error|chance)", name)} - drawn.keys()
    assert drawn.keys() | companions == set(timeline)
    for name, series in drawn.items():
        values = timeline.series(name).reshape(len(timeline.steps), -1)
        lines = [t["y"] for t in series["traces"] if not t.get("theory") and not t.get("faint")]
        if len(lines) == values.shape[1]:
            for line, expected in zip(lines, values.T, strict=True):
                assert_close(line, expected)
        else:  # averaged, and its title names the rule
            assert values.shape[1] > 64 and "(" in series["title"]
            means = np.array([[np.nan if y is None else y for y in line] for line in lines], float)
            if not timeline.column(name).labels and np.isfinite(values).all():
                assert_close(means.mean(0), values.mean(1), rtol=1e-4)
        if (chance := f"{name}_chance") in companions:
            levels = [t["y"] for t in series["traces"] if t.get("faint")]
            of_timeline = timeline.series(chance).reshape(len(timeline.steps), -1).T
            expected = {tuple(float(f"{y:.6g}") if np.isfinite(y) else None for y in line) for line in of_timeline}
            assert {tuple(line) for line in levels} == expected


def assert_close(found, expected, rtol=5.1e-6):
    """Six significant digits; null where there is no number."""
    found = np.array([np.nan if one is None else one for one in found], float)
    expected = np.where(np.isfinite(np.asarray(expected, float)), np.asarray(expected, float), np.nan)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-300)


def test_a_run_can_be_shown_without_the_host_that_made_it():
    """What these tests compare comes from the run directory alone."""
    run = reported_run("recall/flow")
    assert as_json(sl.load(run.folder).summary()) == as_json(sl.load(run.folder, host=host()).summary())
