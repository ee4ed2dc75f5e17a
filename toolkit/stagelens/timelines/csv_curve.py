"""Curves from csv files: two columns, or two columns of a wider table, checked line by line."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stagelens.base import UsageError, unknown

# Names of a step column, the most specific first. W&B and Lightning add a prefix, as in `trainer/global_step`.
STEP_NAMES = (
    ("global_step", "training_step", "train_step", "optimizer_step", "update_step"),
    ("step", "steps"),
    ("_step",),  # of W&B: it counts the calls of `log` without a step
    ("iteration", "iterations", "iter", "iters", "n_iter", "update", "updates"),
    ("epoch", "epochs"),
    ("time", "t"),
)
VALUE_NAMES = ("value", "loss")
BOOKKEEPING = ("_runtime", "_timestamp", "wall_time", "timestamp")  # of W&B and TensorBoard: no curves
BOUNDS = ("__min", "__max")  # columns next to a curve that W&B exports
BLANK = ("", "nan")  # what loggers write if a curve of a wide table has no value
INDEX_NAMES = ("", "unnamed: 0")  # of a pandas index


@dataclass(frozen=True)
class CurveFile:
    """A curve read from a file: `metric` is the column's name, steps and values are [point]."""

    metric: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def read_curve(path: Path, metric: str | None = None, step: str | None = None) -> CurveFile:
    """Reads a curve from a csv file: two columns of numbers, or the columns `step` and `metric` of a table.

    Without names, the step column is found by the names that loggers use; the curve is the only other column, or the
    loss. If that is ambiguous, the error asks for names. A missing or infinite number, or a step that does not
    increase, is an error that names the line. In a table of several curves, lines without a value of this one are left
    out.
    """
    rows = _rows(path)
    header = [] if _is_number(rows[0][1][0]) else [name.strip() for name in rows[0][1]]
    body, width = rows[1:] if header else rows, len(rows[0][1])
    for line, cells in body:
        if len(cells) != width:
            raise UsageError(f"{path}, line {line}: {len(cells)} cells, expected {width} as in the first line")
    at, value = (
        _columns(path, header, [cells for _, cells in body], metric, step) if header else _plain(path, rows, step)
    )
    points: list[tuple[float, float]] = []
    for line, cells in body:
        if width > 2 and cells[value].strip().lower() in BLANK:
            continue
        point = (_number(path, line, cells[at], "step"), _number(path, line, cells[value], "value"))
        if points and point[0] <= points[-1][0]:
            what = "is there twice" if point[0] == points[-1][0] else f"comes after {points[-1][0]:g}"
            raise UsageError(f"{path}, line {line}: step {point[0]:g} {what}; expected rising steps, so sort the file")
        points.append(point)
    if len(points) < 2:
        raise UsageError(f"{path} holds {len(points)} point{'' if len(points) == 1 else 's'}; a curve needs more")
    steps, values = np.array(points).T
    return CurveFile(header[value] if header else metric or "value", steps, values)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Returns (line number, cells) of every line that is not empty."""
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
    """Returns the separator of the first line: a comma, else a semicolon or tab."""
    first = text.lstrip().partition("\n")[0]
    return next((mark for mark in ",;\t" if mark in first), ",")


def _plain(path: Path, rows: Sequence[tuple[int, list[str]]], step: str | None) -> tuple[int, int]:
    """Returns the columns of step and value in a file without a header."""
    width = len(rows[0][1])
    if width < 2:
        raise UsageError(f"{path} has one column; expected a csv with a header step,value")
    if width > 2 or step is not None:
        raise UsageError(f"{path} has {width} columns without a header; name them in a first line such as step,value")
    return 0, 1


def _columns(
    path: Path, header: Sequence[str], body: Sequence[Sequence[str]], metric: str | None, step: str | None
) -> tuple[int, int]:
    """Returns the columns of step and value, by the given names or the names that loggers use."""
    if len(header) < 2:
        raise UsageError(f"{path} has one column; expected a csv with a header step,value")
    at = _named(path, header, step) if step is not None else _step_column(path, header, body)
    if metric is not None:
        value = _named(path, header, metric)
        if value != at:
            return at, value
        raise UsageError(f"{path}: column {metric!r} is the step; choose another one with --metric NAME or --step NAME")
    curves = [index for index, name in enumerate(header) if index != at and _may_be_curve(name)]
    if len(curves) != 1:
        curves = [index for index in curves if header[index].lower() in VALUE_NAMES]
    if len(curves) == 1:
        return at, curves[0]
    raise UsageError(f"{path} has more than one curve ({_listed(header)}); choose one with --metric NAME")


def _named(path: Path, header: Sequence[str], name: str) -> int:
    """Returns the index of the column called `name`."""
    if name not in header:
        raise unknown("column", name, header)
    if header.count(name) > 1:
        raise UsageError(
            f"{path} has {header.count(name)} columns {name!r}; rename them and choose with --step and --metric"
        )
    return header.index(name)


def _step_column(path: Path, header: Sequence[str], body: Sequence[Sequence[str]]) -> int:
    """Returns the column with a step's name, or a pandas index that does not merely count the rows."""
    for names in STEP_NAMES:
        found = [index for index, name in enumerate(header) if _last(name) in names]
        if len(found) == 1:
            return found[0]
        if found:
            break
    numbered = [cells[0].strip() for cells in body] == [str(row) for row in range(len(body))]
    if not found and header[0].lower() in INDEX_NAMES and (len(header) == 2 or not numbered):
        return 0
    raise UsageError(
        f"{path} does not say which column is the step ({_listed(header)}); choose with --step NAME and --metric NAME"
    )


def _may_be_curve(name: str) -> bool:
    known = (*BOOKKEEPING, *(step for names in STEP_NAMES for step in names), *INDEX_NAMES)
    return _last(name) not in known and not name.lower().endswith(BOUNDS)


def _last(name: str) -> str:
    """Returns a name without its prefix: `trainer/global_step` -> `global_step`, `Wall time` -> `wall_time`."""
    return name.lower().rpartition("/")[2].replace(" ", "_").replace("-", "_")


def _listed(header: Sequence[str]) -> str:
    return ", ".join(name or "a column without a name" for name in header)


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
