"""`stages`, `compare`, `report`: from runs to answers. Only a report imports plugins, and torch for its maps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.listing import Json
from stagelens.cli.main import app
from stagelens.cli.running import Runs, end_with
from stagelens.cli.state import State

if TYPE_CHECKING:
    from stagelens.comparing import AlignedRuns
    from stagelens.host import Host
    from stagelens.runs import Run

RunArguments = Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or paths of runs.")]
STAGE_COLUMNS = ("kind", "start", "end", "level", "drop", "at", "name")


@app.command()
def stages(
    curve: Annotated[str, typer.Argument(metavar="RUN_or_CSV", help="A run, or a csv file with step,value.")],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A series of the run, or PROBE/READING[dim=label], or a column (default: the metric)."
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of the steps in a csv (default: found by its name).")
    ] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Find the stages of a run, or of any curve.

    Example: stagelens stages losses.csv
    """
    found = _csv_stages(Path(curve), metric, step) if _is_file(curve) else _run_stages(curve, metric, step, runs)
    if json:
        output.print_json(found)
        return
    rule = f" ({found['rule']})" if found["rule"] else ""
    rows = [[stage.get(column) for column in STAGE_COLUMNS] for stage in found["stages"]]
    output.print_table(["stage", *STAGE_COLUMNS[1:]], rows, f"stages of {found['metric']}{rule}")


@app.command()
def compare(
    run: RunArguments,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            "--probe", metavar="NAME", help="A series, PROBE/READING[dim=label], or a probe for all; may be repeated."
        ),
    ] = None,
    align: Annotated[str, typer.Option(help="The common axis: step, fraction, loss or stage.")] = "step",
    relative: Annotated[
        bool, typer.Option("--relative", help="Draw each curve on its own range, for losses of different tasks.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A picture or table: png, svg, html, csv, json."),
    ] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Put runs side by side on a common axis.

    Example: stagelens compare RUN1 RUN2 --align stage -o both.png
    """
    from stagelens.report import check_suffix, compare as put_together

    if to is not None:
        check_suffix(to)
    opened = _open(run, runs)
    comparison = put_together(opened, probe or (), align, relative=relative)
    file = str(comparison.save(to)) if to is not None else None
    if json:
        output.print_json(comparison.to_dict() | {"file": file})
    else:
        show_comparison(comparison)
        if file:
            output.say(file)


@app.command()
def report(
    context: typer.Context,
    run: RunArguments,
    to: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where to write (default: report.html in or beside the runs)."
        ),
    ] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Write one self-contained html page of runs.

    Example: stagelens report markov-minimal-quick-seed0
    """
    from stagelens.base import UsageError
    from stagelens.report import write_comparison, write_report

    if to is not None and to.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"cannot write {str(to)!r}: a report is an html page; give a FILE that ends in .html")
    if to is not None and not to.parent.is_dir():
        raise UsageError(f"cannot write {to}: {to.parent} is no folder; make it or give another FILE")
    state: State = context.obj
    opened = _open(run, runs, state.host)  # a page shows what theory says, which the task's plugin knows
    path = write_report(opened[0], to) if len(opened) == 1 else write_comparison(opened, to)
    noted = [problem for one in opened for problem in one.noted.values()]
    if json:
        output.print_json({"runs": [str(one.folder) for one in opened], "file": str(path), "problems": noted})
    else:
        output.say(str(path))
    end_with(noted)


def show_comparison(comparison: AlignedRuns) -> None:
    """The table of a comparison as a person wants to see it; a group's spread in brackets."""
    from stagelens.comparing import SPREAD

    columns = [column for column in comparison.columns if column not in ("group", "task", "seeds", "drop")]
    for group in dict.fromkeys(row["group"] for row in comparison.table):
        rows = [row for row in comparison.table if row["group"] == group]
        title = f"{group}: {rows[0]['task'] or 'timeline'}, seed {output.show(rows[0]['seeds'])}"
        output.print_table(columns, [[_with_spread(row, column) for column in columns] for row in rows], title)
        output.say("")
    if any("spread" in row for row in comparison.table):
        output.say(f"several seeds: mean ({SPREAD})")
    output.say("series: their value at the stage's end")


def _with_spread(row: dict[str, Any], column: str) -> Any:
    ends = row.get("spread", {}).get(column)
    return row[column] if not ends else f"{output.show(row[column])} ({output.show(ends[0])}..{output.show(ends[1])})"


def _open(names: list[str], runs: Path | None, host: Host | None = None) -> list[Run]:
    from stagelens.runs import load, points_of

    given = [[*map(str, points_of(name, runs))] or [name] for name in dict.fromkeys(names)]
    return [load(one, runs, host) for several in given for one in several]


def _is_file(given: str) -> bool:
    """Whether a csv file is meant: a file that is there, or a name that could only be one."""
    path = Path(given)
    return path.is_file() or (path.suffix.lower() in (".csv", ".tsv", ".txt") and not path.is_dir())


def _csv_stages(path: Path, metric: str | None, step: str | None) -> dict[str, Any]:
    from stagelens.stages import detect_stages
    from stagelens.timelines import read_curve

    curve = read_curve(path, metric, step)
    return _answer(curve.metric, "", detect_stages(curve.steps, curve.values))


def _run_stages(name: str, metric: str | None, step: str | None, runs: Path | None) -> dict[str, Any]:
    """The stages of one curve of a run; the answer states the rule by which several numbers per step became one."""
    from stagelens.base import UsageError
    from stagelens.comparing import Members
    from stagelens.runs import load
    from stagelens.timelines import one_curve

    if step is not None:
        raise UsageError(f"--step {step} names a column of a csv file, and {name!r} is none; leave it out for a run")
    run = load(name, runs)
    Members.open(run)  # an error if nothing was measured yet
    curve = one_curve(run.timeline, metric or run.manifest.metric)
    return _answer(curve.name, curve.rule, run.stages(curve.name))


def _answer(metric: str, rule: str, found: Any) -> dict[str, Any]:
    return {
        "metric": metric,
        "rule": rule,
        "stages": found.to_dicts(),
        "transitions": [float(transition.at) for transition in found.transitions],
    }
