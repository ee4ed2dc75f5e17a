"""Curves from csv files: two columns, or one column of a wider table, checked line by line."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stagelens.errors import UsageError, unknown

STEP_NAMES = ("step", "steps", "time", "t", "epoch", "iteration")
VALUE_NAMES = ("value", "loss")


@dataclass(frozen=True)
class CurveFile:
    """A curve read from a file: `metric` is the column's name, steps and values are [point]."""

    metric: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def read_curve(path: Path, metric: str | None = None) -> CurveFile:
    """The curve in a csv file with a header `step,value`, two columns of numbers, or a wider table and a `metric`.

    Anything that is not a whole, rising curve is an error that names the line.
    """
    rows = _rows(path)
    header = [] if _is_number(rows[0][1][0]) else [name.strip() for name in rows[0][1]]
    body = rows[1:] if header else rows
    step, value = _columns(path, header, len(rows[0][1]), metric)
    points: list[tuple[float, float]] = []
    for line, cells in body:
        if len(cells) != len(rows[0][1]):
            raise UsageError(
                f"{path}, line {line}: {len(cells)} cells, expected {len(rows[0][1])} as in the first line"
            )
        point = (_number(path, line, cells[step], "step"), _number(path, line, cells[value], "value"))
        if points and point[0] <= points[-1][0]:
            what = "is there twice" if point[0] == points[-1][0] else f"comes after {points[-1][0]:g}"
            raise UsageError(f"{path}, line {line}: step {point[0]:g} {what}; expected rising steps, so sort the file")
        points.append(point)
    if len(points) < 2:
        raise UsageError(f"{path} holds {len(points)} point{'' if len(points) == 1 else 's'}; a curve needs more")
    steps, values = np.array(points).T
    return CurveFile(header[value] if header else metric or "value", steps, values)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file; expected a csv with a header step,value") from None
    if "\0" in text:
        raise UsageError(f"{path} is not a text file; expected a csv with a header step,value")
    reader = csv.reader(text.splitlines(), delimiter=_delimiter(text))
    try:
        rows = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}; expected a csv with a header step,value") from None
    if not rows:
        raise UsageError(f"{path} is empty; expected a csv with a header step,value")
    return rows


def _delimiter(text: str) -> str:
    """The separator of the first line: a comma, else a semicolon or tab where it has one."""
    first = text.lstrip().partition("\n")[0]
    return next((mark for mark in ",;\t" if mark in first), ",")


def _columns(path: Path, header: Sequence[str], width: int, metric: str | None) -> tuple[int, int]:
    """Which columns hold step and value."""
    if width < 2:
        raise UsageError(f"{path} has one column; expected a csv with a header step,value")
    lower = [name.lower() for name in header]
    step = next((lower.index(name) for name in STEP_NAMES if name in lower), 0)
    others = {name: index for index, name in enumerate(header) if index != step}
    if metric is not None and header:
        if metric in others:
            return step, others[metric]
        if not (width == 2 and metric == "loss"):
            raise unknown("column", metric, others)
    if width == 2:
        return step, 1 - step
    named = [index for name, index in others.items() if name.lower() in VALUE_NAMES]
    if len(named) != 1:
        columns = ", ".join(header) if header else f"{width} columns without a header"
        raise UsageError(f"{path} has more than one curve ({columns}); choose one with --metric NAME")
    return step, named[0]


def _number(path: Path, line: int, cell: str, what: str) -> float:
    if not cell.strip():
        raise UsageError(f"{path}, line {line}: the {what} is missing; fill the gap or leave the line out")
    try:
        number = float(cell)
    except ValueError:
        raise UsageError(f"{path}, line {line}: {what} {cell.strip()[:40]!r} is not a number") from None
    if not math.isfinite(number):
        raise UsageError(f"{path}, line {line}: {what} {cell.strip()} is not finite; leave the line out")
    return number


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
