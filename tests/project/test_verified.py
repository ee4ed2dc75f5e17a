"""The verdicts that the docs show are those of the registered claims, each once, and no others."""

from __future__ import annotations

import json
import sys

import pytest

from conftest import ROOT
from stagelens.claims import BUDGETS, REASONS, VERDICTS
from stagelens.host.host import make_host

sys.path.insert(0, str(ROOT / "docs"))
import claims_tables
import gallery
import verdicts

HOST = make_host(allow=())
PAGES = [(plugin, budget) for plugin in verdicts.PAPERS for budget in verdicts.BUDGETS]


def registered(plugin):
    """The ids of the claims of a plugin, in the order of registration."""
    return [id for id, _ in HOST.claims if HOST.claims.owners[id] == plugin]


def written(plugin, budget):
    file = verdicts.file_of(plugin, budget)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def test_every_plugin_with_claims_has_a_page_of_verdicts_and_no_other():
    assert set(verdicts.PAPERS) == {HOST.claims.owners[id] for id, _ in HOST.claims}
    expected = {verdicts.file_of(plugin, budget) for plugin, budget in PAGES} | {verdicts.FOLDER / "stress.json"}
    assert set(verdicts.FOLDER.glob("**/*.json")) <= expected
    assert set(verdicts.BUDGETS) <= set(BUDGETS)


@pytest.mark.parametrize("plugin", verdicts.PAPERS)
def test_each_registered_claim_has_its_verdict_with_the_budget_quick(plugin):
    assert [one["id"] for one in written(plugin, "quick")] == registered(plugin)


@pytest.mark.parametrize(("plugin", "budget"), PAGES)
def test_a_verdict_follows_from_its_checks(plugin, budget):
    ids = [one["id"] for one in written(plugin, budget)]
    assert len(ids) == len(set(ids)) and set(ids) <= set(registered(plugin))
    for one in written(plugin, budget):
        assert one["verdict"] in VERDICTS and one["plugin"] == plugin and one["budget"] == budget
        assert one["verdict"] != "error", one["id"]
        judged = [verdicts.verdict_of(check) for check in one["checks"]]
        assert (one["verdict"] == "differs") == ("differs" in judged), one["id"]
        assert (one["verdict"] == "holds") <= ("needs budget" not in judged), one["id"]
        evidence = [check for check in one["checks"] if verdicts.verdict_of(check) and not check.get("sanity")]
        assert evidence or one["verdict"] == "needs budget", one["id"]


@pytest.mark.parametrize(("plugin", "budget"), PAGES)
def test_a_claim_that_differs_has_a_reason(plugin, budget):
    for id in [one["id"] for one in written(plugin, budget) if one["verdict"] == "differs"]:
        word, _, evidence = HOST.claims[id].load().reason_for(budget).partition(": ")
        needed = f"its `reason` is one of {', '.join(REASONS)}, ': ' and why"
        assert word in REASONS and evidence, f"{id} differs with budget {budget}: {needed}"


@pytest.mark.parametrize(("plugin", "budget"), PAGES)
def test_a_reason_is_written_only_for_a_budget_with_which_the_claim_differs(plugin, budget):
    differing = {one["id"] for one in written(plugin, budget) if one["verdict"] == "differs"}
    decided = {one["id"] for one in written(plugin, budget)}
    for id in decided - differing:
        reason = HOST.claims[id].load().reason
        assert isinstance(reason, str) or budget not in reason, f"{id} does not differ with budget {budget}"


def test_the_table_shows_the_reason_of_the_budget_that_differs():
    class Small:
        reason = {"quick": "size: too short", "long": "reading: another start"}
        reason_for = reason.get

    assert claims_tables.reasons(Small, ["quick"]) == "size (quick): too short"
    assert claims_tables.reasons(Small, ["long"]) == "reading (long): another start"
    assert claims_tables.reasons(Small, []) == ""
    both = "size (quick): too short. reading (long): another start"
    assert claims_tables.reasons(Small, ["quick", "long"]) == both

    class Always:
        reason = "paper: a misprint"

    assert claims_tables.reasons(Always, ["long"]) == "paper: a misprint" and claims_tables.reasons(Always, []) == ""


@pytest.mark.parametrize("plugin", verdicts.PAPERS)
def test_the_table_in_the_readme_of_a_paper_is_that_of_the_verdicts(plugin):
    stale = "run `python docs/claims_tables.py`"
    assert claims_tables.readme(plugin).read_text(encoding="utf-8") == claims_tables.updated(plugin), stale


def test_a_table_shows_the_check_that_differs_and_counts_without_sanity_checks():
    def check(what, held, **more):
        return {"what": what, "measured": 1, "expected": 1, "tolerance": "exact", "holds": held, **more}

    held, identity, off = check("a", True), check("b", True, sanity=True), check("c", False)
    assert claims_tables.headline([identity, held])["what"] == "a"
    assert claims_tables.headline([identity, held, off])["what"] == "c"
    assert claims_tables.counted({"verdict": "differs", "checks": [identity, held, off]}) == "differs, 1 of 2"
    assert claims_tables.counted({"verdict": "needs budget", "checks": []}) == "needs budget"
    assert claims_tables.counted(None) == ""


@pytest.mark.parametrize("plugin", verdicts.PAPERS)
def test_the_readme_counts_the_claims_that_hold(plugin):
    found = [one["verdict"] for one in written(plugin, "quick")]
    row = next(
        line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if f"| [{plugin}](" in line
    )
    assert row.endswith(f"| {found.count('holds')} of {len(found)} hold |")


def test_every_figure_in_the_gallery_names_claims_that_exist():
    from stagelens.claims import choose_figures

    known = {id for id, _ in HOST.claims}
    for one in choose_figures(HOST):
        assert set(one.ref.claims) <= known, (one.plugin, one.ref.name)
    page = gallery.page()
    for plugin in verdicts.PAPERS:
        for one in choose_figures(HOST, plugin):
            assert f"`stagelens figure {plugin} {one.ref.name}`" in page
    assert gallery.PAGE.read_text(encoding="utf-8") == page, "run `python docs/gallery.py --page`"
