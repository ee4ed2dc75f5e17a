"""What commands print: one JSON document or text on stdout, everything else on stderr."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from textwrap import wrap
from typing import Any, TextIO

import typer

from stagelens.base import json_text

INTERRUPTED = 130  # the exit code after Ctrl-C
MOST = 2000  # characters of an error, which may list the known names
WIDEST = 1_000_000  # characters of a table's line in a pipe or file
GAP = 2  # blanks between two columns of a table
PAIR_GAP = 3  # blanks between two pairs of a row that is not a table
UNBROKEN = "\N{NO-BREAK SPACE}"

_answers: TextIO | None = None  # where the answer goes while a command runs


@contextmanager
def answering() -> Iterator[None]:
    """Reserves stdout for the command's own answer: everything else that is written to it goes to stderr.

    The file descriptor is redirected, so this includes C libraries and child processes.
    """
    global _answers
    stdout = sys.stdout
    if stdout is None:  # the shell closed it
        yield
        return
    stdout.flush()
    original = os.dup(1)
    try:
        stream = _answers = _writing_to(original, stdout)
        _hide_stdout()
        yield
    finally:
        try:
            stdout.flush()  # a library that holds this object printed to stderr, too
            stream.flush() if stream is stdout else stream.close()
        finally:
            _answers, sys.stdout = None, stdout
            os.dup2(original, 1)
            os.close(original)
            if stdout is sys.__stdout__:
                atexit.register(_hide_stdout)  # libraries print when the process ends, too


def _writing_to(descriptor: int, stdout: TextIO) -> TextIO:
    """Returns a stream to `descriptor` if `stdout` writes to descriptor 1, else `stdout` itself."""
    with suppress(OSError):  # an object in memory has no descriptor
        if stdout.fileno() == 1:
            return os.fdopen(os.dup(descriptor), "w", encoding=stdout.encoding, errors=stdout.errors)
    return stdout


def _hide_stdout() -> None:
    """Redirects stdout to stderr."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError):
        os.dup2(2, 1)
    sys.stdout = sys.stderr


def answers() -> TextIO | None:
    """Returns the stream of the command's answer; None if stdout is closed."""
    return _answers or sys.stdout


def print_json(document: Any) -> None:
    """Prints one JSON document; nan and infinity, which JSON lacks, become null."""
    typer.echo(json_text(document), file=answers())


def answer(document: Any, text: str, json: bool) -> None:
    """Prints `document` if the user gave `--json`, else `text`."""
    if json:
        print_json(document)
    else:
        say(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Prints a table that fits the terminal. In a pipe or file each row is one line, so that `grep` finds it.

    Cells are wrapped between words. If the longest words of the columns do not fit side by side, each row is printed as
    `column value` pairs instead, so that no name or number is divided.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = answers()
    terminal = stream is not None and stream.isatty()
    console = Console(file=stream, width=None if terminal else WIDEST)
    if title:
        console.print(Text(visible(title), "table.title"))  # a plain str could hold rich's markup
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [[visible(show(value)) for value in row] for row in rows]
    widths = column_widths([visible(column) for column in columns], shown, console.width)
    if widths is None:
        for cells in shown:
            console.print(Text(as_pairs([visible(column) for column in columns], cells, console.width)), soft_wrap=True)
        return
    for column, width in zip(columns, widths, strict=True):
        table.add_column(Text(visible(column)), overflow="fold", width=width)
    for cells in shown:
        table.add_row(*(Text(cell if terminal else " ".join(cell.split("\n"))) for cell in cells))
    console.print(table)


def column_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int | None] | None:
    """Returns the width of each column so that no word is divided within `room` letters; None if that is impossible.

    Each column has room for its longest word. What is left is shared out by how much wider its cells are. A width of
    None means that the column has room for its widest cell.
    """
    from rich.cells import cell_len

    texts = [[column, *cells] for column, *cells in zip(columns, *rows, strict=True)]
    words = [max((cell_len(word) for text in cells for word in text.split()), default=0) for cells in texts]
    full = [max((cell_len(line) for text in cells for line in text.split("\n")), default=0) for cells in texts]
    left = room - GAP * (len(words) - 1) - sum(words)
    more = [wide - word for wide, word in zip(full, words, strict=True)]
    if left < 0:
        return None
    if sum(more) <= left:
        return [None] * len(words)
    return [word + left * extra // sum(more) for word, extra in zip(words, more, strict=True)]


def as_pairs(columns: Sequence[str], cells: Sequence[str], room: int) -> str:
    """Returns a row as `column value` pairs in lines of at most `room` letters, if no single word is longer.

    A line breaks between pairs, or between the words of a pair that is longer than a line. Empty cells are left out.
    """
    pairs = [f"{column} {' '.join(cell.split())}" for column, cell in zip(columns, cells, strict=True) if cell.strip()]
    whole = [pair.replace(" ", UNBROKEN) if len(pair) <= room - GAP else pair for pair in pairs]
    look: Any = {"subsequent_indent": " " * GAP, "break_long_words": False, "break_on_hyphens": False}
    lines = wrap((" " * PAIR_GAP).join(whole), room, **look)
    return "\n".join(lines).replace(UNBROKEN, " ")


def show(value: Any) -> str:
    """Returns a value as people read it: four digits of a float, blanks between the items of a list."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(show(item) for item in value)
    return str(value)


def say(text: str) -> None:
    """Prints `text` to stdout."""
    typer.echo(visible(text), file=answers())


def visible(text: str) -> str:
    """Returns `text` with control characters escaped: untrusted names could otherwise control the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def note(text: str) -> None:
    """Prints a note of one line to stderr."""
    typer.echo(f"note: {one_line(text)}", err=True)


def warn(text: str) -> None:
    """Prints a warning of one line to stderr, in yellow."""
    typer.secho(f"warning: {one_line(text)}", fg="yellow", err=True)


def complain(text: str) -> None:
    """Prints an error of one line to stderr."""
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(one_line(text), err=True)


def one_line(text: str) -> str:
    """Returns `text` as one line without control characters; the middle of a long one is cut out."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= MOST else f"{line[: MOST // 2]} ... {line[-MOST // 2 :]}"


def err(text: str) -> None:
    """Prints `text` as it is to stderr."""
    typer.echo(text, err=True)


def loading(what: str) -> None:
    """Prints on a terminal that the command imports `what`, which takes seconds."""
    if is_terminal():
        typer.secho(f"loading {what} ...", dim=True, err=True)


def is_terminal() -> bool:
    """True if a person reads stderr."""
    return sys.stderr.isatty()


def exit_with(problems: Iterable[str]) -> None:
    """Prints the problems of plugins to stderr and exits with 1; returns if there are none."""
    if problems := list(dict.fromkeys(problems)):
        for problem in problems:
            complain(problem)
        raise typer.Exit(1)
