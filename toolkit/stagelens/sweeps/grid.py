"""Grids: the settings of a sweep, from lists, ranges, paired keys or a yaml file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagelens.base import UsageError, read_yaml, unknown
from stagelens.experiments import Config, text_of

SYNTAX = "give k=a,b,c, k=first:last:step, k=log:first:last:count, k1,k2=a:b,c:d, or a yaml file"
YAML = (".yaml", ".yml")
MOST_VALUES = 1_000_000  # of one key; a longer range is a typing error

Settings = dict[str, str]  # key -> value, as `--set` takes them


@dataclass(frozen=True)
class Axis:
    """Keys that change together, and their values as texts: `rows` [value, key]."""

    keys: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Grid:
    """The product of axes: `size` settings. Iterating yields the settings of each, the last axis fastest."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        keys = [key for axis in axes for key in axis.keys]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise UsageError(f"grid key {twice[0]!r} is given twice; give all of its values in one place")
        if not axes or any(not axis.rows for axis in axes):
            raise UsageError(f"the grid is empty: {SYNTAX}")
        self.axes = tuple(axes)
        self.keys = tuple(keys)

    @property
    def size(self) -> int:
        return math.prod(len(axis.rows) for axis in self.axes)

    def __iter__(self) -> Iterator[Settings]:
        for rows in itertools.product(*(axis.rows for axis in self.axes)):
            yield {
                key: value
                for axis, row in zip(self.axes, rows, strict=True)
                for key, value in zip(axis.keys, row, strict=True)
            }


def make_grid(given: Any, kind: type[Config]) -> Grid:
    """Returns a grid over the keys of the config `kind`.

    `given` is a mapping (`{"T": [10, 20], ("d", "B"): [(5, 1), (10, 2)]}`), a yaml file, or what `--grid` takes: one
    text such as `T=10,20` or `T=log:10:1000:5`, or several.
    """
    if isinstance(given, Grid):
        return given
    if isinstance(given, Mapping):
        return Grid(_from_mapping(given, kind))
    texts = [given] if isinstance(given, str | Path) else list(given)
    return Grid([axis for text in texts for axis in _from_text(str(text), kind)])


def _from_text(text: str, kind: type[Config]) -> Sequence[Axis]:
    left, equals, right = text.partition("=")
    if not equals:
        return _from_file(Path(text), kind)
    keys = tuple(key.strip() for key in left.split(","))
    for key in keys:
        _check_key(key, kind)
    if not right.strip():
        raise UsageError(f"--grid {text!r} has no values: {SYNTAX}")
    if len(keys) == 1:
        return [Axis(keys, tuple((value,) for value in _values(right, keys[0], kind)))]
    return [Axis(keys, tuple(_row(part, keys, text) for part in _split(right, ",")))]


def _from_file(path: Path, kind: type[Config]) -> Sequence[Axis]:
    """Reads a yaml mapping: key -> a list, a range as text, or one value; `k1,k2` -> a list of lists."""
    if path.suffix.lower() not in YAML:
        raise UsageError(f"--grid {str(path)!r}: {SYNTAX}")
    try:
        read = read_yaml(path)
    except OSError as error:
        raise UsageError(f"--grid {path}: cannot read it ({error.strerror or error})") from None
    except ValueError as error:
        raise UsageError(f"--grid {path}: not yaml of a grid ({error})") from None
    if not isinstance(read, Mapping):
        raise UsageError(f"--grid {path}: expected a mapping from keys to lists of values")
    return _from_mapping(read, kind)


def _from_mapping(given: Mapping[Any, Any], kind: type[Config]) -> list[Axis]:
    axes = []
    for left, values in given.items():
        keys = tuple(part.strip() for part in left.split(",")) if isinstance(left, str) else left
        if not isinstance(keys, tuple) or not all(isinstance(key, str) for key in keys):
            raise UsageError(f"grid key {left!r}: expected the name of a config key, or several as k1,k2")
        for key in keys:
            _check_key(key, kind)
        listed = values if isinstance(values, Sequence) and not isinstance(values, str) else None
        if len(keys) == 1:
            texts = _values(str(values), keys[0], kind) if listed is None else [text_of(value) for value in listed]
            axes.append(Axis(keys, tuple((text,) for text in texts)))
            continue
        if listed is None or not all(isinstance(row, list | tuple) and len(row) == len(keys) for row in listed):
            raise UsageError(
                f"grid keys {','.join(keys)}: expected a list of rows of {len(keys)} values, got {values!r}"
            )
        axes.append(Axis(keys, tuple(tuple(text_of(value) for value in row) for row in listed)))
    return axes


def _check_key(key: str, kind: type[Config]) -> None:
    """Raises an error unless the first part of a dotted key is a field; the config checks the rest."""
    if key == "seed":
        raise UsageError("'seed' is not a config key: give --seeds N for N seeds of every point")
    if key.partition(".")[0] not in kind.model_fields:
        raise unknown("grid key", key, kind.model_fields)


def _values(text: str, key: str, kind: type[Config]) -> list[str]:
    """Returns the values that `text` lists: a range, a log range, or a list with commas (outside brackets)."""
    parts = text.split(":")
    if parts[0] == "log":
        return _log_range(parts[1:], text, key, _is_whole(key, kind))
    if len(parts) == 3 and all(_number(part) is not None for part in parts):
        return _range(*(float(part) for part in parts), text=text, key=key)
    return [part.strip() for part in _split(text, ",")]


def _range(first: float, last: float, step: float, *, text: str, key: str) -> list[str]:
    """Returns first, first + step, ..., up to and including last."""
    if step == 0 or (last - first) / step < 0 or not all(map(math.isfinite, (first, last, step))):
        raise UsageError(
            f"grid key {key!r}: the range {text} (first:last:step) is empty; its step must lead to its last"
        )
    count = (last - first) / step * (1 + 1e-12) + 1e-9 + 1
    _check_count(count, text, key)
    return [text_of(_round(first + number * step)) for number in range(math.floor(count))]


def _log_range(parts: Sequence[str], text: str, key: str, whole: bool) -> list[str]:
    """Returns `count` values from first to last with equal ratios; integers for a key that takes integers."""
    numbers = [_number(part) for part in parts]
    if len(numbers) != 3 or any(number is None for number in numbers):
        raise UsageError(f"grid key {key!r}: got {text}; a log range is log:first:last:count, as log:10:1000:5")
    first, last, count = (float(number) for number in numbers if number is not None)
    if not (0 < first < math.inf and 0 < last < math.inf and count >= 2 and count.is_integer()):
        raise UsageError(f"grid key {key!r}: the log range {text} needs ends above 0 and a count of 2 or more")
    _check_count(count, text, key)
    shares = [number / (count - 1) for number in range(int(count))]
    exact = [first ** (1 - share) * last**share for share in shares]  # no overflow in between
    return list(dict.fromkeys(text_of(round(value) if whole else _round(value)) for value in exact))


def _check_count(count: float, text: str, key: str) -> None:
    if count > MOST_VALUES:
        raise UsageError(
            f"grid key {key!r}: the range {text} has more than {MOST_VALUES:,} values; give fewer, even with --yes"
        )


def _row(part: str, keys: Sequence[str], text: str) -> tuple[str, ...]:
    values = tuple(value.strip() for value in _split(part, ":"))
    if len(values) != len(keys) or not all(values):
        raise UsageError(
            f"--grid {text!r}: {part!r} has {len(values)} values for the {len(keys)} keys {', '.join(keys)}"
        )
    return values


def _split(text: str, separator: str) -> list[str]:
    """Splits `text` at each `separator` outside of brackets and quotes; empty parts are left out."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += 0 if quoted else (character in "[{(") - (character in "]})")
        if character == separator and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _is_whole(key: str, kind: type[Config]) -> bool:
    field = kind.model_fields.get(key)
    return field is not None and field.annotation is int


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _round(value: float) -> float | int:
    """Returns `value` rounded to twelve digits; an int if it is integral."""
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
