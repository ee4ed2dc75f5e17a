"""Plugins that somebody installs with pip: what `new-plugin` writes, and the example of the docs.

Both are installed into one Python environment, and one process runs their own tests.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from conftest import ROOT, STAGELENS, make_environment
from kit import store

GROKKING = ROOT / "docs" / "examples" / "grokking"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with both plugins; its commands run in an empty folder next to the written plugin."""
    cwd = tmp_path_factory.mktemp("work")
    subprocess.run([*STAGELENS, "new-plugin", "my-paper"], check=True, capture_output=True, cwd=cwd, timeout=60)
    made = make_environment(tmp_path_factory.mktemp("environment"), cwd)
    made.install(cwd / "my-paper", GROKKING)
    return made


def test_they_are_listed_with_their_versions(installed):
    plugins = {plugin["name"]: plugin for plugin in json.loads(installed.call("stagelens", "plugins", "--json"))}
    for name in ("my-paper", "grokking"):
        assert {"version": "0.1.0", "status": "loaded"}.items() <= plugins[name].items()


def test_the_written_plugin_runs(installed):
    ran = json.loads(installed.call("stagelens", "run", "my-paper", "--json"))
    assert ran["status"] == "finished" and not ran["problems"] and not ran["skipped"]
    assert "the source is found" in [stage["name"] for stage in ran["stages"]]


def test_the_example_groks_and_compares_with_a_run_of_another_plugin(installed, cli, tmp_path):
    ran = json.loads(installed.call("stagelens", "run", "grokking", "--name", "g", "--json"))
    assert ran["status"] == "finished" and not ran["problems"]
    final = ran["final"]
    assert final["train_loss"] < 0.01 and final["accuracy"] > 0.9 and final["fourier/concentration"] > 0.7
    markov = store.lab().run("markov").folder
    words = [ran["run"] if ran["run"].startswith("/") else installed.cwd / ran["run"], markov, "--align", "fraction"]
    compared = cli("compare", *words, "--relative", "--json", "-o", tmp_path / "both.png").json
    assert compared["align"] == "fraction" and len(compared["runs"]) == 2 and compared["rows"]
    assert (tmp_path / "both.png").stat().st_size > 10_000


def test_both_pass_their_own_tests(installed):
    assert " passed" in installed.call("python", "-m", "pytest", "-q", "-W", "error", "my-paper", str(GROKKING))
