"""`stages`, `compare`, `report` and the events of `show`, through the command line."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from conftest import STAGELENS
from kit.written_runs import STEPS, staircase, write_run
from stagelens.base.errors import UsageError
from stagelens.runs import load

MOVES = {"loss": 700, "probe/early": 300}
TIMES = (200, 600)
CURVE = staircase(STEPS, TIMES, (3.0, 2.0, 1.0))


@pytest.fixture
def runs(tmp_path):
    """The folder of two seeds of one task."""
    folder = tmp_path / "runs"
    heads = np.stack([CURVE, CURVE + 2], axis=1)
    codes = (STEPS >= 400).astype(float)[:, None]
    for seed in (0, 1):
        labelled = (codes, ("layer",), ("diffuse", "cooperative"))
        series = {"loss": CURVE, "s/entropy": (heads, ("head",)), "head_specialization/phase": labelled}
        write_run(folder, f"seed{seed}", series, seed=seed, stage_names=["first", "second"])
    return folder


def curve_file(tmp_path, lines, name="curve.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(steps, *columns):
    return [",".join(map(str, row)) for row in zip(steps, *columns, strict=True)]


# stages


def test_stages_of_a_run(cli, runs):
    found = cli("stages", "seed0", "--runs", runs, "--json").json
    assert found["metric"] == "loss"
    assert found["transitions"] == pytest.approx(TIMES, abs=10)
    assert [stage["kind"] for stage in found["stages"]].count("plateau") == 3
    assert {"kind", "start", "end", "level", "drop", "name"} <= found["stages"][0].keys()
    assert [s["name"] for s in found["stages"] if s["kind"] == "transition"] == ["first", "second"]


def test_stages_of_the_whole_model(cli, tmp_path):
    rng = np.random.default_rng(0)
    series = {name: staircase(STEPS, [at], [0, 1]) + 0.01 * rng.normal(size=len(STEPS)) for name, at in MOVES.items()}
    write_run(tmp_path, "whole", series)
    found = cli("stages", "whole", "--runs", tmp_path, "--joint", "--json").json
    assert found["transitions"] == pytest.approx([300, 700], abs=10)
    moved = [
        [one["reading"] for one in stage["readings"]] for stage in found["stages"] if stage["kind"] == "transition"
    ]
    assert moved == [["probe/early"], ["loss"]]
    shown = cli("stages", "whole", "--runs", tmp_path, "--joint").out
    assert "stages of whole, all readings together" in shown
    assert "probe/early" in shown
    assert "leave out --metric" in cli("stages", "whole", "--runs", tmp_path, "--joint", "--metric", "loss").err
    (tmp_path / "curve.csv").write_text("step,value\n0,1\n1,2\n")
    assert "is a csv file; give a run" in cli("stages", tmp_path / "curve.csv", "--joint").err


def test_stages_of_a_series_with_heads_state_how_it_was_reduced(cli, runs):
    found = cli("stages", "seed0", "--runs", runs, "--metric", "s/entropy", "--json").json
    assert (found["metric"], found["rule"]) == ("s/entropy", "mean over head")
    assert found["transitions"] == pytest.approx(TIMES, abs=10)
    assert "stages of s/entropy (mean over head)" in cli("stages", "seed0", "--runs", runs, "--metric", "s/entropy").out


def test_stages_of_one_element_and_of_a_series_that_has_several_curves(cli, runs):
    found = cli("stages", "seed0", "--runs", runs, "--metric", "s/entropy[head=1]", "--json").json
    assert (found["metric"], found["rule"]) == ("s/entropy[head=1]", "")
    assert found["transitions"] == pytest.approx(TIMES, abs=10)
    two = np.stack([CURVE, 1 + CURVE], axis=1)
    write_run(runs, "two", {"loss": CURVE, "kl/kl": (two, ("reference",))})
    told = cli("stages", "two", "--runs", runs, "--metric", "kl/kl")
    assert told.code == 2
    assert "has 2 curves; give one of them: kl/kl[reference=0], kl/kl[reference=1]" in told.err
    assert cli("stages", "two", "--runs", runs, "--metric", "kl/kl[reference=1]", "--json").json["stages"]


def test_stages_of_each_element_of_a_dim(cli, runs):
    wanted = ("stages", "seed0", "--runs", runs, "--metric", "s/entropy[head=*]")
    names = ["s/entropy[head=0]", "s/entropy[head=1]"]
    found = cli(*wanted, "--json").json
    assert [one["metric"] for one in found] == names
    assert found[1] == cli("stages", "seed0", "--runs", runs, "--metric", names[1], "--json").json
    assert [line for line in cli(*wanted).out.splitlines() if "stages of" in line] == [f"stages of {n}" for n in names]


@pytest.mark.parametrize("metric", ["head_specialization/phase", "head_specialization/phase[layer=0]"])
def test_labels_have_no_stages(cli, runs, metric):
    told = f"series {metric!r} holds labels (diffuse, cooperative); stages need numbers"
    assert told in cli("stages", "seed0", "--runs", runs, "--metric", metric).complaint
    with pytest.raises(UsageError) as raised:
        load("seed0", runs).stages(metric)
    assert str(raised.value) == told


@pytest.mark.parametrize("blank", ["", "NaN", "nan", " NAN "])
def test_a_cell_without_a_number_in_a_wide_csv_is_left_out(cli, tmp_path, blank):
    half = [value if row % 2 else blank for row, value in enumerate(CURVE)]
    path = curve_file(tmp_path, ["step,accuracy,loss", *rows_of(STEPS, STEPS * 0.0, half)])
    found = cli("stages", path, "--json").json
    assert found["transitions"] == pytest.approx(TIMES, abs=10) and found["stages"][0]["start"] == STEPS[1]
    narrow = curve_file(tmp_path, ["step,loss", *rows_of(STEPS, half)])
    assert "line 2: " in cli("stages", narrow).complaint


def test_stages_of_a_csv(cli, tmp_path):
    path = curve_file(tmp_path, ["step,value", *rows_of(STEPS, CURVE)])
    found = cli("stages", path, "--json").json
    assert found["metric"] == "value"
    assert found["transitions"] == pytest.approx(TIMES, abs=10)


def test_a_table_for_people(cli, tmp_path):
    answer = cli("stages", curve_file(tmp_path, ["step,value", *rows_of(STEPS, CURVE)]))
    assert answer.code == 0
    assert "stages of value" in answer.out and answer.out.count("plateau") == 3


def test_a_csv_needs_no_header(cli, tmp_path):
    found = cli("stages", curve_file(tmp_path, rows_of(STEPS, CURVE)), "--json").json
    assert found["transitions"] == pytest.approx(TIMES, abs=10)


def test_a_column_of_a_wider_csv_is_chosen_by_name(cli, tmp_path):
    path = curve_file(tmp_path, ["epoch,step,accuracy,mine", *rows_of(STEPS, STEPS, STEPS * 0.0, CURVE)])
    assert cli("stages", path, "--metric", "mine", "--json").json["transitions"] == pytest.approx(TIMES, abs=10)
    assert "choose one with --metric" in cli("stages", path).complaint
    assert "unknown column 'their'" in cli("stages", path, "--metric", "their").complaint


N = [*range(len(STEPS))]
ZERO, LATER = STEPS * 0.0, [10 * step for step in N]


@pytest.mark.parametrize(
    ("header", "columns", "options"),
    [
        (",global_step,loss", (N, STEPS, CURVE), ()),
        ("accuracy,global_step", (CURVE, STEPS), ()),
        ("loss,step", (CURVE, STEPS), ()),
        (",_step,_runtime,_timestamp,train_loss", (N, STEPS, N, LATER, CURVE), ()),  # W&B's history
        ("_step,train/global_step,train/epoch,train/loss", (N, STEPS, ZERO, CURVE), ()),  # W&B of a Trainer
        (
            '"Step","brisk-sun-1 - loss","brisk-sun-1 - loss__MIN","brisk-sun-1 - loss__MAX"',
            (STEPS, CURVE, CURVE, CURVE),
            (),
        ),
        ("trainer/global_step,epoch,_timestamp,loss", (STEPS, ZERO, N, CURVE), ()),  # W&B of Lightning
        (",loss,grad_norm,learning_rate,epoch,step", (N, CURVE, ZERO, ZERO, ZERO, STEPS), ()),  # Trainer's log_history
        ("epoch,step,train_loss,val_loss", (ZERO, STEPS, CURVE, ZERO), ("--metric", "train_loss")),  # Lightning's csv
        ("Wall time,Step,Value", (LATER, STEPS, CURVE), ()),  # TensorBoard
        (",loss", (STEPS, CURVE), ()),  # a pandas series
        ("Unnamed: 0,acc,loss", (STEPS, ZERO, CURVE), ()),  # a pandas frame with steps as its index
        ("Iteration,acc,mine", (STEPS, ZERO, CURVE), ("--metric", "mine")),
        ("iter,loss", (STEPS, CURVE), ()),
        ("Epoch,loss", (STEPS, CURVE), ()),
        ("mine,tokens,loss", (ZERO, STEPS, CURVE), ("--step", "tokens", "--metric", "loss")),
        ("step,tokens,loss", (N, STEPS, CURVE), ("--step", "tokens", "--metric", "loss")),
        ("loss,loss,step,acc", (ZERO, ZERO, STEPS, CURVE), ("--metric", "acc")),
    ],
)
def test_the_step_and_the_curve_are_found_in_what_loggers_write(cli, tmp_path, header, columns, options):
    path = curve_file(tmp_path, [header, *rows_of(*columns)])
    found = cli("stages", path, *options, "--json").json
    assert found["transitions"] == pytest.approx(TIMES, abs=10)
    assert [found["stages"][0]["start"], found["stages"][-1]["end"]] == [STEPS[0], STEPS[-1]]


@pytest.mark.parametrize(
    ("header", "columns", "options", "message"),
    [
        ("a,b", 2, (), "does not say which column is the step (a, b); choose with --step NAME and --metric NAME"),
        ("tokens,loss,acc", 3, ("--metric", "loss"), "does not say which column is the step"),
        (",acc,loss", 3, ("--metric", "loss"), "which column is the step (a column without a name, acc, loss)"),
        ("iter,iteration,loss", 3, (), "which column is the step (iter, iteration, loss)"),
        ("train/step,eval/step,loss", 3, (), "does not say which column is the step"),
        ("step,step,loss", 3, (), "does not say which column is the step"),
        ("step,step,loss", 3, ("--step", "step"), "has 2 columns 'step'; rename them"),
        ("step,loss,loss", 3, (), "more than one curve (step, loss, loss); choose one with --metric"),
        ("step,loss,loss", 3, ("--metric", "loss"), "has 2 columns 'loss'; rename them"),
        ("step,a,b", 3, (), "more than one curve (step, a, b)"),
        ("step,value", 2, ("--metric", "loss"), "unknown column 'loss'"),
        ("step,value", 2, ("--metric", "step"), "column 'step' is the step"),
        ("step,value", 2, ("--step", "steep"), "unknown column 'steep'"),
        ("0,1,2", 3, (), "3 columns without a header"),
        ("0,1", 2, ("--step", "a"), "columns without a header"),
    ],
)
def test_an_ambiguous_table_is_an_error_that_asks_for_the_columns(cli, tmp_path, header, columns, options, message):
    answer = cli("stages", curve_file(tmp_path, [header, *rows_of(*[N] * columns)]), *options)
    assert message in answer.complaint and answer.code == 2


def test_lines_in_which_a_metric_was_not_logged_are_left_out(cli, tmp_path):
    """Lightning and the Trainer write one line per logging call, each with some of the columns."""
    lines = ["epoch,step,train_loss,val_loss"]
    for step, value in zip(STEPS, CURVE, strict=True):
        lines += [f"0,{step},{value},", f"0,{step},,1.0"]
    path = curve_file(tmp_path, lines)
    found = cli("stages", path, "--metric", "train_loss", "--json").json
    assert found["transitions"] == pytest.approx(TIMES, abs=10)


def test_a_run_has_no_step_column(cli, runs):
    assert (
        "--step epoch names a column of a csv file"
        in cli("stages", "seed0", "--runs", runs, "--step", "epoch").complaint
    )


def test_semicolons_and_a_byte_order_mark_are_understood(cli, tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("\n".join(line.replace(",", ";") for line in ["step,loss", *rows_of(STEPS, CURVE)]), "utf-8-sig")
    assert cli("stages", path, "--json").json["transitions"] == pytest.approx(TIMES, abs=10)


def test_a_curve_that_never_changes_is_one_plateau(cli, tmp_path):
    found = cli("stages", curve_file(tmp_path, ["step,value", *rows_of(STEPS, STEPS * 0.0 + 2)]), "--json").json
    assert [(s["kind"], s["start"], s["end"], s["level"]) for s in found["stages"]] == [("plateau", 0, 1000, 2)]
    assert found["transitions"] == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["step,value", "0,1", "1,high", "2,3"], "line 3: value 'high' is not a number"),
        (["step,value", "0,1", "1,", "2,3"], "line 3: the value is missing"),
        (["step,value", "0,1", ",2", "2,3"], "line 3: the step is missing"),
        (["step,value", "0,1", "1,2", "1,3"], "line 4: step 1 is there twice"),
        (["step,value", "0,1", "5,2", "3,3"], "line 4: step 3 comes after 5"),
        (["step,value", "0,1"], "holds 1 point"),
        (["step,value"], "holds 0 points"),
        (["step,value", "0,1", "1,nan"], "line 3: value nan is not finite"),
        (["step,value", "0,1", "1,2,3"], "line 3: 3 cells, expected 2"),
        (["step", "0", "1"], "has one column"),
        (["", ""], "is empty"),
    ],
)
def test_a_bad_csv_is_reported_in_one_line(cli, tmp_path, lines, message):
    answer = cli("stages", curve_file(tmp_path, lines))
    assert message in answer.complaint
    assert answer.code == 2


def test_what_is_no_csv_is_reported(cli, tmp_path):
    assert "No such file" in cli("stages", "missing.csv").complaint
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    assert "is not a text file" in cli("stages", "picture.csv").complaint
    assert "unknown run 'nothing'" in cli("stages", "nothing").complaint
    (tmp_path / "folder").mkdir()
    assert "is not a run" in cli("stages", "folder").complaint


def test_an_unknown_series_of_a_run_is_reported(cli, runs):
    assert "unknown series 'lost'" in cli("stages", "seed0", "--runs", runs, "--metric", "lost").complaint


# compare


def test_compare_prints_what_it_promises(cli, runs):
    found = cli("compare", "seed0", "seed1", "--runs", runs, "--align", "stage", "--json").json
    assert found["align"] == "stage"
    assert [run["name"] for run in found["runs"]] == ["seed0", "seed1"]
    assert {run["group"] for run in found["runs"]} == {"made/up, 2 seeds"}
    assert len(found["rows"]) == 5 and found["rows"][0]["seeds"] == [0, 1]


def test_compare_writes_a_figure_and_prints_its_path(cli, runs, tmp_path):
    answer = cli("compare", "seed0", "seed1", "--runs", runs, "--probe", "s", "--probe", "loss", "-o", "both.svg")
    assert answer.code == 0 and answer.out.rstrip().endswith("both.svg")
    text = (tmp_path / "both.svg").read_text()
    assert "s/entropy" in text and "mean over head" in text and "made/up, 2 seeds" in text


def test_a_single_run_can_be_compared(cli, runs):
    assert len(cli("compare", runs / "seed0", "--json").json["rows"]) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed0", "--align", "time"], "unknown alignment 'time'"),
        (["seed0", "--probe", "nothing"], "unknown probe or series 'nothing'"),
        (["seed0", "-o", "x.pfd"], "its ending is '.pfd', expected .png"),
        (["seed0", "-o", "no/where/x.png"], "no/where is not a directory"),
        (["seed7"], "unknown run 'seed7'"),
    ],
)
def test_mistakes_of_compare_are_reported(cli, runs, words, message):
    answer = cli("compare", *words, "--runs", runs)
    assert message in answer.complaint and answer.code == 2


def test_an_empty_runs_directory_is_reported(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    complaint = cli("compare", "a", "b", "--runs", tmp_path / "empty").complaint
    assert "unknown run 'a'" in complaint and "empty" in complaint


# report and show


def test_a_page_of_several_runs_links_to_each(cli, runs):
    (runs / "seed0" / "report.html").write_text("here")
    answer = cli("report", "seed0", "seed1", "--runs", runs, "--json")
    page = (runs / "report.html").read_text()
    assert answer.json["runs"] == [str(runs / "seed0"), str(runs / "seed1")] and answer.json["problems"] == []
    assert answer.json["file"] == str(runs / "report.html")
    assert 'href="seed0/report.html"' in page and 'href="seed1/report.html"' not in page


def test_a_report_is_an_html_page(cli, runs):
    assert "ends in .html" in cli("report", "seed0", "--runs", runs, "-o", "x.png").complaint
    assert "is not a directory" in cli("report", "seed0", "--runs", runs, "-o", "no/x.html").complaint


def test_show_prints_the_events_of_the_probes(cli, runs):
    phase = "head_specialization/phase"
    event = {"step": 400, "what": "diffuse → cooperative", "series": phase, "curve": phase}
    assert event in cli("show", "seed0", "--runs", runs, "--json").json["probe_events"]
    assert "diffuse → cooperative" in cli("show", "seed0", "--runs", runs).out


def test_commands_that_read_runs_import_neither_torch_nor_matplotlib(runs):
    code = (
        "import contextlib, sys\n"
        "from stagelens.cli import main\n"
        "for command in ('stages', 'compare', 'show'):\n"
        f"    sys.argv = ['stagelens', command, 'seed0', '--runs', {str(runs)!r}, '--json']\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main()\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count('"stages"') == 2 and '"rows"' in done.stdout
    assert not {"torch", "transformer_lens", "matplotlib", "plotly", "pandas"} & set(done.stderr.split())


def test_the_commands_are_listed(cli):
    words = subprocess.run([*STAGELENS, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(command in words for command in ("stages", "compare", "report"))
