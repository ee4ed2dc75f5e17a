"""What goes where: one JSON document or a table on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer


def print_json(document: Any) -> None:
    """One JSON document; nan and infinity, which JSON lacks, become null."""
    typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(show(value)) for value in row))
    Console().print(table)


def show(value: Any) -> str:
    """A value as a person wants to read it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(show(item) for item in value)
    return str(value)


def say(text: str) -> None:
    typer.echo(text)


def warn(text: str) -> None:
    typer.secho(f"warning: {text}", fg="yellow", err=True)


def complain(text: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(" ".join(text.split()), err=True)


def is_terminal() -> bool:
    return sys.stderr.isatty()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
