"""Check of a claim: it measures something and reaches a verdict."""

from __future__ import annotations

from pathlib import Path

from stagelens.claims import Chosen, Claim, Lab, Result, cache_folder, verify_claim
from stagelens.host import ClaimRef, Host, make_host

__tracebackhide__ = True  # pytest shows the line of the plugin that failed, not these


def check_claim(
    kind: type[Claim],
    *,
    seeds: int | None = None,
    budget: str = "quick",
    cache: str | Path | None = None,
    host: Host | None = None,
) -> Result:
    """Runs a claim and fails if it is in error or was not run. Returns the result, whose verdict may be `differs`.

    - It has an id, a title, and a reference to the paper.
    - It runs within `budget`, and judges at least one finite measurement; each check has a reference to the paper.

    `host` is the host that knows the claim's tasks (default: all installed plugins). Runs come from the cache of
    `stagelens verify`: `cache`, else `$STAGELENS_CACHE`, else the user's cache directory. A cached run is reused until
    the source that it depends on changes. The verdict is not stored.
    """
    assert kind.id and kind.title, f"{kind.__name__} needs an id and a title"
    lab = Lab(host or make_host(), cache_folder(cache), budget)
    result = verify_claim(Chosen("tests", ClaimRef.of(kind)), lab, seeds)
    decided = result.verdict in ("holds", "differs") or any(check.needs for check in result.checks)
    assert decided, f"claim {kind.id}: {result.verdict}. {result.error}\n{result.traceback}"
    for check in result.checks:
        assert check.what and check.reference, f"claim {kind.id}: a check has no `what` or no `reference`: {check}"
    return result
