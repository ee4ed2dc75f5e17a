"""`stagelens runs`: lists the runs. It needs neither torch nor a plugin."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.options import Json, Runs

COLUMNS = ("name", "task", "seed", "status", "steps", "seconds", "created")
Where = Annotated[
    str | None,
    typer.Option(metavar="EXPR", help="Only runs that meet conditions on the listed keys or config keys."),
]
Sort = Annotated[str | None, typer.Option(metavar="KEY", help="Sort by this key; -KEY: from the largest on.")]


def list_runs(where: Where = None, sort: Sort = None, runs: Runs = None, json: Json = False) -> None:
    """List the runs.

    Example: stagelens runs --where "status=finished and seed>=1" --sort -created
    """
    from stagelens.base import UsageError
    from stagelens.runs import catalogue, defects_in, runs_folder

    folder = runs_folder(runs)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a directory of runs: give one with --runs")
    found, wrong = catalogue(folder), defects_in(folder)
    rows: list[dict[str, Any]] = [
        {
            "run": str(run.folder),
            "name": run.name,
            "task": run.manifest.task,
            "preset": run.manifest.preset,
            "seed": run.seed,
            "status": run.status,
            "steps": run.manifest.steps,
            "created": run.manifest.created,
            "seconds": run.manifest.seconds,
            "warnings": run.warnings_with(wrong.get(run.name, "")),
        }
        for run in found
    ]
    rows = _chosen(rows, {run.name: run.manifest.config for run in found}, where, sort)
    if json:
        output.print_json(rows)
    elif not found:
        output.say(f"no runs in {folder}; start one with `stagelens run markov`")
    elif not rows:
        output.say(f"none of the {len(found)} runs in {folder} meets --where {where!r}")
    else:
        shown = [row | {"created": str(row["created"])[:19]} for row in rows]
        output.print_table(["run", *COLUMNS[1:]], [[row[column] for column in COLUMNS] for row in shown])
        for row in rows:
            if row["name"] in wrong:
                output.warn(f"{row['name']}: {row['warnings'][-1]}")


def _chosen(
    rows: list[dict[str, Any]], configs: dict[str, dict[str, Any]], where: str | None, sort: str | None
) -> list[dict[str, Any]]:
    """Returns the rows that meet `where`, sorted by `sort`. Both also know the config keys of each run."""
    if where is None and sort is None:
        return rows
    from stagelens.runs import ordered_by, where as meeting

    full: Any = [configs[row["name"]] | row for row in rows]
    if where is not None:
        full = meeting(full, where)
    if sort is not None:
        full = ordered_by(full, sort)
    by_name = {row["name"]: row for row in rows}
    return [by_name[row["name"]] for row in full]
