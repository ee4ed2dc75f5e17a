"""The last verdicts, stored in the cache: one for each claim and budget."""

from __future__ import annotations

from pathlib import Path

from stagelens.base import load_sealed, make_folder, save_sealed
from stagelens.claims.claim import BUDGETS, Result
from stagelens.claims.lab import cache_folder


def last_results(plugin: str, cache: str | Path | None = None, budget: str | None = None) -> list[Result]:
    """Returns the results of `plugin` as last verified with `budget`; an empty list if it never was.

    Without `budget`, each claim has its verdict of the largest budget that decided it.
    """
    stored = _stored(cache_folder(cache), plugin)
    if budget is not None:
        return [result for result in stored if result.budget == budget]
    best: dict[str, Result] = {}
    for result in sorted(stored, key=lambda result: (bool(result.checks), BUDGETS.index(result.budget))):
        best[result.id] = result
    order = list(dict.fromkeys(result.id for result in stored))
    return [best[id] for id in order]


def store(result: Result, folder: Path) -> None:
    """Stores `result` in place of the last one of the same claim and budget."""
    from filelock import FileLock

    path = _path(folder, result.plugin)
    make_folder(path.parent, "give another --cache")
    with FileLock(path.with_suffix(".lock")):
        results = {(kept.id, kept.budget): kept for kept in _stored(folder, result.plugin)}
        results[result.id, result.budget] = result
        save_sealed(path, {"results": [kept.to_dict() for kept in results.values()]})


def _stored(folder: Path, plugin: str) -> list[Result]:
    try:
        kept = load_sealed(_path(folder, plugin))
        return [Result.from_dict(values) for values in kept["results"] if values["budget"] in BUDGETS]
    except (OSError, ValueError, TypeError, KeyError):  # never verified, or by another version of stagelens
        return []


def _path(folder: Path, plugin: str) -> Path:
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in plugin)  # a manifest may contain any name
    return folder / "verified" / f"{name}.json"
