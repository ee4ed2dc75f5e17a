"""`runs`, `show`, `export`: looking at what is on disk. None of it needs torch, or imports a plugin."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagelens.cli import output
from stagelens.cli.listing import Json
from stagelens.cli.main import app
from stagelens.cli.running import Runs

if TYPE_CHECKING:
    from stagelens.runs import Run

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")]


@app.command(name="runs")
def runs_(runs: Runs = None, json: Json = False) -> None:
    """List the runs.

    Example: stagelens runs
    """
    from stagelens.runs import catalogue, defects_in, runs_folder

    found = catalogue(runs)
    wrong = defects_in(runs_folder(runs))
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
        output.say(f"no runs in {runs_folder(runs)}; make one with `stagelens run markov`")
    else:
        shown = [
            [r["name"], r["task"], r["seed"], r["status"], r["steps"], r["seconds"], str(r["created"])[:19]]
            for r in rows
        ]
        output.print_table(["run", "task", "seed", "status", "steps", "seconds", "created"], shown)
        for run in found:
            if run.name in wrong:
                output.warn(f"{run.name}: {run.warnings_with(wrong[run.name])[-1]}")


@app.command()
def show(run: RunArgument, runs: Runs = None, json: Json = False) -> None:
    """Show one run: status, stages, phases, last readings.

    Example: stagelens show markov-minimal-quick-seed0
    """
    from stagelens.runs import load

    opened = load(run, runs)
    if json:
        output.print_json(opened.summary())
    else:
        show_summary(opened)


@app.command()
def export(
    run: RunArgument,
    format: Annotated[str, typer.Option("--format", help="parquet, netcdf or csv")] = "parquet",
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write (default: in the run)."),
    ] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Write a run's timeline as a file for other tools.

    Example: stagelens export RUN --format csv
    """
    from stagelens.runs import load
    from stagelens.timelines import export as write

    path = write(load(run, runs), format, to)
    if json:
        output.print_json({"run": run, "format": format, "file": str(path)})
    else:
        output.say(str(path))


def show_problems(runs: Iterable[Run]) -> None:
    """What failed in the runs, one line each, before everything else: the numbers below may lack something."""
    for reason in dict.fromkeys(reason for run in runs for reason in run.problems.values()):
        output.say(output.one_line(f"problem: {reason}"))


def show_summary(run: Run) -> None:
    """A run as a person wants to see it."""
    summary = run.summary()
    show_problems([run])
    output.say(f"{summary['name']}: {summary['task']}, seed {summary['seed']}, {summary['status']}")
    done = f"{output.show(summary['step'])} of {summary['steps']:g} steps"
    compiling = run.manifest.compile_seconds
    aside = "" if compiling is None else f", {compiling:.1f} s of them compiling"
    output.say(f"{done} in {summary['seconds']:.1f} s on {summary['device']}{aside}\n")
    for warning in summary["warnings"]:
        output.warn(warning)
    if "measured_on" in summary["config"]:
        output.say(f"measured on {summary['config']['measured_on']}\n")
    if summary["stages"]:
        rows = [[s["kind"], s["start"], s["end"], s["level"], s["drop"], s["name"]] for s in summary["stages"]]
        output.print_table(["stage", "start", "end", "level", "drop", "name"], rows, f"stages of {summary['metric']}")
        output.say("")
    if summary["phases"]:
        rows = [[p["phase"], p["start"], p["end"], p["layer"]] for p in summary["phases"]]
        output.print_table(["phase", "start", "end", "layer"], rows, "phases of head specialization")
        output.say("")
    if summary["probe_events"]:
        most = 12
        rows = [[event["step"], event["series"], event["what"]] for event in summary["probe_events"][:most]]
        output.print_table(["step", "series", "event"], rows, "what the probes saw happen")
        more = len(summary["probe_events"]) - most
        output.say(f"and {more} more: add --json\n" if more > 0 else "")
    if summary["predictions"]:
        found = [p | {"measured": p.get("note") or p["measured"]} for p in summary["predictions"]]
        columns = ["name", "expected", "measured", "error", "reference", "compared_with"]
        rows = [[p.get(column) for column in columns] for p in found]
        output.print_table(["prediction", *columns[1:-1], "compared with"], rows, "theory")
        output.say("")
    small = {
        name: value for name, value in summary["final"].items() if not isinstance(value, list) or len(str(value)) < 90
    }
    output.print_table(["reading", "last value"], small.items())
    for name, reason in summary["skipped"].items():
        what = f"reading {name} is omitted" if "/" in name else f"probe {name} does not apply"
        output.say(f"\n{what}: {reason}")
    for file in sorted([*run.folder.glob("report.html"), *run.folder.glob("figures/*.png")]):
        output.say(f"\n{file}" if file.suffix == ".html" else f"{file}")
