"""Every claim reaches a verdict. If the events that it measures do not occur, it differs; it is not an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import stagelens_linear_icl.claims.main
import stagelens_linear_icl.claims.paths
import stagelens_linear_icl.claims.variations
import stagelens_linear_icl.flow
import stagelens_rich.flow
from stagelens.claims import Check, at_least, close, equal, ordered, reached, reported
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.experiments.config import make_config
from stagelens.experiments.flow import Flow
from stagelens.host.host import make_host
from stagelens_rich.theory import PhaseTimes

PLUGINS = ("markov", "linear-icl", "recall", "rich", "emergence")
# These compute what they compare themselves, to its end: no run in them can be too short.
WHOLE = {"M13", "L4", "L8", "L9", "L13", "G3", "G7", "G11", "S3", "S4", "S5", "S6"}
ALWAYS = {"L11", "R3", "R5"}  # what is conserved, and where training goes at first: true of short runs too
SHORT = {"batch_size": 4, "eval_size": 4, "train_size": 0, "P": 4}
HOST = make_host()
CLAIMS = {chosen.ref.id: chosen for chosen in choose(HOST, PLUGINS)}


@dataclass(frozen=True)
class ShortLab(Lab):
    """A lab whose runs end long before anything is learned."""

    def run(self, task: Any, settings: Mapping[str, Any] | None = None, seed: int = 0, **options: Any) -> Any:
        kind = self.host.task(task).load()
        config = make_config(kind.Config, kind.presets, options.get("preset") or self.budget, [])
        if issubclass(kind, Flow):
            short: dict[str, Any] = {"time": 1e-3, "points": 12}
        else:
            phases = getattr(config, "first_steps", 0)
            short = {"steps": phases + 4} | {key: value for key, value in SHORT.items() if hasattr(config, key)}
            if "P" in short:
                short |= {"train_size": short["P"]}
        return super().run(task, {**(settings or {}), **short}, seed, **options)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def nothing_happens(monkeypatch):
    """Makes the computations of claims outside of the lab end too early as well."""
    linear, variations, rich = (
        stagelens_linear_icl.claims.paths,
        stagelens_linear_icl.claims.variations,
        stagelens_rich.flow,
    )
    monkeypatch.setattr(linear, "END", 400.0)
    brief = {**stagelens_linear_icl.claims.main.ScalarEquation.descent, "steps": 400}
    monkeypatch.setattr(stagelens_linear_icl.claims.main.ScalarEquation, "descent", brief)
    monkeypatch.setattr(stagelens_linear_icl.flow, "first_crossing", lambda *_, **__: None)
    linear.small_starts.cache_clear()
    monkeypatch.setattr(variations, "RANKS", dict.fromkeys(variations.RANKS, 400))
    monkeypatch.setattr(rich, "solved_times", lambda **_: PhaseTimes(None, None, None, None))
    yield
    linear.small_starts.cache_clear()


@pytest.mark.parametrize("id", [id for id in CLAIMS if id not in WHOLE])
def test_a_claim_whose_measurements_are_never_reached_differs(id, cache):
    result = verify_claim(CLAIMS[id], ShortLab(HOST, cache), 1)
    needs_more = CLAIMS[id].ref.load().budget != "quick"
    expected = "needs budget" if needs_more else "holds" if id in ALWAYS else "differs"
    assert result.verdict == expected, (result.error, result.traceback)


def test_what_was_not_reached_is_in_words_which_fail_every_check():
    assert reached([1.5, float("nan"), None, [float("inf"), 2]]) == [
        1.5,
        "not reached",
        "not reached",
        ["not reached", 2],
    ]
    assert reached([], "none") == "none" and reached(0.0) == 0.0 and reached("not by step 9") == "not by step 9"
    missing = reached(float("nan"))
    checks = [
        close("x", missing, 1.0, 10.0, "here"),
        at_least("x", missing, -1e9, "here"),
        ordered("x", [1.0, missing], "here"),
        equal("x", missing, 1, "here"),
    ]
    assert not any(check.holds for check in checks)
    assert isinstance(reported("x", missing, "here"), Check)
