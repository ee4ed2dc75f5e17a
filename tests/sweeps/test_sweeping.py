"""Sweeps: each grid point runs once, the table has them all, and the fit finds the known power law."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pandas
import pytest

import stagelens as sl
from kit.sweep_plugin import Power
from kit.swept import Here
from stagelens.base.errors import UsageError
from stagelens.host.host import make_host
from stagelens.sweeps import Tally, plan_sweep
from stagelens.sweeps.estimating import estimate


def sweep(runs: Path, grid, executor=None, **options) -> sl.Sweep:
    return sl.sweep(Power, grid, executor=executor or Here(), runs=runs, **{"measures": "event:half"} | options)


GRID = {"T": [1, 2, 4], "d": [1, 4]}


def test_the_law_that_was_put_in_comes_out(tmp_path) -> None:
    swept = sweep(tmp_path, GRID, fit="T,d")
    assert swept.law is not None
    assert swept.law.exponents["T"].value == pytest.approx(1, abs=1e-6)
    assert swept.law.exponents["d"].value == pytest.approx(0.5, abs=1e-6)
    assert swept.law.constant == pytest.approx(math.log(2), rel=1e-6)
    assert swept.law.r2 == pytest.approx(1)


def test_a_feature_that_the_task_names_can_be_fitted(tmp_path) -> None:
    swept = sweep(tmp_path, GRID, fit=["T*sqrt(d)"])
    assert swept.law is not None
    assert swept.law.exponents["T*sqrt(d)"].value == pytest.approx(1, abs=1e-6)


def test_the_table_is_tidy_and_on_disk_as_csv_and_parquet(tmp_path) -> None:
    swept = sweep(tmp_path, GRID, seeds=2, measures=["event:half", "loss:final"])
    assert list(swept.table.columns) == [
        *("T", "d", "seed", "event:half", "loss:final", "censored", "status", "seconds", "run", "error", "reason")
    ]
    assert len(swept.table) == 12
    assert (swept.table["status"] == "finished").all()
    expected = np.log(2) * swept.table["T"] * np.sqrt(swept.table["d"])
    np.testing.assert_allclose(swept.table["event:half"], expected, rtol=1e-6)
    back = pandas.read_parquet(swept.files["parquet"])
    pandas.testing.assert_frame_equal(back, swept.table)
    assert len(pandas.read_csv(swept.files["csv"])) == 12


def test_a_repeated_sweep_runs_nothing_and_a_new_value_only_its_points(tmp_path) -> None:
    sweep(tmp_path, GRID, first := Here())
    sweep(tmp_path, GRID, again := Here())
    sweep(tmp_path, GRID | {"T": [1, 2, 8]}, more := Here())
    sweep(tmp_path, GRID, seeds_too := Here(), seeds=2)
    assert [len(x.jobs) for x in (first, again, more, seeds_too)] == [6, 0, 2, 6]
    assert {job.settings["T"] for job in more.jobs} == {"8"}
    assert {job.seeds for job in seeds_too.jobs} == {(1,)}


def test_a_point_s_folder_is_named_by_its_content_whatever_the_grid_says(tmp_path) -> None:
    one = plan_sweep(Power, {"T": [2]}, settings={"d": 4}, runs=tmp_path).points
    other = plan_sweep(Power, ["d=4"], settings=["T=2.0"], runs=tmp_path).points
    assert [point.name for point in one] == [point.name for point in other]
    assert one[0].name != plan_sweep(Power, {"T": [3]}, settings={"d": 4}, runs=tmp_path).points[0].name


def test_a_failed_point_is_reported_with_its_reason_and_command_and_tried_again(tmp_path) -> None:
    seen: list[Tally] = []
    swept = sweep(tmp_path, {"broken": ["false", "true"]}, watch=seen.append)
    assert (len(swept.done), len(swept.failed)) == (1, 1)
    (failure,) = swept.failed
    assert failure["reason"] == "ZeroDivisionError: a defect of the plugin"
    assert failure["point"] == {"broken": "true", "seed": 0}
    assert swept.table["status"].tolist() == ["finished", "failed"]
    assert failure["command"].startswith("stagelens.run(Power, preset='quick', settings={'broken': 'true'}, seed=0, ")
    with pytest.raises(ZeroDivisionError):
        eval(failure["command"], {"stagelens": sl, "Power": Power})
    assert [tally.done for tally in seen] == [0, 1, 1]
    assert list(seen[-1].failures.values()) == [failure["reason"]]
    sweep(tmp_path, {"broken": ["false", "true"]}, again := Here())
    assert len(again.jobs) == 1


def test_the_command_that_repeats_a_point_has_all_that_the_sweep_was_given(tmp_path) -> None:
    options = {"probes": ["key_value", "plateau_length"], "device": "cpu", "plugin_dirs": ["a folder"]}
    plan = plan_sweep(Power, {"T": [1]}, runs=tmp_path, host=make_host(), **options)
    command = plan.command(plan.points[0])
    assert command.startswith(
        "stagelens --plugin-dir 'a folder' run power/law --preset quick --set T=1 --seed 0 "
        "--probes key_value,plateau_length --device cpu --runs "
    )


def test_a_value_or_seed_that_is_given_twice_is_one_point(tmp_path) -> None:
    plan = plan_sweep(Power, ["T=1,1.0,2"], seeds=[3, 3], runs=tmp_path)
    assert [(point.config.T, point.seed) for point in plan.points] == [(1, 3), (2, 3)]
    assert [job.seeds for job in plan.jobs()] == [(3,), (3,)]


def test_a_measure_that_the_runs_do_not_have_is_reported_before_anything_runs(tmp_path) -> None:
    executor = Here()
    with pytest.raises(UsageError, match="unknown event 'never'"):
        sweep(tmp_path, {"T": [1, 2, 4]}, executor, measures=["loss:final", "event:never"])
    assert len(executor.jobs) == 0


def test_every_sweep_metric_reports_its_censored_points(tmp_path) -> None:
    swept = sweep(tmp_path, {"T": [1, 1000]}, measures=["loss:final", "event:half", "loss:best"])
    assert swept.table["censored"].tolist() == [False, False]
    assert swept.table["censored:event:half"].tolist() == [False, True]
    assert "censored:loss:best" not in swept.table
    assert swept.censored == {"event:half": 1}


def test_points_that_never_reach_the_threshold_are_censored_and_reported(tmp_path) -> None:
    swept = sweep(tmp_path, {"T": [1, 2, 4, 1000]}, measures="plateau_length@0.6", fit="T")
    assert swept.law is not None
    assert swept.table["censored"].tolist() == [False, False, False, True]
    assert swept.law.censored == swept.to_dict()["censored"] == 1
    assert swept.law.exponents["T"].value == pytest.approx(1, abs=0.02)


def test_a_point_without_a_value_has_the_reason_in_its_row(tmp_path) -> None:
    swept = sweep(tmp_path, {"T": [1, 2]}, measures=["loss:stage9", "loss:final"])
    assert swept.table["loss:stage9"].isna().all()
    stages = [len(run.stages()) for run in swept]
    assert [row["reason"] for row in swept.rows] == [f"loss:stage9: the run has {count} stages" for count in stages]
    assert json.loads((swept.folder / "sweep.json").read_text())["table"][0]["loss:stage9"] is None
    assert (sweep(tmp_path, {"T": [1, 2]}).table["reason"] == "").all()


def test_a_measure_that_the_points_do_not_have_is_reported_before_anything_runs(tmp_path) -> None:
    sweep(tmp_path, {"T": [1]})
    here = Here()
    with pytest.raises(UsageError, match="unknown series 'lost'"):
        sweep(tmp_path, {"T": [1, 2]}, executor=here, measures="lost:final")
    assert not here.jobs


def test_the_interval_is_over_grid_points_whose_seeds_count_once(tmp_path) -> None:
    swept = sweep(tmp_path, {"T": [1, 3, 9]}, seeds=4, settings={"noise": 0.1}, fit="T")
    assert swept.law is not None
    exponent = swept.law.exponents["T"]
    assert (swept.law.grid_points, swept.law.points) == (3, 12)
    means = swept.table.groupby("T")[swept.measures[0]].apply(lambda losses: np.exp(np.log(losses).mean()))
    known = sl.fit_law({"T": list(means.index)}, list(means)).exponents["T"]
    assert (exponent.low, exponent.high) == pytest.approx((known.low, known.high))


def test_the_json_has_the_promised_keys_and_is_stored_next_to_the_table(tmp_path) -> None:
    swept = sweep(tmp_path, GRID, fit="T,d")
    shape = json.loads((swept.folder / "sweep.json").read_text())
    assert {"points", "done", "failed", "table", "fit"} <= set(shape)
    assert (shape["points"], shape["done"], shape["failed"]) == (6, 6, 0)
    assert set(shape["fit"]) >= {"constant", "r2", "exponents"}
    assert set(shape["fit"]["exponents"]["T"]) == {"value", "low", "high"}
    assert shape["table"][0]["T"] == 1


def test_figures_are_drawn_for_the_measure_the_law_and_its_residuals(tmp_path) -> None:
    swept = sweep(tmp_path, GRID, fit="T,d")
    drawn = sorted(path.name for path in (swept.folder / "figures").iterdir())
    assert drawn == [f"{name}.{ending}" for name in ("law", "measure", "residuals") for ending in ("png", "svg")]
    assert "T^1.000" in (swept.folder / "figures" / "law.svg").read_text()


def test_no_line_is_drawn_through_what_was_never_reached(tmp_path) -> None:
    from stagelens.figures.sweeps import measure_figure

    (axis,) = measure_figure(sweep(tmp_path, {"T": [1, 2, 1000]})).axes
    dots, carets, line, _ = (np.asarray(drawn.get_ydata(), float) for drawn in axis.lines)
    assert (len(dots), len(carets)) == (2, 1)
    assert np.isnan(line).tolist() == [False, False, True]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["never reached (censored)"]


def test_a_law_that_cannot_be_fitted_leaves_the_table_and_says_why(tmp_path) -> None:
    swept = sweep(tmp_path, {"T,d": [(1, 1), (2, 3)]}, fit="T,d")
    assert swept.law is None
    assert "2 points for 3 unknowns" in swept.fit_error
    assert len(pandas.read_csv(swept.files["csv"])) == 2


def test_compare_takes_a_sweep(tmp_path) -> None:
    swept = sweep(tmp_path, {"T": [1, 2]}, seeds=2)
    for given in (swept, swept.folder, str(swept.folder)):
        assert [len(group.members) for group in sl.compare(given).groups] == [2, 2]
    assert len(sl.compare(swept.folder.name, folder=tmp_path).groups) == 2


def test_the_seeds_of_a_point_are_vectorized_by_default(tmp_path) -> None:
    from kit.tasks import Regression

    options = {"grid": {"lr": [0.01, 0.02]}, "seeds": 3, "measures": "loss:final"}
    together = sl.sweep(Regression, executor=(one := Here()), runs=tmp_path / "together", **options)
    apart = sl.sweep(Regression, executor=(other := Here()), runs=tmp_path / "apart", ensemble=False, **options)
    assert [job.seeds for job in one.jobs] == [(0, 1, 2)] * 2
    assert [job.seeds for job in other.jobs] == [(0,), (1,), (2,)] * 2
    assert together.table["run"].tolist() == apart.table["run"].tolist()
    np.testing.assert_allclose(together.table["loss:final"], apart.table["loss:final"], rtol=1e-4)  # float32


def test_an_estimate_comes_from_finished_points_or_from_timing_one(tmp_path, monkeypatch) -> None:
    """The clock advances only while a point sleeps, half a second in each."""
    now = [0.0]
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    plan = plan_sweep(Power, {"T": [1, 2, 4, 8]}, settings={"sleep": 0.5}, runs=tmp_path)
    look = estimate(plan, workers=2)
    assert "timing the start of one point" in look.basis
    assert look.seconds == pytest.approx(4 * 0.5 / 2)  # four points, two at a time
    assert not plan.folder.exists()
    sweep(tmp_path, {"T": [1, 2]}, settings={"sleep": 0.5})
    known = estimate(plan, workers=2)
    assert "2 finished points" in known.basis
    assert known.seconds == pytest.approx(2 * 0.5 / 2)  # of the two that are missing


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"grid": {}}, "the grid is empty"),
        ({"grid": {"Q": [1]}}, "unknown grid key 'Q'"),
        ({"grid": {"d": ["many"]}}, "config key 'd': got 'many', input should be a valid integer"),
        ({"grid": {"T": [1]}, "settings": {"z": 1}}, "unknown config key 'z'"),
        ({"grid": {"T": [1]}, "fit": "q"}, "unknown column to fit 'q'"),
        ({"grid": {"label": ["a", "b"]}, "fit": "label"}, "its values are no numbers"),
        ({"grid": {"T": [1]}, "measures": "loss:soon"}, "unknown moment 'soon'"),
        ({"grid": {"T": [1]}, "executor": "cloud"}, "unknown executor 'cloud'"),
        ({"grid": {"T": [1]}, "seeds": 0}, "expected at least one"),
        ({"grid": {"T": [1]}, "executor": "local", "address": "here:1"}, "--address is for --executor ray"),
        ({"grid": ["T=1:10000:1", "d=1:1000:1"]}, "10,000,000 points .* add --yes"),
        ({"grid": {"T": [1]}, "probes": ["nothing"]}, "unknown probe 'nothing'"),
    ],
)
def test_mistakes_are_reported_in_one_line_before_anything_runs(options, word, tmp_path) -> None:
    with pytest.raises(UsageError, match=word) as told:
        sweep(tmp_path / "runs", **options)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("change", [{"settings": {"T": 7.0}}, {"seed": 3}, {"task": "other"}])
def test_a_point_that_was_replaced_by_another_run_is_run_again(tmp_path, change) -> None:
    first = sweep(tmp_path, {"T": [1, 2]})
    name = first.rows[1]["run"]
    kind = type("Other", (Power,), {"id": "power/other"}) if "task" in change else Power
    given = {"settings": {"T": 2}} | {key: value for key, value in change.items() if key != "task"}
    sl.run(kind, runs=tmp_path / "points", name=name, replace=True, report=False, **given)
    executor = Here()
    with pytest.warns(UserWarning, match=rf"1 of 2 points hold a run of another .*renamed to POINT.other .*{name}"):
        again = sweep(tmp_path, {"T": [1, 2]}, executor)
    assert [job.names for job in executor.jobs] == [(name,)]
    assert [row["event:half"] for row in again.rows] == [row["event:half"] for row in first.rows]
    assert (tmp_path / "points" / f"{name}.other" / "run.json").exists()


def test_points_are_set_aside_under_free_names_and_not_while_they_are_written(tmp_path) -> None:
    from filelock import FileLock

    name = sweep(tmp_path, {"T": [2]}).rows[0]["run"]
    folder = tmp_path / "points" / name
    for number in ("", "-2"):
        sl.run(Power, runs=folder.parent, name=name, replace=True, report=False, settings={"T": 7})
        with pytest.warns(UserWarning, match="1 of 1 points hold a run of another"):
            if not number:
                with FileLock(folder / "run.lock"), pytest.raises(UsageError, match="is being written by"):
                    sweep(tmp_path, {"T": [2]})
            sweep(tmp_path, {"T": [2]})
        assert (folder.parent / f"{name}.other{number}").exists()
    sweep(tmp_path, {"T": [2]})  # nothing is left to warn of
