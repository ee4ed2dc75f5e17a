"""Verifying: each claim of the chosen plugins to its verdict, and the verdicts kept."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.base import EnvironmentFault, StagelensError, UsageError, load_sealed, save_sealed, unknown
from stagelens.claims.claim import BUDGETS, Check, Claim, Result
from stagelens.claims.lab import Lab, Watch, cache_folder

if TYPE_CHECKING:
    from stagelens.host import ClaimRef, Host


@dataclass(frozen=True)
class Chosen:
    """A claim to verify, and the plugin that brings it."""

    plugin: str
    ref: ClaimRef


def choose(host: Host, plugins: Sequence[str] = (), claims: Sequence[str] = ()) -> list[Chosen]:
    """The claims of `plugins` (none given: of all), of these only the ids in `claims` (none given: all)."""
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
) -> Iterator[Result]:
    """The verdict of each chosen claim as it is found, kept in the cache folder too. `seeds` None: as claims say.

    With more than one worker, claims are verified side by side in processes, which load the plugins themselves (also
    those of `plugin_dirs`) and share the cores; a run that two of them need is trained by one while the other waits.
    """
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    folder = cache_folder(cache)
    results = (
        _side_by_side(list(chosen), folder, budget, seeds, workers, plugin_dirs)
        if workers > 1
        else _one_by_one(chosen, Lab(host, folder, budget, watch=watch), seeds)
    )
    for result in results:
        keep(result, folder)
        yield result


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
    """One claim, in a process of its own."""
    import torch

    from stagelens.host import make_host

    torch.set_num_threads(threads)
    host = make_host(plugin_dirs)
    return verify_claim(Chosen(host.claims.owners[id], host.claims[id]), Lab(host, folder, budget), seeds)


def verify_claim(chosen: Chosen, lab: Lab, seeds: int | None = None) -> Result:
    """One claim to its verdict. Whatever it raises becomes an error that names it; the checks made so far stay."""
    started = time.monotonic()
    checks: list[Check] = []
    claim: Claim | None = None
    verdict, error, trace = "error", "", ""
    try:
        claim = _load(chosen.ref)
        if BUDGETS.index(claim.budget) > BUDGETS.index(lab.budget):
            verdict = "needs budget"
        else:
            for check in claim.checks(lab.with_seeds(seeds or claim.seeds)):
                if not isinstance(check, Check):
                    raise TypeError(f"claim {claim.id} yielded {check!r}; expected a Check")
                checks.append(check)
            if not any(check.judged for check in checks):
                raise StagelensError("the claim judged nothing; a claim cannot hold without a measurement")
            verdict = "holds" if all(check.holds for check in checks) else "differs"
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
        seeds=seeds or (claim.seeds if claim else 0),
        seconds=round(time.monotonic() - started, 3),
        checks=tuple(checks),
        error=error,
        traceback=trace,
        verified=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _load(ref: ClaimRef) -> Claim:
    kind: Any = ref.load()
    if not (isinstance(kind, type) and issubclass(kind, Claim)):
        raise TypeError(f"{ref.target} is not a Claim class")
    claim: Claim = kind()
    if claim.budget not in BUDGETS:
        raise unknown("budget", claim.budget, BUDGETS)
    return claim


def last_results(plugin: str, cache: str | Path | None = None) -> list[Result]:
    """The claims of `plugin` as they were last verified, by id; none where they never were."""
    try:
        kept = load_sealed(_kept_in(cache_folder(cache), plugin))
        return [Result.from_dict(values) for values in kept["results"]]
    except (OSError, ValueError, TypeError, KeyError):  # never verified, or by another version of stagelens
        return []


def keep(result: Result, folder: Path) -> None:
    """Writes `result` over the one before. One that only lacked budget does not replace a verdict that was found."""
    from filelock import FileLock

    path = _kept_in(folder, result.plugin)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot make {path.parent}: {error.strerror}; give another --cache") from None
    with FileLock(path.with_suffix(".lock")):
        results = {kept.id: kept for kept in last_results(result.plugin, folder)}
        if result.verdict != "needs budget":
            results[result.id] = result
        else:
            results.setdefault(result.id, result)
        save_sealed(path, {"results": [kept.to_dict() for kept in results.values()]})


def _kept_in(folder: Path, plugin: str) -> Path:
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in plugin)  # a manifest may claim any name
    return folder / "verified" / f"{name}.json"
