"""`stagelens sweep` and `stagelens run --seeds`, as a person or a program calls them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import stagelens as sl
from kit.swept import Here
from stagelens.base import plain
from stagelens.host import make_host

PLUGIN = str(Path(__file__).parents[1] / "kit" / "sweep_plugin.py")


@pytest.fixture
def sweep(cli):
    return lambda *words: cli("--plugin-dir", PLUGIN, "sweep", "power/law", *words)


def test_one_command_gives_the_table_the_law_and_the_files(sweep) -> None:
    answer = sweep("--grid", "T=1,2,4", "--grid", "d=1,4", "--measure", "event:half", "--fit", "T,d", "--workers", 1)
    assert answer.code == 0, answer.err
    assert "6 points, 6 done, 0 failed" in answer.out
    assert "event:half = 0.6931 T^1.000 [1.000, 1.000] d^0.500 [0.500, 0.500]" in answer.out
    folder = Path(answer.out.split()[-1])
    assert (folder / "table.parquet").exists()
    assert (folder / "figures" / "residuals.svg").exists()


def test_json_is_one_document_of_the_promised_shape(sweep) -> None:
    answer = sweep("--grid", "T=1,2,4", "--measure", "event:half", "--fit", "T", "--workers", 1, "--json").json
    assert (answer["points"], answer["done"], answer["failed"]) == (3, 3, 0)
    assert answer["fit"]["exponents"]["T"]["value"] == pytest.approx(1)
    assert [row["T"] for row in answer["table"]] == [1, 2, 4]
    again = sweep("--grid", "T=1,2,4", "--workers", 1, "--json").json
    assert again["fit"] is None
    assert [row["run"] for row in again["table"]] == [row["run"] for row in answer["table"]]


def test_the_command_line_prints_what_python_returns(sweep, imports) -> None:
    answer = sweep("--grid", "T=1,2,4", "--measure", "event:half", "--fit", "T", "--name", "same", "--json").json
    host = make_host([PLUGIN])
    options = {"measures": "event:half", "fit": "T", "runs": "runs", "name": "same"}
    swept = sl.sweep("power/law", {"T": [1, 2, 4]}, executor=Here(), host=host, **options)
    assert plain(swept.to_dict()) == answer
    assert [run.manifest.events["half"] for run in swept] == [row["event:half"] for row in answer["table"]]


def test_a_dry_run_lists_the_points_and_the_time_and_runs_none(sweep, tmp_path) -> None:
    answer = sweep("--grid", "T=1,2", "--seeds", 2, "--dry-run")
    assert "4 points, 4 missing" in answer.out
    assert "timing the start of one point" in answer.out
    assert not (tmp_path / "runs").exists()
    assert sweep("--grid", "T=1,2", "--seeds", 2, "--dry-run", "--json").json["missing"] == 4


def test_failed_points_are_listed_with_the_command_that_repeats_them(sweep, cli) -> None:
    answer = sweep("--grid", "broken=false,true", "--workers", 1)
    assert answer.code == 1
    failure = "failed: broken=true seed=0: ZeroDivisionError: a defect of the plugin\n"
    assert failure in answer.out
    assert answer.err == failure  # as it came
    command = shlex.split(next(line for line in answer.out.splitlines() if "again:" in line))
    assert command[:2] == ["again:", "stagelens"]
    with pytest.raises(ZeroDivisionError):
        cli(*command[2:])


@pytest.mark.skipif(sys.platform == "win32", reason="it has no pseudo-terminals")
def test_a_person_sees_a_bar_that_continues_below_the_failures(tmp_path) -> None:
    import pty

    ours, theirs = pty.openpty()
    start = [sys.executable, "-c", "from stagelens.cli import main; main()", "--plugin-dir", PLUGIN, "sweep"]
    words = ["power/law", "--grid", "T,broken=1:false,2:true,3:false", "--workers", "1", "--set", "sleep=0.2"]
    size = {"COLUMNS": "120", "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(
        [*start, *words, "--runs", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=theirs, env=os.environ | size
    ) as sweep:
        os.close(theirs)
        shown = _all_of(ours)
    assert sweep.returncode == 1
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    before, failure, after = plain.partition(
        "failed: T=2 broken=true seed=0: ZeroDivisionError: a defect of the plugin"
    )
    assert failure
    assert re.search(r"power/law sweep .* 1/3 \d+ points/min .* left \d", before)
    assert re.search(r"power/law sweep, 1 failed .* 3/3 \d+ points/min", after)


def _all_of(terminal: int) -> bytes:
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as stream:
        try:
            while some := stream.read(4096):
                shown += some
        except OSError:  # what a terminal sends when it is closed
            pass
    return shown


def test_censored_points_are_reported(sweep) -> None:
    answer = sweep("--grid", "T=1,2,4,1000", "--measure", "plateau_length@0.6", "--fit", "T", "--workers", 1)
    assert "1 points are censored" in answer.out
    assert "> 100" in answer.out
    assert "3 points; 1 censored points left out" in answer.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the grid is empty"),
        (["--grid", "Q=1"], "unknown grid key 'Q'"),
        (["--grid", "d=many"], "config key 'd': got 'many'"),
        (["--grid", "T=1:10000:1", "--grid", "d=1:1000:1"], "add --yes"),
        (["--grid", "T=1", "--executor", "cloud"], "unknown executor 'cloud'; known: local, ray"),
        (["--grid", "T=1", "--measure", "loss:soon"], "unknown moment 'soon'"),
        (["--grid", "T=1", "--fit", "q"], "unknown column to fit 'q'"),
        (["--grid", "T=1", "--fit", ","], "--fit ',': expected keys of the grid"),
        (["--grid", "T=1,2", "--fit", "d"], "--fit 'd': it is 1 at every point"),
        (["--grid", "T=1", "--set", "T=2"], "--set T=2 is a key of the grid too"),
        (["--grid", "T=1", "--results", "returned"], "--results returned is for --executor ray"),
        (["--grid", "T=1,2", "--workers", 1, "--measure", "los:final"], "unknown series 'los'"),
    ],
)
def test_a_mistake_is_one_line(sweep, words, complaint) -> None:
    answer = sweep(*words)
    assert answer.code == 2
    assert complaint in answer.complaint


def test_a_law_that_cannot_be_fitted_still_gives_the_table(sweep) -> None:
    answer = sweep("--grid", "T,d=1:2,2:3", "--measure", "event:half", "--fit", "T,d", "--workers", 1)
    assert answer.code == 2
    assert "2 points, 2 done" in answer.out
    assert "no power-law fit: 2 points for 3 unknowns" in answer.err


def test_run_takes_several_seeds_and_reports_those_that_cannot_be_vectorized(cli) -> None:
    answer = cli("--plugin-dir", PLUGIN, "run", "power/law", "--seeds", 2, "--seed", 3, "--json")
    assert answer.json["seeds"] == [3, 4]
    assert answer.json["together"] is False
    assert [run["seed"] for run in answer.json["runs"]] == [3, 4]
    assert "one by one: a flow has no model to stack" in answer.err


def test_several_seeds_are_shown_as_a_seed_group(cli) -> None:
    answer = cli("--plugin-dir", PLUGIN, "run", "power/law", "--seeds", 2)
    assert "power/law, 2 seeds" in answer.out
    assert answer.out.strip().endswith("power-law-quick-seeds.html")


def test_compiling_is_for_one_seed(cli) -> None:
    answer = cli("run", "linear-icl", "--seeds", 2, "--compile")
    assert "--compile is for one seed" in answer.complaint
