"""Untrusted runs, plugins and files cannot run code, exhaust memory, leave the runs directory or control a terminal."""

from __future__ import annotations

import ast
import json
import os
import resource
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import stagelens as sl
from conftest import ROOT
from kit.written_runs import STEPS, staircase, write_run
from stagelens.base.documents import MOST_DEPTH, MOST_YAML, read_yaml, save_sealed
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.host.host import make_host
from stagelens.runs import catalogue, checkpoint, points_of
from stagelens.training.saved_checkpoints.weights import load_weights

CODE = sorted(path for tree in ("toolkit", "probes", "plugins") for path in (ROOT / tree).rglob("*.py"))
LOSS = {"loss": staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))}
TERABYTES = 10 * 2**40


# code


def test_nothing_unpickles_or_evaluates():
    forbidden = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not forbidden & {name.partition(".")[0] for name in names}, where
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert called not in {"eval", "exec", "compile", "__import__", "os.system", "pandas.read_pickle"}, where
                assert called != "torch.load" or given.get("weights_only") == "True", where
                assert called != "yaml.load" or path.name == "documents.py", where
                assert "allow_pickle" not in given and given.get("shell", "False") == "False", where


def test_a_yaml_file_runs_no_code_and_does_not_swell(tmp_path):
    file = tmp_path / "grid.yaml"
    layers = "".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefghi"))
    for text, reason in {
        "T: !!python/object/apply:os.system [true]\n": "could not determine a constructor",
        f"a: &a [x]\n{layers}": "line 2: an alias",
        "a: &a [*a]\n": "line 1: an alias",
        "[" * 5000: f"more than {MOST_DEPTH} deep",
        "T: 1\nT: 2\n": "'T' occurs twice",
        "#" * (MOST_YAML + 1): "more than 1,048,576 bytes",
    }.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=reason):
            read_yaml(file)


# memory


@pytest.mark.parametrize("claim", ["header", "end", "shape"])
def test_a_file_that_claims_terabytes_is_refused_before_they_are_allocated(tmp_path, claim):
    tensor = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    if claim == "end":
        tensor |= {"shape": [TERABYTES // 4], "data_offsets": [0, TERABYTES]}
    elif claim == "shape":
        tensor |= {"shape": [TERABYTES]}
    header = json.dumps({"__metadata__": {"stagelens": "1"}, "w": tensor}).encode()
    length = TERABYTES if claim == "header" else len(header)
    path = tmp_path / "1.safetensors"
    path.write_bytes(struct.pack("<Q", length) + header + bytes(16))
    for read in (checkpoint.load, load_weights):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(EnvironmentFault) as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


def test_a_file_of_holes_that_is_larger_than_the_memory_is_refused(tmp_path):
    tensor = {"dtype": "U8", "shape": [TERABYTES], "data_offsets": [0, TERABYTES]}
    header = json.dumps({"__metadata__": {"stagelens": "1"}, "w": tensor}).encode()
    path = tmp_path / "1.safetensors"
    try:
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + TERABYTES)
    except OSError:
        pytest.skip("this file system has no such large files")
    for read in (checkpoint.load, load_weights):
        with pytest.raises(EnvironmentFault, match="memory"):
            read(path)


# places


@pytest.fixture
def runs(tmp_path):
    """A runs directory with one run, and a private directory outside of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    write_run(tmp_path / "runs", "mine", LOSS)
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["..", "../outside", "/etc", "a/b", ".", ".hidden", "a\\b", "a\0b", " a", "x\n"])
def test_a_name_cannot_leave_the_runs_folder(runs, name):
    from kit.tasks import Decay, run

    with pytest.raises(UsageError, match="run name"):
        run(Decay, runs, name=name)
    with pytest.raises(UsageError):
        sl.load(f"{name}/nothing", runs)


@pytest.mark.parametrize("name", ["../outside", "/etc", "..", "a/b", 7, None, ["mine"]])
def test_a_row_of_a_sweep_cannot_leave_it_either(runs, name):
    (runs / "sweeps" / "s").mkdir(parents=True)
    save_sealed(runs / "sweeps" / "s" / "sweep.json", {"table": [{"run": name, "status": "finished"}]})
    with pytest.raises(EnvironmentFault, match="is not the table of a sweep"):
        points_of("s", runs)


def test_a_link_cannot_lead_a_run_out(runs):
    write_run(runs.parent / "outside", "theirs", LOSS)
    (runs / "linked").symlink_to(runs.parent / "outside" / "theirs", target_is_directory=True)
    with pytest.raises(UsageError, match="is a link that leads out of"):
        sl.load("linked", runs)
    assert [run.name for run in catalogue(runs)] == ["mine"]
    from kit.tasks import Regression, run

    with pytest.raises(UsageError, match="is a link that leads out of"):
        run(Regression, runs, name="linked", resume=True)
    assert sl.load(runs.parent / "outside" / "theirs").name == "theirs"  # a path that the user gives is intended


@pytest.mark.parametrize(
    "file", ["run.json", "timeline.sqlite", "timeline.sqlite-wal", "run.lock", "checkpoints", "figures"]
)
def test_a_link_in_a_run_cannot_lead_out(runs, file):
    (runs / "mine" / file).unlink(missing_ok=True)
    (runs / "mine" / file).symlink_to(runs.parent / "outside" / ("" if "." not in file else "secret"))
    for use in (lambda: sl.load("mine", runs), lambda: sl.load(runs / "mine")):
        with pytest.raises(UsageError, match="is a link that leads out of the runs directory"):
            use()
    assert catalogue(runs) == []
    assert (runs.parent / "outside" / "secret").read_text() == "secret"


def test_a_link_to_another_path_in_the_runs_directory_is_allowed(runs):
    (runs / "mine" / "timeline.sqlite").rename(runs / "kept.sqlite")
    (runs / "mine" / "timeline.sqlite").symlink_to("../kept.sqlite")
    assert len(sl.load("mine", runs).timeline.steps) == len(STEPS)


def test_linked_checkpoints_and_figures_are_not_read(runs):
    for folder in ("checkpoints", "figures"):
        (runs / "mine" / folder).mkdir()
    (runs / "mine" / "checkpoints" / "000000001.safetensors").symlink_to(runs.parent / "outside" / "secret")
    (runs / "mine" / "figures" / "loss.png").symlink_to(runs.parent / "outside" / "secret")
    run = sl.load("mine", runs)
    with pytest.raises(UsageError, match="is a link that leads out"):
        checkpoint.load(checkpoint.path_of(run.folder, 1))
    from stagelens.report.pages import write_comparison

    write_run(runs, "second", LOSS)
    with pytest.raises(UsageError, match=r"loss\.png is a link that leads out"):
        write_comparison([run, sl.load("second", runs)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
@pytest.mark.parametrize("file", ["run.json", "timeline.sqlite", "timeline.sqlite-wal"])
def test_no_reader_waits_for_a_pipe(runs, file):
    (runs / "mine" / file).unlink(missing_ok=True)
    os.mkfifo(runs / "mine" / file)
    with pytest.raises(UsageError, match="is neither a file nor a directory"):
        sl.load("mine", runs)


# what a manifest can say


def test_what_comes_from_a_manifest_cannot_steer_a_terminal(runs, cli):
    hostile = "\x1b[2J\x1b]0;owned\x07\u202e[bold]x[/]"
    fields = {"task": hostile, "device": hostile, "metric": hostile, "skipped": {hostile: hostile}, "created": hostile}
    write_run(
        runs, "theirs", {hostile: LOSS["loss"], "x": (STEPS % 2, (), (hostile, "b"))}, problems={"p": hostile}, **fields
    )
    for words in (["show", "theirs"], ["runs"], ["stages", "theirs"], ["compare", "theirs"]):
        answer = cli(*words, "--runs", runs)
        assert answer.code == 0, answer.err
        assert r"\x1b[2J" in answer.out
        assert all(character.isprintable() or character == "\n" for character in answer.out + answer.err)


# plugins


@pytest.fixture
def foreign(tmp_path, monkeypatch, imports):
    """An installed distribution with a plugin that leaves a mark when it is imported."""
    site = tmp_path / "site"
    (site / "evil_package").mkdir(parents=True)
    mark = tmp_path / "imported"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    for module in ("evil_package/__init__", "evil_package/plugin", "evil_squatter"):
        (site / f"{module}.py").write_text(code)
    about = site / "evil-6.6.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 6.6\n")
    about.joinpath("entry_points.txt").write_text("[stagelens]\nevil = evil_package.plugin\nmarkov = evil_squatter\n")
    monkeypatch.syspath_prepend(site)
    return mark


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A run that says it was made by that plugin."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "theirs" / "checkpoints").mkdir(parents=True)
    save_file({"w": torch.ones(1)}, tmp_path / "runs" / "theirs" / "checkpoints" / "000000001.safetensors")
    (tmp_path / "runs" / "theirs").rename(tmp_path / "aside")
    write_run(tmp_path / "runs", "theirs", LOSS, task="evil/task", plugin="evil")
    (tmp_path / "aside" / "checkpoints").rename(tmp_path / "runs" / "theirs" / "checkpoints")
    return "theirs"


def test_opening_a_run_imports_no_plugin(foreign, theirs, cli):
    run = sl.load(theirs)
    assert run.summary()["task"] == "evil/task" and run.stages() and run.timeline.dataset and run.checkpoints == [1]
    sl.compare([theirs]).save("both.html")
    for words in (["show"], ["stages"], ["compare"], ["export"]):
        assert cli(*words, theirs, "--json").code == 0
    assert cli("runs", "--json").code == 0
    for words in (["report", theirs, "-o", "page.html"], ["tasks"]):
        assert cli("--no-plugins", *words).code == 0
    assert not foreign.exists()


def test_a_model_needs_its_plugin_and_reports_if_that_is_left_out(foreign, theirs, cli, monkeypatch):
    monkeypatch.setenv("STAGELENS_ALLOW", "")
    with pytest.raises(UsageError, match=r"which needs plugin 'evil' from .*plugin\.py.*--allow evil") as caught:
        sl.load(theirs).model_at()
    assert "\n" not in str(caught.value)
    assert cli("report", theirs, "-o", "page.html").code == 0  # without what theory says
    assert "plugins left out: evil" in cli("run", "evil", "--resume").complaint
    assert not foreign.exists()
    monkeypatch.delenv("STAGELENS_ALLOW")
    with pytest.raises(UsageError, match=r"which plugin 'evil' 6\.6 does not have"):
        sl.load(theirs).model_at()
    assert foreign.exists()


def test_listing_without_importing_says_what_would_be_loaded_and_from_where(foreign, cli, monkeypatch):
    rows = {(row["name"], row["distribution"]): row for row in cli("--no-plugins", "plugins", "--json").json}
    evil, squatter = rows["evil", "evil"], rows["markov", "evil"]
    assert (evil["version"], evil["status"]) == ("6.6", "left out")
    assert evil["file"].endswith(str(Path("evil_package") / "plugin.py"))
    assert squatter["status"] == "left out" and squatter["file"].endswith("evil_squatter.py")
    assert evil["error"] == "it is not allowed, and was not imported; add --allow evil to import it"
    built_in = rows["markov", "stagelens"]
    assert (built_in["status"], built_in["error"]) == ("loaded", "") and Path(built_in["file"]).is_file()
    assert [row for row in rows.values() if not (row["version"] and row["file"])] == []
    monkeypatch.setenv("COLUMNS", "500")  # else long paths are folded
    assert (
        f"evil  6.6  left out  {evil['file']}  {evil['error']}".split()
        == [
            word
            for line in cli("--no-plugins", "plugins").out.splitlines()
            if "plugin.py" in line
            for word in line.split()
        ][1:]
    )
    doctor = cli("--no-plugins", "doctor", "--json")
    findings = {row["what"]: row for row in doctor.json}
    assert "left out" in findings["plugin evil"]["found"] and findings["plugin evil"]["ok"]  # not broken, not imported
    assert doctor.code == (0 if all(row["ok"] for row in doctor.json) else 1)
    assert not foreign.exists() and "STAGELENS_ALLOW" not in os.environ


def test_the_allow_list_lets_in_what_it_names_and_nothing_else(foreign, tmp_path, cli):
    (tmp_path / "beside.py").write_text("1 / 0\n")
    options = ("--allow", "evil", "--plugin-dir", tmp_path / "beside.py")
    rows = {(row["name"], row["distribution"]): row["status"] for row in cli(*options, "plugins", "--json").json}
    assert rows["evil", "evil"] == "loaded" and rows["beside", ""] == rows["markov", "evil"] == "left out"
    assert foreign.exists()
    assert "unknown plugin 'evl' (did you mean 'evil'?)" in cli("--allow", "evl", "plugins").complaint


def test_a_plugin_that_takes_a_built_in_name_is_not_even_imported(foreign):
    host = make_host(allow=["markov"])
    (squatter,) = [plugin for plugin in host.plugins if plugin.name == "markov" and plugin.distribution == "evil"]
    assert squatter.status == "failed" and "already loaded" in squatter.error
    assert "evil_squatter" not in sys.modules and not foreign.exists()
    assert host.task("markov").id == "markov/minimal"


def test_a_worker_leaves_out_what_its_command_leaves_out(foreign, tmp_path):
    """A command puts its list into the environment, which its processes inherit."""
    left_out = "(p.name for p in _host(()).plugins if p.status != 'loaded')"
    code = f"from stagelens.sweeps.executors.work import _host; print(*{left_out})"
    environment = os.environ | {"STAGELENS_ALLOW": "", "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.split() == ["evil", "markov"], done.stderr
    assert not foreign.exists()
