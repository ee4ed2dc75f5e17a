"""Verification: finds and stores the verdict of each chosen claim."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.base import StagelensError, UsageError, unknown
from stagelens.claims.checks import Check
from stagelens.claims.claim import BUDGETS, Claim, Result, largest_budget, verdict_of
from stagelens.claims.lab import Lab, Watch, cache_folder, verdict_digest
from stagelens.claims.verdicts import last_results, store

if TYPE_CHECKING:
    from stagelens.host import ClaimRef, Host


@dataclass(frozen=True)
class Chosen:
    """A claim to verify, and the plugin that registers it."""

    plugin: str
    ref: ClaimRef


def choose(host: Host, plugins: Sequence[str] = (), claims: Sequence[str] = ()) -> list[Chosen]:
    """Returns the claims of `plugins` (default: all plugins) with an id in `claims` (default: all ids)."""
    owners = host.claims.owners
    meant: set[str] = set()
    for plugin in plugins:
        meant |= host.providers(plugin, host.claims)
    pool = {id: ref for id, ref in host.claims if not plugins or owners[id] in meant}
    for claim in claims:
        if claim in owners and claim not in pool:
            raise UsageError(
                f"claim {claim!r} is of plugin {owners[claim]!r}, and only {', '.join(plugins)} was asked for; "
                f"name {owners[claim]!r} too, or leave the plugins out"
            )
        if claim not in pool:
            raise unknown("claim", claim, pool)
    return [Chosen(owners[id], ref) for id, ref in pool.items() if not claims or id in claims]


def verify(
    chosen: Iterable[Chosen],
    host: Host,
    *,
    budget: str = "quick",
    seeds: int | None = None,
    cache: str | Path | None = None,
    watch: Watch | None = None,
    workers: int = 1,
    plugin_dirs: Sequence[str] = (),
    resume: bool = False,
) -> Iterator[Result]:
    """Yields the verdict of each chosen claim when it is found, and stores it in the cache.

    With `resume`, the verdicts that are in the cache come first, and only the other claims are verified. A verdict
    counts if its budget and seeds are the same and no code that it depends on has changed. Errors do not count.

    Without `seeds`, each claim uses its own number. With more than one worker, claims are verified in parallel
    processes, which load the plugins themselves (also those of `plugin_dirs`) and share the cores. If two of them need
    the same run, one trains it while the other waits.
    """
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    folder = cache_folder(cache)
    if resume:
        chosen, found = _decided(chosen, Lab(host, folder, budget), seeds)
        yield from found
    results = (
        _side_by_side(list(chosen), folder, budget, seeds, workers, plugin_dirs)
        if workers > 1
        else _one_by_one(chosen, Lab(host, folder, budget, watch=watch), seeds)
    )
    for result in results:
        store(result, folder)
        yield result


def _decided(chosen: Iterable[Chosen], lab: Lab, seeds: int | None) -> tuple[list[Chosen], list[Result]]:
    """Returns the claims that are still to be verified, and the verdicts of the others."""
    remaining, found = [], []
    for one in chosen:
        stored = {result.id: result for result in last_results(one.plugin, lab.cache, lab.budget)}.get(one.ref.id)
        if stored is not None and stored.verdict != "error" and _still_valid(stored, one, lab, seeds):
            found.append(stored)
        else:
            remaining.append(one)
    return remaining, found


def _still_valid(stored: Result, chosen: Chosen, lab: Lab, seeds: int | None) -> bool:
    try:
        claim = _load(chosen.ref)
    except Exception:  # `verify_claim` reports it
        return False
    wanted = seeds or seeds_of(claim, lab.budget)
    return stored.seeds == wanted and stored.source == verdict_digest(type(claim), lab.host)


def _one_by_one(chosen: Iterable[Chosen], lab: Lab, seeds: int | None) -> Iterator[Result]:
    for claim in chosen:
        yield verify_claim(claim, lab, seeds)


def _side_by_side(
    chosen: Sequence[Chosen],
    folder: Path,
    budget: str,
    seeds: int | None,
    workers: int,
    plugin_dirs: Sequence[str],
) -> Iterator[Result]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from stagelens.base import environment, threads_each, worker_environment

    threads = threads_each(workers)
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    try:
        with environment(worker_environment(threads)):  # before a worker imports numpy or torch
            given = [(claim.ref.id, folder, budget, seeds, threads, tuple(plugin_dirs)) for claim in chosen]
            futures = [pool.submit(_verify_alone, *each) for each in given]
            for future in as_completed(futures):
                yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _verify_alone(
    id: str, folder: Path, budget: str, seeds: int | None, threads: int, plugin_dirs: Sequence[str]
) -> Result:
    """Verifies one claim in a worker process."""
    import torch

    from stagelens.host import make_host

    torch.set_num_threads(threads)
    host = make_host(plugin_dirs)
    return verify_claim(Chosen(host.claims.owners[id], host.claims[id]), Lab(host, folder, budget), seeds)


def verify_claim(chosen: Chosen, lab: Lab, seeds: int | None = None) -> Result:
    """Returns the verdict of one claim. An exception becomes the verdict `error`, with the checks before it."""
    started = time.monotonic()
    checks: list[Check] = []
    claim: Claim | None = None
    verdict, error, trace, source = "error", "", "", ""
    try:
        claim = _load(chosen.ref)
        source = verdict_digest(type(claim), lab.host)
        seeds = seeds or seeds_of(claim, lab.budget)
        if BUDGETS.index(claim.budget) > BUDGETS.index(lab.budget):
            verdict = "needs budget"
        else:
            for check in claim.checks(lab.with_seeds(seeds)):
                if not isinstance(check, Check):
                    raise TypeError(f"claim {claim.id} yielded {check!r}; expected a Check")
                checks.append(check)
            verdict = verdict_of(checks)
    except Exception as raised:
        error = " ".join(str(raised).split())
        error = error if isinstance(raised, StagelensError) else f"{type(raised).__name__}: {error}"
        trace = traceback.format_exc()
    return Result(
        id=chosen.ref.id,
        plugin=chosen.plugin,
        title=chosen.ref.title,
        reference=claim.reference if claim else "",
        verdict=verdict,
        budget=lab.budget,
        seeds=seeds or 0,
        seconds=round(time.monotonic() - started, 3),
        checks=tuple(checks),
        error=error,
        traceback=trace,
        verified=datetime.now(UTC).isoformat(timespec="seconds"),
        needs=what_decides(claim, lab.budget, checks) if claim and verdict == "needs budget" else "",
        reason=claim.reason_for(lab.budget) if claim and verdict == "differs" else "",
        source=source,
    )


def seeds_of(claim: Claim, budget: str) -> int:
    """Returns the number of seeds of `claim` with `budget`."""
    if isinstance(claim.seeds, int):
        return claim.seeds
    found = largest_budget(budget, claim.seeds)
    return claim.seeds[found] if found else next(iter(claim.seeds.values()))


def what_decides(claim: Claim, budget: str, checks: Sequence[Check]) -> str:
    """Returns what would decide an undecided claim: a larger budget, and how many more runs."""
    if not checks:
        return f"--budget {claim.budget}"
    more = next(check.needs for check in checks if check.verdict == "needs budget")
    larger = BUDGETS[BUDGETS.index(budget) + 1 :]
    return f"--budget {larger[0]}, or {more}" if larger else more


def _load(ref: ClaimRef) -> Claim:
    kind: Any = ref.load()
    if not (isinstance(kind, type) and issubclass(kind, Claim)):
        raise TypeError(f"{ref.target} is not a Claim class")
    claim: Claim = kind()
    if claim.budget not in BUDGETS:
        raise unknown("budget", claim.budget, BUDGETS)
    return claim
