"""Every command that stagelens prints can be run unchanged, and a plugin has the same name in all of them."""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import stagelens as sl
from cli.test_answers import checkpoints  # noqa: F401
from kit.tasks import Repeats, run
from kit.written_runs import STEPS, staircase, write_run
from stagelens.host.host import make_host

KIT = Path(__file__).parents[1] / "kit"
TOOLKIT = Path(sl.__file__).parent
QUOTED, EXAMPLE = re.compile(r"`(stagelens [^`]+)`"), re.compile(r"Example: (stagelens [^\n]+)")


def texts(file: Path) -> list[str]:
    """Returns the texts of a toolkit file that may be printed: literals, with {} for values, or a template.

    The docstrings of commands count too, because their examples are printed as help.
    """
    if file.suffix != ".py":
        return [file.read_text()]
    tree = ast.parse(file.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    helps = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    found = [example for text in helps if text for example in EXAMPLE.findall(text)]
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found += QUOTED.findall("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in helps:
            found += QUOTED.findall(node.value)
    return found


def printed() -> list[str]:
    """The commands in the texts of the toolkit. Other tests check the values that replace {}."""
    files = [*TOOLKIT.rglob("*.py"), *TOOLKIT.glob("templates/*.j2")]
    found = {command for file in files for command in texts(file) if command.startswith("stagelens ")}
    return sorted(command for command in found if "{}" not in command)


CHEAP = ["--set", "d=5", "--set", "T=4", "--set", "batch_size=8", "--set", "eval_size=8", "--set", "steps=12"]


def test_printed_commands_run(cli, tmp_path, checkpoints) -> None:
    """Further settings make training short. For `verify` only the command line is parsed."""
    from stagelens.claims.verifying import choose

    commands = printed()
    assert {"stagelens runs", "stagelens tasks", "stagelens plugins", "stagelens run markov"} <= set(commands)
    curve = staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))
    for name in ("RUN", "RUN1", "RUN2", "markov-minimal-quick-seed0"):
        write_run(tmp_path / "runs", name, {"loss": curve})
    (tmp_path / "losses.csv").write_text("step,loss\n0,3\n1,2\n2,1\n3,1\n")
    checkpoints.rename(tmp_path / "my_training")
    shutil.copytree(tmp_path / "my_training", tmp_path / "DIRECTORY")
    none = ["--budget", "none"]
    more = {"run": [*CHEAP, "--device", "cpu"], "sweep": ["--dry-run"], "verify": none, "figure": none}
    for command in commands:
        known = command.replace("TASK", "markov").replace("PROBE", "induction").replace("KEY=VALUE", "steps=12")
        words = shlex.split(known.split(" && ")[0])[1:]
        answer = cli(*words, *more.get(words[0], []))
        if words[0] == "verify":
            assert "unknown budget 'none'" in answer.complaint and choose(make_host(), words[1:2], words[3:4])
        elif words[0] == "figure":
            assert "unknown budget 'none'" in answer.complaint
        else:
            assert answer.code == 0, (command, answer.err)


def command_in(page: Path) -> str:
    """Returns the command that the report shows under "How to repeat it"."""
    (text,) = re.findall(r"How to repeat it</h2>\s*<pre>(.*?)</pre>", page.read_text(), re.DOTALL)
    return html.unescape(text)


def test_the_report_of_probed_checkpoints_prints_a_command_that_runs(cli, checkpoints, tmp_path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"tokens": torch.randint(7, (4, 8))}, tmp_path / "batch.safetensors")
    for options in (["--probes", "weight_norms"], ["--batch", "batch.safetensors", "--probes", "weight_norms"]):
        first = cli("probe", checkpoints, *options, "--json").json
        words = shlex.split(command_in(tmp_path / first["run"] / "report.html"))
        assert words[:2] == ["stagelens", "probe"]
        again = cli(*words[1:], "--json")
        assert again.code == 0, again.err
        assert json.dumps(again.json["final"]) == json.dumps(first["final"])


def test_the_report_of_a_run_prints_a_command_that_repeats_it(cli, tmp_path) -> None:
    """The test includes a plugin under development, with its own settings and probes."""
    options = ["--plugin-dir", KIT / "fallible_plugin.py", "run", "fallible", "--set", "size=2", "--device", "cpu"]
    first = cli(*options, "--probes", "weight_norms", "--json").json
    words = shlex.split(command_in(tmp_path / first["run"] / "report.html"))
    again = cli(*words[1:], "--json")
    assert again.code == 0, again.err
    assert again.json["final"] == first["final"] and again.json["config"] == first["config"]


def test_a_class_that_no_plugin_brings_is_repeated_by_python(tmp_path) -> None:
    first = run(Repeats, tmp_path, settings={"steps": 6})
    host = make_host()
    host.load_class(Repeats)
    command = sl.load(first.folder, host=host).command
    assert command == "stagelens.run(Repeats, preset='quick', settings={'steps': 6}, seed=0)"


# Names


@pytest.mark.parametrize("name", ["lines", "lines/fit", "claims_plugin"])
def test_every_command_takes_the_names_of_a_plugin_under_development(cli, tmp_path, name) -> None:
    """Its tasks are `lines/...`, and it is loaded as `claims_plugin`, after its file."""
    plugin = ["--plugin-dir", KIT / "claims_plugin.py"]
    verified = cli(*plugin, "verify", name, "--claim", "T1", "--seeds", 1, "--workers", 1, "--json")
    assert verified.code == 0 and [(one["id"], one["verdict"]) for one in verified.json] == [("T1", "holds")]
    assert cli(*plugin, "run", name, "--json", "--device", "cpu").json["task"] == "lines/fit"
    assert cli(*plugin, "sweep", name, "--grid", "steps=3,4", "--dry-run", "--json").json["points"] == 2


def test_an_unknown_plugin_is_reported_with_the_known_ones(cli) -> None:
    complaint = cli("--plugin-dir", KIT / "claims_plugin.py", "verify", "line").complaint
    assert "unknown plugin 'line'" in complaint and "claims_plugin" in complaint
