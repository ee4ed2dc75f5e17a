"""`stagelens export`: writes a run's timeline for other tools. It needs neither torch nor a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.completing import complete_format
from stagelens.cli.options import Json, RunArgument, Runs


def export(
    run: RunArgument,
    format: Annotated[
        str, typer.Option("--format", help="parquet, netcdf or csv", autocompletion=complete_format)
    ] = "parquet",
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The file to write (default: in the run's directory)."),
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
    output.answer({"run": run, "format": format, "file": str(path)}, str(path), json)
