"""What goes where: one JSON document or a table on stdout, everything else on stderr."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import typer

MOST = 2000  # characters of an error: the known names are among them
WIDEST = 1_000_000  # characters of a table's line where no terminal has to show it

_answers: TextIO | None = None  # where the answer goes while a command runs


@contextmanager
def answering() -> Iterator[None]:
    """Reserves stdout for the command's own answer: everything else that is written there goes to stderr.

    The file descriptor is redirected, so this also holds for C libraries and for child processes.
    """
    global _answers
    stdout = sys.stdout
    if stdout is None:  # the shell closed it: nobody reads the answer
        yield
        return
    stdout.flush()
    kept = os.dup(1)
    try:
        stream = _answers = _writing_to(kept, stdout)
        _hide_stdout()
        yield
    finally:
        try:
            stdout.flush()  # what was printed to an object that somebody kept belongs to stderr too
            stream.flush() if stream is stdout else stream.close()
        finally:
            _answers, sys.stdout = None, stdout
            os.dup2(kept, 1)
            os.close(kept)
            if stdout is sys.__stdout__:
                atexit.register(_hide_stdout)  # libraries print when the process ends, too


def _writing_to(descriptor: int, stdout: TextIO) -> TextIO:
    """A stream to `descriptor` if `stdout` writes to descriptor 1, else `stdout` itself, which nobody else reaches."""
    with suppress(OSError):  # an object in memory has no descriptor
        if stdout.fileno() == 1:
            return os.fdopen(os.dup(descriptor), "w", encoding=stdout.encoding, errors=stdout.errors)
    return stdout


def _hide_stdout() -> None:
    """Sends what is printed from now on to stderr."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError):
        os.dup2(2, 1)
    sys.stdout = sys.stderr


def answers() -> TextIO | None:
    """The stream of the command's answer; None if stdout is closed."""
    return _answers or sys.stdout


def print_json(document: Any) -> None:
    """One JSON document; nan and infinity, which JSON lacks, become null."""
    typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False), file=answers())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """A table that fits the terminal. In a pipe or file each row is one line, whole, so that `grep` finds it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = answers()
    terminal = stream is not None and stream.isatty()
    console = Console(file=stream, width=None if terminal else WIDEST)
    if title:
        console.print(Text(visible(title), "table.title"))  # a plain str could hold rich's markup
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(visible(column)), overflow="fold")
    for row in rows:
        cells = [visible(show(value)) for value in row]
        table.add_row(*(Text(cell if terminal else " ".join(cell.split("\n"))) for cell in cells))
    console.print(table)


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
    typer.echo(visible(text), file=answers())


def visible(text: str) -> str:
    """`text` without what would move a terminal's cursor, colour it or turn it around: names may be anybody's."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def note(text: str) -> None:
    typer.echo(f"note: {one_line(text)}", err=True)


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
