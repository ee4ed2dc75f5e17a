"""`stagelens report`: writes the HTML report of one or several runs. It imports plugins, for predictions and maps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.compare import open_runs
from stagelens.cli.options import Json, RunArguments, Runs, State
from stagelens.cli.output import exit_with


def report(
    context: typer.Context,
    run: RunArguments,
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The file to write (default: report.html, in the run)."),
    ] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Write one self-contained HTML report of runs.

    Example: stagelens report markov-minimal-quick-seed0
    """
    from stagelens.base import UsageError
    from stagelens.report import write_comparison, write_report

    if to is not None and to.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"cannot write {str(to)!r}: a report is an HTML page; give a FILE that ends in .html")
    if to is not None and not to.parent.is_dir():
        raise UsageError(f"cannot write {to}: {to.parent} is not a directory; make it or give another FILE")
    state: State = context.obj
    opened = open_runs(run, runs, state.host)
    path = write_report(opened[0], to) if len(opened) == 1 else write_comparison(opened, to)
    problems = [problem for one in opened for problem in one.noted.values()]
    answer = {"runs": [str(one.folder) for one in opened], "file": str(path), "problems": problems}
    output.answer(answer, str(path), json)
    exit_with(problems)
