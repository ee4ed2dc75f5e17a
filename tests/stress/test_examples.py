"""The example plugin of the docs at the size that its page shows: it groks. `make test` has a smaller table."""

from __future__ import annotations

from conftest import ROOT


def test_the_quick_preset_of_the_example_groks(cli):
    ran = cli("--plugin-dir", ROOT / "docs" / "examples" / "grokking", "run", "grokking", "--json").json
    final = ran["final"]
    assert ran["status"] == "finished" and not ran["problems"]
    assert final["train_loss"] < 0.01 and final["accuracy"] > 0.9 and final["fourier/concentration"] > 0.7


def test_the_claims_of_the_tutorial_are_judged(cli):
    folder = ROOT / "docs" / "examples" / "statistical_induction"
    results = cli("--plugin-dir", folder, "verify", "statistical-induction", "--workers", "1", "--json").json
    assert {one["id"]: one["verdict"] for one in results} == {"SI1": "holds", "SI2": "holds"}
