"""Plugins installed with pip: the plugin that `new-plugin` writes, and the example of the docs.

Both are installed into one Python environment. One process there runs the commands, another the plugins' own tests.
"""

from __future__ import annotations

import json

import pytest

from conftest import ROOT, SEVERAL, make_environment
from kit import store

GROKKING = ROOT / "docs" / "examples" / "grokking"
# A smaller table and model, which learn within 200 steps; `make stress` has the preset itself.
SMALL = {"p": 19, "fraction": 0.65, "d_model": 32, "d_mlp": 64, "steps": 500}
COMMANDS = {
    "plugins": ["plugins"],
    "written": ["run", "my-paper"],
    "example": ["run", "grokking", "--name", "g", *(word for k, v in SMALL.items() for word in ("--set", f"{k}={v}"))],
}
PRINT = "print(json.dumps(answers), file=stdout)"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with both plugins; its commands run in an empty folder next to the written plugin."""
    from stagelens.cli.skeleton import write_plugin

    cwd = tmp_path_factory.mktemp("work")
    write_plugin("my-paper", cwd, set())
    made = make_environment(tmp_path_factory.mktemp("environment"), cwd)
    made.install(cwd / "my-paper", GROKKING)
    return made


@pytest.fixture(scope="module")
def answers(installed):
    """What the commands printed."""
    words = json.dumps({name: [*words, "--json"] for name, words in COMMANDS.items()})
    return json.loads(installed.call("python", "-c", SEVERAL + PRINT, words))


def test_they_are_listed_with_their_versions(answers):
    plugins = {plugin["name"]: plugin for plugin in answers["plugins"]}
    for name in ("my-paper", "grokking"):
        assert {"version": "0.1.0", "status": "loaded"}.items() <= plugins[name].items()


def test_the_written_plugin_runs(answers):
    ran = answers["written"]
    assert ran["status"] == "finished" and not ran["problems"]
    without = {name for name in ran["skipped"] if "/" not in name}
    assert without == {"kl_to_references", "conserved"}  # the task does not define the methods that they need
    assert "the source is found" in [stage["name"] for stage in ran["stages"]]


def test_the_example_groks_and_compares_with_a_run_of_another_plugin(answers, installed, cli, tmp_path):
    ran = answers["example"]
    assert ran["status"] == "finished" and not ran["problems"]
    final = ran["final"]
    assert final["train_loss"] < 0.01 and final["accuracy"] > 0.9 and final["fourier/concentration"] > 0.7
    markov = store.lab().run("markov").folder
    words = ["--align", "fraction", "--relative", "--json", "-o", "both.png"]
    compared = cli("compare", installed.cwd / ran["run"], markov, *words).json
    assert compared["align"] == "fraction" and len(compared["runs"]) == 2 and compared["rows"]
    assert (tmp_path / "both.png").stat().st_size > 10_000


def test_both_pass_their_own_tests(installed):
    assert " passed" in installed.call("python", "-m", "pytest", "-q", "-W", "error", "my-paper", str(GROKKING))
