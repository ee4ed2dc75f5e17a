"""`stagelens compare`: runs on a common axis. It needs neither torch nor a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.completing import complete_align, complete_series
from stagelens.cli.options import Json, RunArguments, Runs

if TYPE_CHECKING:
    from stagelens.comparing import AlignedRuns
    from stagelens.host import Host
    from stagelens.runs import Run


def compare(
    run: RunArguments,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            "--probe",
            metavar="NAME",
            help="A series, PROBE/READING[dim=label], or a probe for all of its series; may be repeated.",
            autocompletion=complete_series,
        ),
    ] = None,
    align: Annotated[
        str, typer.Option(help="The common axis: step, fraction, loss or stage.", autocompletion=complete_align)
    ] = "step",
    relative: Annotated[
        bool, typer.Option("--relative", help="Rescale each curve to its own range, for losses of different tasks.")
    ] = False,
    logx: Annotated[bool, typer.Option("--logx", help="Draw a logarithmic x axis (png, svg, pdf).")] = False,
    logy: Annotated[bool, typer.Option("--logy", help="Draw logarithmic y axes (png, svg, pdf).")] = False,
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write a figure or table: png, svg, pdf, html, csv, json."),
    ] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Put runs side by side on a common axis.

    Example: stagelens compare RUN1 RUN2 --align stage -o both.png
    """
    from stagelens.report import check_axes, check_suffix, compare as compare_runs

    if to is not None:
        check_suffix(to)
    check_axes(to, logx, logy)
    comparison = compare_runs(open_runs(run, runs), probe or (), align, relative=relative)
    file = str(comparison.save(to, logx=logx, logy=logy)) if to is not None else None
    if json:
        output.print_json(comparison.to_dict() | {"file": file})
        return
    show_comparison(comparison)
    if file:
        output.say(file)


def open_runs(names: list[str], runs: Path | None, host: Host | None = None) -> list[Run]:
    """Opens the runs with these names or paths. The name of a sweep means all of its finished runs."""
    from stagelens.runs import load, points_of

    found = [[*map(str, points_of(name, runs))] or [name] for name in dict.fromkeys(names)]
    return [load(one, runs, host) for several in found for one in several]


def show_comparison(comparison: AlignedRuns) -> None:
    """Prints the table of a comparison, one block per group of seeds; the spread of a group is in brackets."""
    from stagelens.comparing import SPREAD

    columns = [column for column in comparison.columns if column not in ("group", "task", "seeds", "drop")]
    for group in dict.fromkeys(row["group"] for row in comparison.table):
        rows = [row for row in comparison.table if row["group"] == group]
        seeds = output.show(rows[0]["seeds"]).strip()
        title = f"{group}: {rows[0]['task'] or 'timeline'}{f', seed {seeds}' if seeds else ''}"
        output.print_table(columns, [[_with_spread(row, column) for column in columns] for row in rows], title)
        output.say("")
    if any("spread" in row for row in comparison.table):
        output.say(f"several seeds: mean ({SPREAD})")
    output.say("series: the value at the end of the stage")


def _with_spread(row: dict[str, Any], column: str) -> Any:
    ends = row.get("spread", {}).get(column)
    return row[column] if not ends else f"{output.show(row[column])} ({output.show(ends[0])}..{output.show(ends[1])})"
