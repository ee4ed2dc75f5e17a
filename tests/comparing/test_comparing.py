"""Comparisons of runs whose curves are known."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

import stagelens as sl
from kit.written_runs import STEPS, staircase, timeline, write_run
from stagelens.base.errors import UsageError
from stagelens.figures.drawing import title_of
from stagelens.report.charts import comparison_chart

LEVELS = (3.0, 2.0, 1.0)


@pytest.fixture
def runs(tmp_path):
    """Writes two seeds of one task, the second of which is slower, and a run of another task on another scale."""
    heads = np.stack([STEPS / 1000, STEPS / 500], axis=1)[:, None, :]  # [step, layer, head]: mean 0.75 at the end
    for seed, at in enumerate([(200, 600), (300, 700)]):
        series = {"loss": staircase(STEPS, at, LEVELS), "s/entropy": (heads, ("layer", "head"))}
        write_run(tmp_path, f"seed{seed}", series, seed=seed, stage_names=["first", "second"])
    steps = np.arange(0, 101)
    other = {"loss": staircase(steps, (20, 60), (30.0, 20.0, 10.0), 1.0)}
    write_run(tmp_path, "other", other, steps, task="other/task", kind="flow")
    return tmp_path


def test_runs_that_differ_in_the_seed_are_one_group(runs):
    comparison = sl.compare(["seed0", "seed1", "other"], folder=runs)
    assert [group.name for group in comparison.groups] == ["made/up, 2 seeds", "other"]
    assert comparison.groups[0].seeds == [0, 1]


def test_groups_are_named_after_the_config_keys_in_which_they_differ(tmp_path):
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            write_run(tmp_path, f"{lr}-{seed}", {"loss": STEPS}, seed=seed, config={"lr": lr, "d": 5})
    comparison = sl.compare(sorted(path.name for path in tmp_path.iterdir()), folder=tmp_path)
    assert [group.name for group in comparison.groups] == ["made/up lr=0.1, 2 seeds", "made/up lr=0.2, 2 seeds"]


def test_the_same_seed_twice_does_not_count_twice(tmp_path):
    write_run(tmp_path, "a", {"loss": STEPS})
    write_run(tmp_path, "b", {"loss": STEPS})
    assert [group.name for group in sl.compare(["a", "b", "a"], folder=tmp_path).groups] == ["a", "b"]


def test_runs_without_a_seed_go_by_their_names(tmp_path, cli):
    for name, seeded in (("a", False), ("b", False), ("c", True)):
        write_run(tmp_path, name, {"loss": STEPS}, kind="loop", task="loop", seeded=seeded)
    groups = sl.compare(["a", "b", "c"], folder=tmp_path).groups
    assert [(group.name, group.seeds) for group in groups] == [("a", [None]), ("b", [None]), ("c", [0])]
    printed = cli("compare", "a", "b", "c", "--runs", str(tmp_path)).out
    assert "a: loop\n" in printed and "b: loop\n" in printed and "c: loop, seed 0\n" in printed
    assert [title_of(sl.load(name, tmp_path)) for name in "abc"] == ["a", "b", "loop, seed 0"]
    assert cli("show", "a", "--runs", str(tmp_path)).out.startswith("a: loop, finished")
    assert [row["seed"] for row in cli("runs", "--runs", str(tmp_path), "--json").json] == [None, None, 0]


def test_a_group_has_the_median_and_the_extremes_of_its_seeds(tmp_path):
    for seed, level in enumerate((0, 1, 8)):
        write_run(tmp_path, str(seed), {"loss": STEPS * 0.0 + level}, seed=seed)
    (curve,) = sl.compare(["0", "1", "2"], folder=tmp_path).curves
    assert set(curve.middle) == {1.0} and set(curve.low) == {0.0} and set(curve.high) == {8.0}


@pytest.mark.parametrize(("falls", "middle"), [((200, 400, 700), 400), ((200, 700), 450), ((200, 300, 500, 700), 400)])
def test_the_line_of_seeds_that_fall_at_different_steps_falls_once(tmp_path, falls, middle):
    for seed, at in enumerate(falls):
        write_run(tmp_path, str(seed), {"loss": np.where(at > STEPS, 3.0, 1.0)}, seed=seed)
    (curve,) = sl.compare([str(seed) for seed in range(len(falls))], folder=tmp_path).curves
    assert set(np.round(curve.middle[np.abs(curve.x - middle) > 10], 6)) == {1.0, 3.0}  # a mean has more levels
    assert curve.middle[curve.x > middle + 10].max() == 1 and curve.middle[curve.x < middle - 10].min() == 3


def test_the_line_of_seeds_with_other_numbers_of_transitions_is_the_plain_median(tmp_path):
    curves = [staircase(STEPS, at, LEVELS[: len(at) + 1]) for at in ((200,), (300, 600), (250,))]
    for seed, loss in enumerate(curves):
        write_run(tmp_path, str(seed), {"loss": loss}, seed=seed)
    (curve,) = sl.compare(["0", "1", "2"], folder=tmp_path).curves
    plain = np.median(curves, axis=0)
    assert curve.middle == pytest.approx(np.interp(curve.x, STEPS, plain), abs=1e-9)


def test_a_figure_explains_its_lines_and_has_the_axes_that_are_asked_for(runs, tmp_path):
    comparison = sl.compare(["seed0", "seed1", "other"], folder=runs)
    figure = comparison.figure(logx=True, logy=True)
    assert {axis.get_xscale() for axis in figure.axes} == {axis.get_yscale() for axis in figure.axes} == {"log"}
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == ["made/up, 2 seeds", "other", "thin vertical lines: transitions"]
    assert comparison.figure().axes[0].get_yscale() == "linear"
    by_loss = sl.compare(["seed0", "other"], align="loss", folder=runs).figure()
    assert "a straight line: it is the axis" in by_loss.axes[0].get_ylabel()
    with pytest.raises(UsageError, match=r"--logx and --logy are for png, svg and pdf figures, and '.*html' was given"):
        comparison.save(tmp_path / "a.html", logy=True)


@pytest.mark.parametrize("align", ["step", "fraction", "loss", "stage"])
def test_the_band_of_a_group_contains_every_seed_at_every_position(tmp_path, align):
    random, steps = np.random.default_rng(0), np.arange(3000)
    for seed in range(3):
        loss = staircase(steps, (1000 + 100 * seed, 2000), LEVELS, 20.0)
        spikes = np.where(random.random(3000) < 0.02, random.standard_cauchy(3000), 0.0)
        write_run(tmp_path, str(seed), {"loss": loss, "spiky": loss + spikes}, steps, seed=seed)
    (curve,) = sl.compare(["0", "1", "2"], "spiky", align, folder=tmp_path).curves
    assert len(curve.x) == 400
    for x, values in curve.seeds:
        here = (x >= curve.x[0]) & (x <= curve.x[-1])
        assert (np.interp(x[here], curve.x, curve.low) <= values[here] + 1e-9).all()
        assert (np.interp(x[here], curve.x, curve.high) >= values[here] - 1e-9).all()


def test_a_group_is_averaged_only_where_all_its_seeds_reach(tmp_path):
    write_run(tmp_path, "long", {"loss": STEPS}, seed=0)
    write_run(tmp_path, "short", {"loss": STEPS[:21]}, STEPS[:21], seed=1, status="interrupted", planned=1000.0)
    (curve,) = sl.compare(["long", "short"], folder=tmp_path).curves
    assert curve.x[-1] == 100
    assert [x[-1] for x, _ in curve.seeds] == [1000, 100]


def test_heads_and_layers_are_reduced_by_a_rule_that_is_stated(runs):
    comparison = sl.compare(["seed0"], "s/entropy", folder=runs)
    assert comparison.series[0].label == "s/entropy (mean over head)"
    assert comparison.table[-1]["s/entropy (mean over head)"] == pytest.approx(1.5)
    assert "s/entropy (mean over head)" in comparison.columns


def test_a_head_that_was_not_measured_is_left_out_of_the_mean(tmp_path):
    heads = np.stack([STEPS * 1.0, np.full(len(STEPS), np.nan)], axis=1)
    heads[:3] = np.nan
    write_run(tmp_path, "a", {"loss": STEPS, "s/x": (heads, ("head",))})
    (curve,) = sl.compare(["a"], "s/x", folder=tmp_path).curves
    assert curve.x.tolist() == curve.middle.tolist() == STEPS[3:].tolist()


def test_a_probe_means_all_of_its_series(runs):
    assert [series.name for series in sl.compare(["seed0"], ["s"], folder=runs).series] == ["s/entropy"]
    assert [series.name for series in sl.compare(["seed0"], "all", folder=runs).series] == ["loss", "s/entropy"]


def test_a_probe_with_elements_means_its_series_that_have_them(tmp_path):
    by_head = (np.ones((len(STEPS), 3)), ("head",))
    series = {"loss": STEPS, "s/mass": by_head, "s/total": STEPS, "s/low": by_head}
    write_run(tmp_path, "a", series)
    found = sl.compare(["a"], ["s[head=2]"], folder=tmp_path).series
    assert [one.name for one in found] == ["s/mass[head=2]", "s/low[head=2]"]
    with pytest.raises(UsageError, match="unknown dim 'group'; known: head; of 's/mass'"):
        sl.compare(["a"], ["s[group=2]"], folder=tmp_path)


def test_labels_are_compared_by_the_most_common_one(tmp_path):
    codes = np.zeros((len(STEPS), 3))
    codes[100:, :2] = 1
    write_run(tmp_path, "a", {"loss": STEPS, "s/leader": (codes, ("head",), ("left", "right"))})
    comparison = sl.compare(["a"], "s/leader", folder=tmp_path)
    assert comparison.series[0].rule == "most common over head"
    assert comparison.curves[0].middle.tolist() == [0.0] * 100 + [1.0] * 101
    assert comparison.table[-1]["s/leader (most common over head)"] == "right"


@pytest.mark.parametrize("seeds", [1, 2])
def test_labels_are_never_rescaled(tmp_path, seeds):
    labels = ("I(1)", "I(2)", "I(3)", "rest")
    codes = np.where(STEPS < 400, 3.0, 1.0)[:, None] + np.zeros(2)  # rest, then I(2); neither 0 nor the last
    for seed in range(seeds):
        write_run(tmp_path, str(seed), {"loss": 5.0 * STEPS, "s/leader": (codes, ("head",), labels)}, seed=seed)
    comparison = sl.compare(list("01"[:seeds]), ["loss", "s/leader"], relative=True, folder=tmp_path)
    loss, leader = comparison.curves
    assert (loss.middle.min(), loss.middle.max()) == (0.0, 1.0)
    assert [labels[int(code)] for code in (leader.middle[0], leader.middle[-1])] == ["rest", "I(2)"]
    top, bottom = comparison.figure().axes
    ticks = dict(zip(bottom.get_yticks(), (tick.get_text() for tick in bottom.get_yticklabels()), strict=True))
    drawn = bottom.lines[0].get_ydata()
    assert [ticks[code] for code in (drawn[0], drawn[-1])] == ["rest", "I(2)"]
    assert "range" in top.get_ylabel() and "range" not in bottom.get_ylabel()
    titles = [series["title"] for series in comparison_chart(comparison)["series"]]
    assert "range" in titles[0] and "range" not in titles[1]
    assert comparison_chart(comparison)["series"][1]["traces"][0]["y"][0] == 3.0


def test_a_figure_of_too_many_curves_says_how_to_choose(tmp_path):
    write_run(tmp_path, "a", {"loss": STEPS, "s/norm": (np.zeros((len(STEPS), 99)), ("parameter",))})
    comparison = sl.compare(["a"], "s/norm", folder=tmp_path)
    assert len(comparison.table[-1]) > 99
    with pytest.raises(UsageError, match=r"99 curves are too many .* s/norm\[parameter=98\]"):
        comparison.figure()


def test_stages_meet_when_aligned_by_stage(runs):
    for curve in sl.compare(["seed0", "other"], align="stage", folder=runs).curves:
        assert curve.x[0] == 0 and curve.x[-1] == 3
        halfway = np.interp(1.0, curve.x, curve.middle)
        top = curve.middle[0]
        assert halfway / top == pytest.approx(2.5 / 3, abs=0.05)  # halfway down the first stair on either scale


def test_alignment_by_loss_makes_the_losses_agree(runs):
    slow, fast = sl.compare(["seed1", "other"], align="loss", relative=True, folder=runs).curves
    for place in (0.25, 0.5, 0.75):
        assert np.interp(place, slow.x, slow.middle) == pytest.approx(1 - place, abs=0.02)
        assert np.interp(place, fast.x, fast.middle) == pytest.approx(1 - place, abs=0.02)


def test_a_run_in_progress_is_placed_by_its_planned_end(tmp_path):
    write_run(tmp_path, "half", {"loss": STEPS}, status="running", planned=2000.0)
    (curve,) = sl.compare(["half"], align="fraction", folder=tmp_path).curves
    assert curve.x[-1] == 0.5


def test_the_table_has_a_row_for_each_stage_with_values_at_its_end(runs):
    table = sl.compare(["seed0"], ["loss"], folder=runs).table
    assert [row["kind"] for row in table] == ["plateau", "transition", "plateau", "transition", "plateau"]
    assert [row["stage"] for row in table] == [1, 2, 3, 4, 5]
    assert [row["name"] for row in table if row["kind"] == "transition"] == ["first", "second"]
    assert [row["level"] for row in table if row["kind"] == "plateau"] == pytest.approx(LEVELS, abs=0.1)
    assert table[-1]["end"] == 1000 and table[-1]["loss"] == pytest.approx(1.0, abs=1e-6)
    assert (table[0]["task"], table[0]["seeds"], table[0]["group"]) == ("made/up", [0], "seed0")


def test_a_group_that_went_through_the_same_stages_has_one_row_each_with_its_spread(runs):
    table = sl.compare(["seed0", "seed1"], folder=runs).table
    assert len(table) == 5
    ends = [sl.load(name, runs).stages()[0].end for name in ("seed0", "seed1")]
    assert table[0]["end"] == pytest.approx(np.mean(ends))
    assert table[0]["spread"]["end"] == pytest.approx(ends)


def test_a_group_whose_seeds_have_different_stages_has_a_row_per_seed(tmp_path):
    write_run(tmp_path, "two", {"loss": staircase(STEPS, (200, 600), LEVELS)}, seed=0)
    write_run(tmp_path, "one", {"loss": staircase(STEPS, (400,), (3.0, 1.0))}, seed=1)
    table = sl.compare(["two", "one"], folder=tmp_path).table
    assert [row["group"] for row in table] == ["two"] * 5 + ["one"] * 3


def test_a_run_without_stages_still_has_its_row(tmp_path):
    write_run(tmp_path, "a", {"loss": STEPS[:1] * 1.0 + 7}, STEPS[:1])
    (row,) = sl.compare(["a"], folder=tmp_path).table
    assert (row["kind"], row["start"], row["end"], row["loss"]) == ("whole run", 0, 0, 7.0)


def test_timelines_of_ones_own_loop_can_be_compared():
    one, two = (timeline(STEPS, {"loss": staircase(STEPS, (at,), (2.0, 1.0))}) for at in (300, 500))
    comparison = sl.compare([one, two], align="stage")
    assert [group.name for group in comparison.groups] == ["timeline 1", "timeline 2"]
    assert [curve.x[-1] for curve in comparison.curves] == [2, 2]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "html", "csv", "json"])
def test_every_format_is_written(runs, tmp_path, ending):
    path = sl.compare(["seed0", "seed1"], ["loss", "s"], "stage", folder=runs).save(tmp_path / f"x.{ending}")
    start = path.read_bytes()[:100]
    assert start.startswith(
        {
            "png": b"\x89PNG",
            "svg": b"<?xml",
            "pdf": b"%PDF",
            "html": b"<!doctype html>",
            "csv": b"group,task",
            "json": b"{",
        }[ending]
    )
    assert [file.name for file in tmp_path.glob(".*part")] == []


def test_csv_and_json_hold_the_table(runs):
    comparison = sl.compare(["seed0", "seed1"], folder=runs)
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert [float(row["end"]) for row in rows] == [row["end"] for row in comparison.table]
    assert [float(row["end max"]) for row in rows] == [row["spread"]["end"][1] for row in comparison.table]
    assert json.loads(json.dumps(comparison.to_dict()))["rows"] == comparison.table


def test_the_figure_has_a_line_per_group_and_a_panel_per_series(runs):
    figure = sl.compare(["seed0", "seed1"], ["loss", "s"], folder=runs).figure()
    assert [axis.get_ylabel() for axis in figure.axes] == ["loss", "s/entropy\n(mean over head)"]
    assert figure.axes[-1].get_xlabel() == "training step"
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == ["made/up, 2 seeds", "thin vertical lines: transitions"]


def test_the_axis_of_steps_names_the_times_of_flows(runs):
    assert sl.compare(["other"], folder=runs).x_label == "time"
    assert sl.compare(["seed0", "other"], folder=runs).x_label == "training step, or a flow's time"


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "nothing to compare"),
        (["seed9"], {}, "unknown run 'seed9' .*seed0"),
        (["seed0"], {"align": "time"}, "unknown alignment 'time'"),
        (["seed0"], {"probes": "los"}, "unknown probe or series 'los' .*'loss'"),
        (["seed0", "other"], {"probes": "s"}, "probe 's' is not common to the runs: other did not record it"),
        ([3], {}, "cannot compare 3"),
    ],
)
def test_mistakes_are_reported(runs, names, options, message):
    with pytest.raises(UsageError, match=message):
        sl.compare(names, folder=runs, **options)


def test_runs_without_a_common_series_cannot_be_compared(tmp_path):
    write_run(tmp_path, "a", {"loss": STEPS})
    write_run(tmp_path, "b", {"energy": STEPS}, seed=1)
    with pytest.raises(UsageError, match="a, b have no series in common"):
        sl.compare(["a", "b"], folder=tmp_path)


def test_a_run_that_never_changed_has_no_stages_to_align_by(tmp_path):
    write_run(tmp_path, "flat", {"loss": STEPS * 0.0 + 1})
    with pytest.raises(UsageError, match="run 'flat': alignment by stage: there is no transition"):
        sl.compare(["flat"], align="stage", folder=tmp_path)


def test_an_empty_run_is_reported(tmp_path):
    write_run(tmp_path, "new", {}, [], status="running")
    with pytest.raises(UsageError, match="run 'new' has no measurement yet"):
        sl.compare(["new"], folder=tmp_path)


def test_an_unknown_ending_is_reported_with_the_known_ones(runs, tmp_path):
    with pytest.raises(UsageError, match=r"'\.pfd', expected \.png, \.svg, \.pdf, \.html, \.csv, \.json"):
        sl.compare(["seed0"], folder=runs).save(tmp_path / "x.pfd")
