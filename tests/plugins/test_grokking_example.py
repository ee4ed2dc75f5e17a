"""The example of a foreign plugin works for somebody who installs it."""

from __future__ import annotations

import json

import pytest

from conftest import ROOT


@pytest.mark.slow
def test_it_groks_in_a_fresh_environment_compares_with_markov_and_passes_its_own_tests(environment):
    environment.install(ROOT / "docs" / "examples" / "grokking")
    ran = json.loads(environment.call("stagelens", "run", "grokking", "--name", "g", "--json"))
    assert ran["status"] == "finished" and not ran["problems"]
    final = ran["final"]
    assert final["train_loss"] < 0.01 and final["accuracy"] > 0.9 and final["fourier/concentration"] > 0.7
    environment.call("stagelens", "run", "markov", "--name", "m", "--set", "steps=200", "--json")
    words = ["g", "m", "--align", "fraction", "--relative", "--json", "-o", "both.png"]
    compared = json.loads(environment.call("stagelens", "compare", *words))
    assert compared["align"] == "fraction" and len(compared["runs"]) == 2 and compared["rows"]
    assert (environment.cwd / "both.png").stat().st_size > 10_000
    environment.call("python", "-m", "pytest", "-q", "-W", "error", str(ROOT / "docs" / "examples" / "grokking"))
