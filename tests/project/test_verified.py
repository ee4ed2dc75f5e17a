"""The verdicts that the docs show are those of the registered claims, each once, and no others."""

from __future__ import annotations

import json

import pytest

from conftest import ROOT
from stagelens.claims import VERDICTS
from stagelens.host.host import make_host

PAGES = {path.stem: path for path in ROOT.glob("docs/verified/*.json") if path.stem != "stress"}


def registered():
    """The ids of the claims, by plugin."""
    host = make_host()
    found = {}
    for name, _ in host.claims:
        found.setdefault(host.claims.owners[name], []).append(name)
    return found


def test_every_plugin_with_claims_has_a_page_of_verdicts_and_no_other():
    assert PAGES.keys() == registered().keys()


@pytest.mark.parametrize("plugin", PAGES)
def test_each_registered_claim_has_its_verdict(plugin):
    claims = registered()[plugin]
    written = json.loads(PAGES[plugin].read_text(encoding="utf-8"))
    assert [one["id"] for one in written] == list(dict.fromkeys(one["id"] for one in written))
    assert {one["id"] for one in written} == set(claims)
    for one in written:
        assert one["verdict"] in VERDICTS and one["plugin"] == plugin
        assert one["verdict"] != "error", one["id"]
        assert (one["verdict"] == "holds") <= all(check["holds"] for check in one["checks"])
