"""Tables of the command line: cells are wrapped between words, at any width at which the longest words fit."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pytest

from kit.written_runs import STEPS, staircase, write_run
from stagelens.cli import output
from stagelens.cli.output import GAP, column_widths

NAMES = ["principal_components", "attention_sparsity"]
ROWS = [
    [NAMES[0], "how many principal components linear attention uses in context", "count distance learned"],
    [NAMES[1], "how few keys a head attends to", "entropy effective_keys sparsity_by_third first_key_mass"],
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [40, 60, 64, 80, 100, 200])
def test_no_word_of_a_table_is_divided(width, monkeypatch):
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(output, "answers", lambda: stream)
    output.print_table(["probe", "what it measures", "readings"], ROWS)
    lines = stream.getvalue().splitlines()
    printed = {word for line in lines for word in line.replace("\x1b[1m", " ").replace("\x1b[0m", " ").split()}
    assert {word for row in ROWS for cell in row for word in cell.split()} <= printed
    assert "\x1b" in lines[0] or max(map(len, lines)) <= width


def test_column_widths_fill_the_terminal_and_are_left_to_rich_if_all_fits():
    columns, rows = ["name", "meaning"], [["a" * 10, "one two three four five six"], ["b", "seven"]]
    assert column_widths(columns, rows, 80) == [None, None]
    assert column_widths(columns, rows, 16) is None  # the longest words, of 10 and 7 letters, need 19
    assert column_widths(columns, rows, 30) == [10, 30 - 10 - GAP]


def test_a_row_that_is_too_wide_is_printed_as_pairs_that_are_not_divided():
    columns = ["run", "task", "status", "steps", "created", "error"]
    cells = ["emergence-recall-quick-seed0", "emergence/recall", "finished", "2.599e+04", "2026-11-18T20:11:41", ""]
    assert output.as_pairs(columns, cells, 60).split("\n") == [
        "run emergence-recall-quick-seed0   task emergence/recall",
        "  status finished   steps 2.599e+04",
        "  created 2026-11-18T20:11:41",
    ]


@pytest.mark.parametrize("words", [["runs"], ["stages", "a-run-with-a-long-name", "--joint"], ["plugins"], ["tasks"]])
def test_no_name_or_number_is_divided_at_80_columns(words, tmp_path):
    """Runs the command in a terminal of 80 columns, and looks for every word that it prints in a pipe."""
    heads = staircase(STEPS, (300,), (0.0, 1.0))[:, None] * [1, 2]
    series = {"loss": staircase(STEPS, (200, 600), (3.0, 2.0, 1.0)), "some_probe/long_name": (heads, ("a_long_dim",))}
    for name in ("a-run-with-a-long-name", "another-run-with-an-even-longer-name"):
        write_run(tmp_path, name, series)
    runs = [] if words[0] in ("plugins", "tasks") else ["--runs", str(tmp_path)]
    command = [sys.executable, "-c", "import stagelens.cli; stagelens.cli.main()", *words, *runs]
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "dumb"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65536):
                shown += part
    os.close(ours)
    assert process.returncode == 0
    assert names_and_numbers(piped) <= names_and_numbers(shown.decode())


def names_and_numbers(text: str) -> set[str]:
    return {word for word in text.split() if any(letter in word for letter in "0123456789/-_")}
