"""Every verdict, through the command line, with a plugin that trains a line for a few steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stagelens.base import plain
from stagelens.claims.verifying import Result, choose, last_results, verify
from stagelens.host import make_host

PLUGIN = Path(__file__).parents[1] / "kit" / "claims_plugin.py"


@pytest.fixture
def verifying(cli, tmp_path):
    """Returns a function: `verifying("T1", ...)` calls `stagelens verify claims_plugin --claim T1 ...`."""

    def call(*claims, options=("--json",), workers=1):
        chosen = [word for claim in claims for word in ("--claim", claim)]
        always = ("--cache", tmp_path / "cache", "--workers", workers)
        return cli("--plugin-dir", PLUGIN, "verify", "claims_plugin", *chosen, *always, *options)

    return call


def kept_runs(tmp_path):
    return sorted(path.parent.name for path in (tmp_path / "cache" / "runs").glob("*/run.json"))


def test_a_claim_that_holds(verifying):
    answer = verifying("T1")
    (result,) = answer.json
    assert answer.code == 0
    assert (result["id"], result["plugin"], result["verdict"], result["seeds"]) == ("T1", "claims_plugin", "holds", 3)
    assert result["seconds"] > 0 and result["error"] == ""
    (check,) = result["checks"]
    assert {"what", "measured", "expected", "tolerance", "reference", "holds"} <= check.keys()
    assert check["holds"] is True and len(check["measured"]) == 3 and check["expected"] == "<= 0.9"
    assert check["seeds"] == {"10": True, "11": True, "12": True}


def test_a_claim_that_differs_is_a_result(verifying):
    answer = verifying("T2")
    (result,) = answer.json
    assert answer.code == 0
    assert result["verdict"] == "differs"
    assert [check["holds"] for check in result["checks"]] == [False, False]
    assert all(check["measured"] > 0 and check["expected"] == 0.0 for check in result["checks"])


def test_runs_are_shared_between_claims_and_cached(verifying, tmp_path):
    verifying("T1", "T2")
    assert len(kept_runs(tmp_path)) == 3  # T2's two runs are T1's
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "runs").glob("*/run.json")}
    verifying("T2", "T1")
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.slow
def test_parallel_verification_gives_the_same_verdicts_and_shares_runs(verifying, tmp_path):
    together = verifying("T2", "T1", "T7", workers=2)
    assert together.code == 1 and [result["id"] for result in together.json] == ["T1", "T2", "T7"]
    assert len(kept_runs(tmp_path)) == 3
    for one, other in zip(together.json, verifying("T1", "T2", "T7").json, strict=True):
        assert (one["verdict"], one["checks"], one["error"]) == (other["verdict"], other["checks"], other["error"])


def test_a_claim_may_need_a_larger_budget(verifying, tmp_path):
    answer = verifying("T3")
    assert answer.code == 0
    assert [(result["verdict"], result["checks"]) for result in answer.json] == [("needs budget", [])]
    paid = verifying("T3", options=("--json", "--budget", "paper")).json
    assert [(result["verdict"], result["budget"]) for result in paid] == [("holds", "paper")]
    verifying("T3")
    assert last_results("claims_plugin", tmp_path / "cache")[0].verdict == "holds"  # 'needs budget' replaces no verdict


@pytest.mark.parametrize(
    ("claim", "error", "checks"),
    [
        ("T4", "ZeroDivisionError: two lines of text", 1),
        ("T5", "time: a claim cannot hold without a measurement, and this one is nan", 0),
        ("T6", "the claim judged nothing; a claim cannot hold without a measurement", 0),
        ("T7", "'claims_plugin:Nowhere': module 'claims_plugin' has no 'Nowhere'", 0),
    ],
)
def test_a_claim_in_error_is_reported_in_one_line(verifying, claim, error, checks):
    answer = verifying(claim)
    (result,) = answer.json
    assert answer.code == 1
    assert (result["verdict"], result["error"], len(result["checks"])) == ("error", error, checks)
    assert "Traceback" in result["traceback"]


def test_after_an_error_the_others_continue(verifying, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    answer = verifying(options=("--seeds", "1"))
    assert answer.code == 1
    for words in ("last loss / first", "<= 0.9", "Fig. 1", "1 of 1", "holds", "differs", "needs budget"):
        assert words in answer.out
    assert "T4 error: a claim with a mistake" in answer.out
    assert "10 claims: 1 holds, 3 differs, 2 needs budget, 4 error" in answer.out
    assert "Traceback" not in answer.out + answer.err


def test_debug_shows_where_a_claim_raised(verifying):
    answer = verifying("T4", options=("--debug", "--json"))
    assert answer.json[0]["verdict"] == "error"
    assert "claims_plugin.py" in answer.err and "ZeroDivisionError" in answer.err


def test_an_undecided_check_names_the_budget_that_would_decide(verifying, tmp_path):
    (result,) = verifying("T8").json
    assert (result["verdict"], result["seeds"]) == ("needs budget", 2)
    assert result["needs"] == "--budget long, or about 4 times as many runs"
    (result,) = verifying("T8", options=("--json", "--budget", "long")).json
    assert (result["verdict"], result["needs"], result["seeds"]) == ("holds", "", 4)
    both = {budget: last_results("claims_plugin", tmp_path / "cache", budget) for budget in ("quick", "long", "paper")}
    assert [[kept.verdict for kept in results] for results in both.values()] == [["needs budget"], ["holds"], []]
    assert [kept.verdict for kept in last_results("claims_plugin", tmp_path / "cache")] == ["holds"]


def test_identities_are_shown_apart_and_are_no_evidence(verifying, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (result,) = verifying("T9").json
    assert (result["verdict"], result["reason"]) == ("differs", "reading: two is not three")
    assert [(check["sanity"], check["verdict"]) for check in result["checks"]] == [(False, "holds"), (True, "differs")]
    shown = verifying("T9", options=()).out
    assert shown.index("evidence") < shown.index("Sanity checks") < shown.index("identity")
    assert "T9 differs: an identity that fails (0 s): reading: two is not three" in shown


def test_a_reason_that_is_written_for_one_budget_is_not_shown_with_another(verifying):
    (result,) = verifying("T10").json
    assert (result["verdict"], result["reason"]) == ("differs", "size: two is too few")
    (result,) = verifying("T10", options=("--json", "--budget", "long")).json
    assert (result["verdict"], result["reason"]) == ("differs", "")


def test_resuming_verifies_only_what_has_no_valid_verdict(verifying, tmp_path, monkeypatch):
    first = {row["id"]: row["verified"] for row in verifying("T1", "T4").json}
    monkeypatch.setattr("stagelens.claims.verifying.datetime", Later)
    again = {row["id"]: row["verified"] for row in verifying("T1", "T4", "T6", options=("--json", "--resume")).json}
    assert again == {"T1": first["T1"], "T4": Later.TEXT, "T6": Later.TEXT}  # an error is not decided
    other = verifying("T1", options=("--json", "--resume", "--budget", "long")).json
    assert other[0]["verified"] == Later.TEXT
    other = verifying("T1", options=("--json", "--resume", "--seeds", "2")).json
    assert other[0]["verified"] == Later.TEXT
    verifying("T1")
    monkeypatch.setattr("stagelens.claims.verifying.verdict_digest", lambda *_: "changed")
    monkeypatch.setattr(Later, "TEXT", "2101-01-01T00:00:00+00:00")
    assert verifying("T1", options=("--json", "--resume")).json[0]["verified"] == Later.TEXT


class Later:
    """A clock that advances, so that new verdicts have a new time."""

    TEXT = "2100-01-01T00:00:00+00:00"

    @classmethod
    def now(cls, _zone):
        return cls

    @classmethod
    def isoformat(cls, timespec):
        return cls.TEXT


def test_seeds_can_be_asked_for(verifying, tmp_path):
    (result,) = verifying("T1", options=("--json", "--seeds", "2")).json
    assert result["seeds"] == 2 and len(result["checks"][0]["measured"]) == 2
    assert len(kept_runs(tmp_path)) == 2


def test_names_that_are_not_known(cli):
    assert "did you mean 'claims_plugin'?" in _complaint(cli, "claim_plugin")
    assert "did you mean 'T1'?" in _complaint(cli, "claims_plugin", "--claim", "T11")
    assert "claim 'M1' is of plugin 'markov'" in _complaint(cli, "claims_plugin", "--claim", "M1")
    assert "plugin 'probes' has no claims" in _complaint(cli, "probes")
    assert "did you mean 'paper'?" in _complaint(cli, "--budget", "papers")


def _complaint(cli, *words):
    answer = cli("--plugin-dir", PLUGIN, "verify", *words)
    assert answer.code == 2
    return answer.complaint


def test_a_plugin_that_did_not_load_is_named_with_its_error(cli, tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    answer = cli("--plugin-dir", tmp_path / "broken.py", "verify", "broken")
    assert answer.code == 2
    assert "plugin 'broken' did not load: ModuleNotFoundError" in answer.err.splitlines()[-1]


def test_the_last_verdicts_are_stored_by_claim(verifying, tmp_path):
    assert last_results("claims_plugin", tmp_path / "cache") == []
    verifying("T1", "T4", options=("--json", "--seeds", "1"))
    verifying("T1")
    kept = {result.id: result for result in last_results("claims_plugin", tmp_path / "cache")}
    assert {id: result.verdict for id, result in kept.items()} == {"T1": "holds", "T4": "error"}
    assert kept["T1"].seeds == 3 and kept["T1"].verified.startswith("20")
    (tmp_path / "cache" / "verified" / "claims_plugin.json").write_text('[{"id": "T1"')
    assert last_results("claims_plugin", tmp_path / "cache") == []
    verifying("T1")
    assert len(last_results("claims_plugin", tmp_path / "cache")) == 1


def test_an_interruption_ends_it_and_shows_what_was_found(verifying, monkeypatch):
    from stagelens.claims.lab import Lab

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Lab, "run", interrupted)
    answer = verifying("T4", "T1")
    assert answer.code == 130
    assert answer.json == []
    assert "interrupted" in answer.err


def test_on_a_terminal_a_bar_shows_what_is_done_and_what_runs(verifying, monkeypatch):
    monkeypatch.setattr("stagelens.cli.output.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    answer = verifying("T1", "T6", options=("--json", "--seeds", "1"))
    assert [result["verdict"] for result in answer.json] == ["holds", "error"]
    assert "lines seed 10" in answer.err and "2/2" in answer.err


def test_time_left_is_that_of_what_was_done():
    from stagelens.cli.progress import time_left

    assert [time_left(*given) for given in [(30, 0, 4), (30, 1, 4), (120, 2, 4), (30, 4, 4)]] == [
        "",
        "left 1:30",
        "left 2:00",
        "",
    ]


def test_a_cache_that_cannot_be_written_is_one_line(cli, tmp_path):
    (tmp_path / "file").write_text("")
    answer = cli("--plugin-dir", PLUGIN, "verify", "--claim", "T6", "--cache", tmp_path / "file")
    assert answer.code == 3
    assert "give another --cache" in answer.complaint


def test_help_and_mistakes_need_no_torch():
    script = (
        "import sys\nfrom stagelens.cli import main\nfor words in (['--help'], ['nobody'], ['--claim', 'X']):\n"
        "    sys.argv = ['stagelens', 'verify', *words]\n    try: main()\n    except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_from_python(imports, tmp_path):
    host = make_host([PLUGIN])
    (result,) = verify(choose(host, claims=["T1"]), host, seeds=1, cache=tmp_path)
    assert result.verdict == "holds" and result.checks[0].seeds == {10: True}


def test_the_command_line_prints_what_python_returns(verifying, imports, tmp_path):
    answer = verifying("T1", "T2", "T7").json
    host = make_host([PLUGIN])
    results = verify(choose(host, claims=["T1", "T2", "T7"]), host, cache=tmp_path / "cache")
    for printed, result in zip(answer, map(Result.to_dict, results), strict=True):
        assert plain(result | {"seconds": 0}) == printed | {"seconds": 0}
