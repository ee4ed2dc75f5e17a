"""Filters and sorts rows of the catalogue, for `stagelens runs --where "seed>=1 and lr<0.1" --sort -created`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stagelens.base import UsageError, unknown

Row = Mapping[str, Any]
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
CONDITION = r"\s*(\w+)\s*(==|!=|<=|>=|=|<|>)\s*(\"[^\"]*\"|'[^']*'|[^\s=<>!\"']+)\s*"
EXPRESSION = re.compile(rf"{CONDITION}(?:\band\b{CONDITION})*")


def where(rows: Sequence[Row], expression: str) -> list[Row]:
    """Returns the rows that meet every condition of `expression`, such as `status=finished and lr<0.01`.

    A condition compares a key with a number or a text. A row without the key does not meet it.
    """
    if not EXPRESSION.fullmatch(expression):
        raise UsageError(
            f"--where {expression!r}: expected KEY=VALUE, !=, <, <=, > or >=, joined by 'and', "
            "for example --where 'status=finished and seed>=1'"
        )
    conditions = re.findall(CONDITION, expression)
    for key, _, _ in conditions:
        _check_key(key, rows)
    return [row for row in rows if all(_meets(row.get(key), sign, value) for key, sign, value in conditions)]


def ordered_by(rows: Sequence[Row], key: str) -> list[Row]:
    """Returns the rows by rising values of `key`, by falling ones of `-KEY`. Rows without the key are the last."""
    name = key.removeprefix("-")
    _check_key(name, rows)
    known = [row for row in rows if row.get(name) is not None]
    known.sort(key=lambda row: _sortable(row[name]), reverse=key.startswith("-"))
    return known + [row for row in rows if row.get(name) is None]


def _check_key(key: str, rows: Iterable[Row]) -> None:
    known = {name for row in rows for name in row}
    if known and key not in known:
        raise unknown("key", key, known, "of the listed runs and their configs")


def _meets(measured: Any, sign: str, given: str) -> bool:
    """Compares as numbers if both are numbers, else as text. A number has no order with a text."""
    if measured is None:
        return False
    text = given[1:-1] if given[0] in "\"'" else given
    number = _number(text)
    if isinstance(measured, bool):
        return COMPARISONS[sign](str(measured).lower(), text.lower())
    if not isinstance(measured, int | float):
        return COMPARISONS[sign](str(measured), text)
    return COMPARISONS[sign](measured, number) if number is not None else sign == "!="


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sortable(value: Any) -> tuple[bool, float, str]:
    """Returns a key that puts numbers before texts."""
    return (False, value, "") if isinstance(value, int | float) else (True, 0.0, str(value))
