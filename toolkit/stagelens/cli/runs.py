"""`stagelens runs`: lists the runs. It needs neither torch nor a plugin."""

from __future__ import annotations

from stagelens.cli import output
from stagelens.cli.options import Json, Runs

COLUMNS = ("name", "task", "seed", "status", "steps", "seconds", "created")


def list_runs(runs: Runs = None, json: Json = False) -> None:
    """List the runs.

    Example: stagelens runs
    """
    from stagelens.runs import catalogue, defects_in, runs_folder

    folder = runs_folder(runs)
    found, wrong = catalogue(folder), defects_in(folder)
    rows = [
        {
            "run": str(run.folder),
            "name": run.name,
            "task": run.manifest.task,
            "preset": run.manifest.preset,
            "seed": run.manifest.seed,
            "status": run.status,
            "steps": run.manifest.steps,
            "created": run.manifest.created,
            "seconds": run.manifest.seconds,
            "warnings": run.warnings_with(wrong.get(run.name, "")),
        }
        for run in found
    ]
    if json:
        output.print_json(rows)
    elif not rows:
        output.say(f"no runs in {folder}; start one with `stagelens run markov`")
    else:
        shown = [row | {"created": str(row["created"])[:19]} for row in rows]
        output.print_table(["run", *COLUMNS[1:]], [[row[column] for column in COLUMNS] for row in shown])
        for run in found:
            if run.name in wrong:
                output.warn(f"{run.name}: {run.warnings_with(wrong[run.name])[-1]}")
