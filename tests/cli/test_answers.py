"""stdout has one JSON document or the tables of the command, even if plugins and libraries print something."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from conftest import STAGELENS, Answer
from kit.written_runs import STEPS, staircase, write_run
from stagelens.cli.main import app, main
from stagelens.models import build_transformer

PLUGIN = Path(__file__).parents[1] / "kit" / "fallible_plugin.py"
LONG = "a-run-with-a-name-that-is-longer-than-any-terminal-is-wide-" * 3 + "end"


@pytest.fixture
def noisy(monkeypatch, capfd, tmp_path, imports):
    """Calls the command line in this process. Captures stdout and stderr as file descriptors, like a pipe."""
    monkeypatch.chdir(tmp_path)

    def call(*words) -> Answer:
        monkeypatch.setattr(sys, "argv", ["stagelens", "--plugin-dir", str(PLUGIN), *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Answer(int(ended.value.code or 0), *capfd.readouterr())

    return call


@pytest.fixture
def checkpoints(tmp_path):
    """Saves two models in the layout that `stagelens probe` reads."""
    from safetensors.torch import save_file

    sizes = {"n_layers": 1, "n_heads": 2, "d_model": 8, "n_ctx": 8, "d_vocab": 7}
    folder = tmp_path / "saved models"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sizes))
    for step in (10, 20):
        save_file(dict(build_transformer(**sizes, seed=step).state_dict()), folder / f"{step}.safetensors")
    return folder


def test_json_is_one_document_in_every_command_whatever_is_printed(noisy, checkpoints, tmp_path) -> None:
    """`Answer.json` fails if stdout has anything else. Printed lines must go to stderr."""
    options = ["--set", "noisy=true", "--device", "cpu"]
    run = noisy("run", "fallible", *options, "--json")
    assert run.json["status"] == "finished" and run.code == 0, run.err
    for printed in ("python prints", "a library prints", "a child prints", "Moving model to device:  cpu"):
        assert printed in run.err
    name = run.json["name"]
    (tmp_path / "curve.csv").write_text("step,loss\n0,3\n1,2\n2,1\n3,1\n")
    commands = {
        "run": ["fallible", "--seeds", 2, "--name", "both", *options],
        "show": [name],
        "runs": [],
        "stages": ["curve.csv"],
        "compare": [name],
        "report": [name],
        "sweep": ["fallible", "--grid", "size=1,2", *options, "--dry-run"],
        "verify": ["fallible", "--workers", 1],
        "figure": [],
        "probe": [checkpoints],
        "export": [name, "--format", "csv"],
        "tasks": [],
        "probes": [],
        "plugins": [],
        "doctor": [],
        "new-plugin": ["other"],
    }
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(commands) == set(known), "a command with --json is not tested"
    for command, words in commands.items():
        answer = noisy(command, *words, "--json")
        assert answer.json is not None and answer.code == 0, (command, answer.err)


PRINTS = """
import atexit, ctypes, os, stagelens as sl
ctypes.CDLL(None).printf(b"buffered by C\\n")
@sl.hookimpl
def stagelens_register_tasks():
    ctypes.CDLL(None).printf(b"buffered by C\\n")
    os.system("echo a child")
    atexit.register(print, "at the end")
    print("python")
    return []
"""


MISTAKES = {
    "tasks": ["markow"],
    "probes": ["inductoin"],
    "plugins": ["--no-such-option"],
    "run": ["markov/minimal", "--set", "stpes=3"],
    "runs": ["extra"],
    "show": ["nowhere"],
    "stages": ["nowhere.csv"],
    "compare": ["nowhere", "--align", "stagee"],
    "report": ["nowhere"],
    "verify": ["markow"],
    "figure": ["markov", "fig99"],
    "sweep": ["recall/flow", "--grid", "order=3,4", "--measure", "beta[head=9]", "--dry-run"],
    "probe": ["nowhere"],
    "export": ["nowhere", "--format", "xls"],
    "new-plugin": ["no spaces!"],
    "doctor": ["extra"],
}


def test_every_command_has_a_mistake_below(cli):
    listed = re.findall(r"^  ([a-z-]+)  ", cli("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(MISTAKES)


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_on_stderr_and_nothing_on_stdout(cli, command, tmp_path):
    answer = cli(command, *MISTAKES[command], "--json")
    assert answer.code == 2 and answer.complaint  # which fails on more than one line, and on anything on stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="libc has another name")
def test_a_process_prints_one_document_also_after_its_end(tmp_path) -> None:
    """The output that C libraries buffer, and output at exit, comes after the command."""
    (tmp_path / "printing.py").write_text(PRINTS)
    words = ["--plugin-dir", str(tmp_path / "printing.py"), "tasks", "--json"]
    done = subprocess.run([*STAGELENS, *words], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)
    assert {"buffered by C", "a child", "at the end", "python"} <= set(done.stderr.splitlines())


def test_no_name_is_cut_where_stdout_is_no_terminal(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    curve = staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))
    for seed in (0, 1):
        labelled = {f"probe/{LONG}": curve, "loss": curve}
        write_run(tmp_path / "runs", f"{LONG}{seed}", labelled, seed=seed, task=f"task/{LONG}", stage_names=[LONG] * 2)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / f"{LONG.replace('-', '_')}.py").write_text("")
    lines = {
        "runs": cli("runs"),
        "show": cli("show", f"{LONG}0"),
        "stages": cli("stages", f"{LONG}0"),
        "compare": cli("compare", f"{LONG}0", f"{LONG}1", "--probe", "probe"),
    }
    for command, answer in lines.items():
        assert answer.code == 0, answer.err
        assert any(LONG in line for line in answer.out.splitlines()), command
    row = next(line for line in lines["runs"].out.splitlines() if f"{LONG}1" in line)
    assert f"task/{LONG}" in row and "finished" in row  # one line holds the whole row
    listed = cli("--plugin-dir", tmp_path / "plugins", "plugins").out
    assert LONG.replace("-", "_") in listed
    assert str(tmp_path / "plugins") in listed
    for words in (["tasks"], ["probes"], ["doctor"]):
        rows = [line for line in cli(*words).out.splitlines()[1:] if line]
        assert not any(row.startswith(" ") for row in rows), words  # no row continues in the next line


def test_a_terminal_gets_tables_that_fit(monkeypatch, capsys) -> None:
    from stagelens.cli import output

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    output.print_table(["run", "task"], [[LONG[:30], "task-of-a-plugin"]], "a title")
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 40
    for whole in (LONG[:30], "task-of-a-plugin"):  # side by side they do not fit
        assert sum(whole in line for line in lines) == 1


def test_a_probe_is_described_in_a_terminal_and_in_json(cli):
    answer = cli("probes", "induction", "--json").json
    (reading,) = [one for one in answer["readings"] if one["name"] == "induction/prefix_matching"]
    assert reading["dims"] == ["layer", "head"] and reading["range"] == "0 to 1"
    assert reading["chance"] == "prefix_matching_chance" and reading["unit"] == "fraction"
    shown = cli("probes", "head_ablation").out
    assert "attn.hook_z" in shown and "2 per head" in shown and "--probes +head_ablation" in shown
    assert "did you mean 'induction'" in cli("probes", "inducton").complaint


def test_a_task_says_why_it_predicts_nothing_and_how_long_it_takes(cli):
    shown = cli("tasks", "markov/full").out
    assert "without predictions: the paper's theory is about" in shown and "add --time" in shown
    timed = cli("tasks", "recall/flow", "--time", "--json").json
    assert set(timed["seconds"]) == {"quick", "paper"} and 0 < timed["seconds"]["quick"] < 60
