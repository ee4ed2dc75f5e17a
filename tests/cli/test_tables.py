"""Tables of the command line: cells are wrapped between words, at any width at which the longest words fit."""

from __future__ import annotations

import io

import pytest

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


@pytest.mark.parametrize("width", [60, 64, 80, 100, 200])
def test_no_word_of_a_table_is_divided(width, monkeypatch):
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(output, "answers", lambda: stream)
    output.print_table(["probe", "what it measures", "readings"], ROWS)
    lines = stream.getvalue().splitlines()
    printed = {word for line in lines for word in line.replace("\x1b[1m", " ").replace("\x1b[0m", " ").split()}
    assert {word for row in ROWS for cell in row for word in cell.split()} <= printed
    assert "\x1b" in lines[0] or max(map(len, lines)) <= width


def test_widths_fill_the_room_and_leave_the_choice_to_rich_if_it_is_too_narrow_or_wide_enough():
    columns, rows = ["name", "meaning"], [["a" * 10, "one two three four five six"], ["b", "seven"]]
    assert column_widths(columns, rows, 80) == [None, None]
    assert column_widths(columns, rows, 16) == [None, None]
    assert column_widths(columns, rows, 30) == [10, 30 - 10 - GAP]
