"""The command line prints JSON for programs and one line for mistakes, and writes only the intended files."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sqlite3

import numpy as np
import pytest

from kit.tasks import Regression, run
from kit.tiny import host, task_ids
from stagelens.experiments.config import is_model
from stagelens.runs import checkpoint
from stagelens.runs.manifest import FILE
from stagelens.runs.store import FILE as TIMELINE

QUICK = ["--set", "d=5", "--set", "T=4", "--set", "batch_size=8", "--set", "eval_size=8", "--set", "steps=12"]
SUMMARY = {"run", "task", "config", "seed", "status", "steps", "final", "stages", "phases", "predictions"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of markov, to be copied."""
    options = {"settings": QUICK[1::2], "name": "done", "seed": 1, "probes": ["head_specialization"]}
    return run("markov", tmp_path_factory.mktemp("runs"), **options).folder


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of that run as `runs/done` of the current folder."""
    shutil.copytree(finished, tmp_path / "runs" / "done")
    return tmp_path / "runs" / "done"


def everything_in(folder):
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*")}


# What is printed


def test_tasks(cli):
    rows = cli("tasks", "--json").json
    assert all(row.keys() >= {"id", "plugin", "title", "presets", "default"} for row in rows)
    row = next(row for row in rows if row["id"] == "markov/minimal")
    assert (row["plugin"], row["presets"], row["default"]) == ("markov", ["quick", "paper"], True)
    assert "markov/minimal *" in cli("tasks").out


@pytest.mark.parametrize("task_id", task_ids())
def test_a_task_is_described_by_what_it_defines(cli, task_id):
    described = cli("tasks", task_id, "--json").json
    kind = host().task(task_id).load()
    assert [key["key"] for key in described["keys"] if "." not in key["key"]] == [
        name for name, field in kind.Config.model_fields.items() if not is_model(field.annotation)
    ]
    assert all(key["meaning"] and key["type"] for key in described["keys"])
    for key in described["keys"]:
        for preset, value in key["presets"].items():
            assert "." in key["key"] or json.loads(json.dumps(kind.presets[preset][key["key"]])) == value
    assert set(described["probes"]) <= {name for name, _ in host().probes}
    out = cli("tasks", task_id).out
    assert all(key["key"] in out and key["meaning"] in out for key in described["keys"])


def test_the_bounds_that_are_shown_are_those_that_are_checked(cli):
    keys = {key["key"]: key for key in cli("tasks", "markov/full", "--json").json["keys"]}
    assert keys["steps"]["bounds"] == "≥ 1" and keys["dropout"]["bounds"] == "≥ 0, < 1"
    assert keys["steps"]["presets"]["quick"] == host().task("markov/full").load().presets["quick"]["steps"]
    kind = host().task("markov/full").load().Config
    for key, bad in {"steps": 0, "dropout": 1.0, "lr": 0.0}.items():
        with pytest.raises(ValueError, match=key):
            kind(**{key: bad})


def test_probes(cli):
    rows = cli("probes", "--json").json
    assert all(row.keys() >= {"name", "plugin", "readings"} for row in rows)
    row = next(row for row in rows if row["name"] == "attention_sparsity")
    assert row["plugin"] == "probes" and "attention_sparsity/effective_keys" in row["readings"]
    assert "head_specialization" in cli("probes").out


def test_plugins(cli, tmp_path):
    (tmp_path / "broken_plugin.py").write_text("import stagelens\n1 / 0\n")
    answer = cli("--plugin-dir", tmp_path / "broken_plugin.py", "plugins", "--json")
    rows = {row["name"]: row for row in answer.json}
    assert all(row.keys() == {"name", "version", "status", "error", "file", "distribution"} for row in rows.values())
    assert rows["markov"]["status"] == "loaded" and rows["markov"]["error"] == ""
    assert rows["markov"]["version"] == importlib.metadata.version("stagelens")
    assert rows["broken_plugin"]["status"] == "failed" and "division by zero" in rows["broken_plugin"]["error"]
    assert rows["broken_plugin"]["file"] == f"{tmp_path / 'broken_plugin.py'}:2"
    assert answer.code == 0


def test_a_broken_plugin_is_a_warning_and_everything_else_works(cli, tmp_path):
    (tmp_path / "broken_too.py").write_text("1 / 0\n")
    answer = cli("--plugin-dir", tmp_path / "broken_too.py", "tasks", "--json")
    assert answer.code == 0 and answer.json
    assert (
        answer.err.startswith("warning: plugin 'broken_too' failed: ZeroDivisionError")
        and "broken_too.py:1" in answer.err
    )


def test_run_show_and_runs_print_the_same(cli, tmp_path):
    answer = cli("run", "markov", *QUICK, "--seed", 1, "--json")
    assert answer.code == 0 and answer.err == ""
    ran = answer.json
    assert ran.keys() >= SUMMARY
    assert ran["run"] == "runs/markov-minimal-quick-seed1"
    assert (ran["task"], ran["seed"], ran["status"], ran["steps"]) == ("markov/minimal", 1, "finished", 12)
    assert ran["config"]["d"] == 5 and ran["config"]["intervals"] == [[1, 2], [3, 4], [5, 6]]
    assert ran["final"]["loss"] == pytest.approx(np.log(5), rel=0.5) and ran["final"].keys() >= {"excess", "loss"}
    assert all(phase.keys() >= {"phase", "start", "end"} for phase in ran["phases"])
    assert ran["phases"][0]["phase"] == "diffuse" and ran["phases"][0]["start"] == 0
    assert all(stage.keys() >= {"kind", "start", "end", "level", "drop", "name"} for stage in ran["stages"])
    assert cli("show", ran["run"], "--json").json == ran
    assert cli("show", "markov-minimal-quick-seed1", "--json").json == ran
    (listed,) = cli("runs", "--json").json
    assert listed["run"] == ran["run"] and listed["status"] == "finished" and listed["seed"] == 1
    shown = cli("show", ran["run"])
    assert "markov/minimal, seed 1, finished" in shown.out and "report.html" in shown.out
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    assert (tmp_path / ran["run"] / "report.html").exists()


def test_resuming_a_finished_run_reports_that_it_is_finished(cli, copied):
    answer = cli("run", "markov", *QUICK, "--seed", 1, "--name", "done", "--resume", "--json")
    assert answer.code == 0 and answer.json["status"] == "finished"


def test_export_prints_the_path_of_the_file(cli, copied):
    answer = cli("export", "done", "--format", "csv", "--json").json
    assert answer["file"] == "runs/done/timeline.csv" and (copied / "timeline.csv").exists()
    assert cli("export", "done", "-o", "out.parquet").out.strip() == "out.parquet"


def test_doctor_finds_no_problem_in_this_installation(cli):
    findings = cli("doctor", "--json").json
    found = {finding["what"]: finding for finding in findings}
    assert {"python", "torch", "transformer-lens", "device", "plugin markov", "runs folder"} <= found.keys()
    assert found["torch"]["ok"] and found["plugin markov"]["ok"]


def test_doctor_prints_how_to_fix_a_broken_plugin(cli, tmp_path):
    (tmp_path / "broken_three.py").write_text("1 / 0\n")
    answer = cli("--plugin-dir", tmp_path / "broken_three.py", "doctor", "--json")
    (finding,) = [f for f in answer.json if f["what"] == "plugin broken_three"]
    assert answer.code == 1 and not finding["ok"] and "broken_three.py:1" in finding["fix"]


def test_help_and_version(cli):
    assert cli("--help").code == cli().code == cli("run", "-h").code == 0
    assert cli("--version").out == f"stagelens {importlib.metadata.version('stagelens')}\n"


def test_a_run_that_fails_prints_its_summary_and_ends_with_1(cli, tmp_path):
    (tmp_path / "diverging.py").write_text(DIVERGING)
    answer = cli("--plugin-dir", tmp_path / "diverging.py", "run", "diverging", "--json")
    assert answer.code == 1 and answer.json["status"] == "failed"
    assert answer.err == "error: the loss became nan or infinite at step 7; try a smaller lr, or clip=1\n"
    assert answer.json["final"]["loss"] > 0


DIVERGING = """
import math, torch
import stagelens as sl
from stagelens.models import build_transformer

class Diverging(sl.Task):
    id, title, presets = "diverging/one", "", {"quick": {"steps": 20, "batch_size": 2, "eval_size": 2}}
    probes = ["weight_norms"]
    trained = 0
    def build_model(self):
        return build_transformer(n_layers=1, n_heads=1, d_model=4, n_ctx=4, d_vocab=3, seed=self.seed)
    def sample(self, n, generator):
        return torch.randint(3, (n, 4), generator=generator)
    def loss(self, model, batch):
        self.trained += model.training
        return model(batch).square().mean() * (math.nan if self.trained == 8 else 1)

@sl.hookimpl
def stagelens_register_tasks():
    return [Diverging]
"""

# Mistakes: one line, exit code 2, and nothing is written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "markow"], "unknown task 'markow' (did you mean 'markov'?)"),
        (["run", "markov", "--preset", "quik"], "unknown preset 'quik' (did you mean 'quick'?); known: paper, quick"),
        (["run", "markov", "--probes", "curvture"], "unknown probe 'curvture' (did you mean 'curvature'?)"),
        (["run", "markov", "--set", "stepz=5"], "unknown config key 'stepz' (did you mean 'steps'?)"),
        (["run", "markov", "--set", "steps=many"], "config key 'steps': got 'many'"),
        (["run", "markov", "--set", "steps=-5"], "config key 'steps': got -5"),
        (["run", "markov", "--set", "d=-5"], "config key 'd': got -5"),
        (["run", "markov", "--set", "heads=-1"], "config key 'heads': got -1"),
        (["run", "markov", "--set", "T=0"], "config key 'T': got 0"),
        (["run", "markov", "--set", "intervals=[[1,2],[2,3]]"], "without overlap or gap"),
        (["run", "markov", "--set", "h=2"], "h=2 but 3 intervals are given"),
        (["run", "markov", "--set", "steps"], "expected key=value"),
        (["run", "markov", "--set", "train_size=3"], "train_size 3 is smaller than batch_size"),
        (["run", "markov", "--device", "gpu"], "device 'gpu' cannot be used here"),
        (["run", "markov", "--device", "meta"], "device 'meta' cannot be used here"),
        (["run", "markov", "--name", "a/b"], "run name 'a/b'"),
        (["run", "markov", "--name", "../a"], "run name '../a'"),
        (["run", "markov", "--name", ".."], "run name '..'"),
        (["run", "markov", "--name", ""], "run name ''"),
        (["run", "markov", "--name", ".hidden"], "run name '.hidden'"),
        (["run", "markov", "--seed", "-1"], "--seed"),
        (["run", "markov", "--seed", "one"], "--seed"),
        (["run", "markov", "--bogus"], "No such option"),
        (["run"], "Missing argument 'TASK'"),
        (["rum"], "No such command 'rum'"),
        (["--plugin-dir", "no/where", "tasks"], "plugin directory 'no/where' does not exist"),
        (["--plugin-dir", "no/where", "plugins"], "plugin directory 'no/where' does not exist"),
        (["show", "nothing"], "unknown run 'nothing'"),
        (["show", "."], ". is not a run: it has no run.json"),
        (["show", ".."], ".. is not a run"),
        (["export", "nothing"], "unknown run 'nothing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_writes_nothing(cli, tmp_path, words, message):
    answer = cli(*words)
    assert answer.code == 2 and message in answer.complaint
    assert everything_in(tmp_path) == {}


def test_a_name_that_exists_is_a_mistake(cli, copied, tmp_path):
    before = everything_in(tmp_path)
    answer = cli("run", "markov", *QUICK, "--seed", 1, "--name", "done")
    assert answer.code == 2 and "add --resume" in answer.complaint
    answer = cli("run", "markov", *QUICK, "--seed", 2, "--name", "done", "--resume")
    assert answer.code == 2 and "with seed 1" in answer.complaint
    assert everything_in(tmp_path) == before


def test_an_unknown_format_is_a_mistake(cli, copied):
    answer = cli("export", "done", "--format", "excel")
    assert answer.code == 2 and "unknown format 'excel'" in answer.complaint


def test_another_programs_timeline_is_a_mistake(cli, copied):
    (copied / TIMELINE).unlink()
    with sqlite3.connect(copied / TIMELINE) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    for words in (
        ["show", "done"],
        ["export", "done"],
        ["run", "markov", *QUICK, "--seed", 1, "--name", "done", "--resume"],
    ):
        answer = cli(*words)
        assert answer.code == 2 and "is not a stagelens timeline" in answer.complaint


def test_a_checkpoint_of_another_task_is_a_mistake(cli, copied, tmp_path):
    other = run(Regression, tmp_path / "other")
    shutil.copy(checkpoint.path_of(other.folder, 40), checkpoint.path_of(copied, 12))
    answer = cli("run", "markov", *QUICK, "--seed", 1, "--name", "done", "--resume")
    assert answer.code == 2 and "is of task 'small/regression'" in answer.complaint


# Environment errors: one line, exit code 3


def test_a_truncated_timeline_is_an_environment_error(cli, copied):
    whole = (copied / TIMELINE).read_bytes()
    (copied / TIMELINE).write_bytes(whole[: len(whole) // 2])
    for words in (
        ["show", "done"],
        ["export", "done"],
        ["run", "markov", *QUICK, "--seed", 1, "--name", "done", "--resume"],
    ):
        answer = cli(*words)
        assert answer.code == 3 and "restore it from a copy or delete the run" in answer.complaint


def test_a_damaged_manifest_is_an_environment_error(cli, copied):
    (copied / FILE).write_text("{")
    answer = cli("show", "done")
    assert answer.code == 3 and "cannot be read" in answer.complaint
    assert cli("runs", "--json").json == []


def test_a_file_in_place_of_the_runs_directory_is_an_environment_error(cli, tmp_path):
    (tmp_path / "runs").write_text("mine")
    answer = cli("run", "markov", *QUICK)
    assert answer.code == 3 and "give another directory with --runs" in answer.complaint
    assert (tmp_path / "runs").read_text() == "mine"
