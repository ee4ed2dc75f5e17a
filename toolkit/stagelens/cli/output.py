"""What goes where: one JSON document or a table on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

MOST = 2000  # characters of an error: the known names are among them


def print_json(document: Any) -> None:
    """One JSON document; nan and infinity, which JSON lacks, become null."""
    typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    named = Text(visible(title), "table.title") if title else None  # a plain str could hold rich's markup
    table = Table(title=named, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(visible(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(show(value))) for value in row))
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
    typer.echo(visible(text))


def visible(text: str) -> str:
    """`text` without what would move a terminal's cursor, colour it or turn it around: names may be anybody's."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def warn(text: str) -> None:
    typer.secho(f"warning: {one_line(text)}", fg="yellow", err=True)


def complain(text: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(one_line(text), err=True)


def one_line(text: str) -> str:
    """`text` in one line that a terminal can show: without control characters, and without the middle of a long one."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= MOST else f"{line[: MOST // 2]} ... {line[-MOST // 2 :]}"


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
