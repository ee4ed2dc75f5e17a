"""Files for the fuzzer: curves as csv and grids as yaml, valid and damaged."""

from __future__ import annotations

import random
from collections.abc import Sequence

CELLS = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "x",
    '"',
    '"a,b"',
    "1_000",
    "0x10",
    "1,5",
    "\u0663",
    "-0",
    "1e-320",
    "é",
    "\x00",
    "#",
    "=1+1",
]


def csv_text(rng: random.Random) -> bytes:
    """Returns a csv of a few points, most often with something wrong in it."""
    rows = rng.choice([0, 1, 2, 3, 12, 60])
    width = rng.choice([1, 2, 2, 2, 2, 3, 5])
    mark = rng.choice([",", ",", ",", ";", "\t", "|", " "])
    scale = rng.choice([1.0, 1e-300, 1e300, 1e15])
    lines = [mark.join(rng.sample(["step", "value", "loss", "a", "b", ""], width))] if rng.random() < 0.7 else []
    step = 0.0
    for _ in range(rows):
        step += rng.choice([1, 1, 1, 0.5, 1e9, 0, -1]) if rng.random() < 0.1 else 1
        cells = [f"{step:g}", *(repr(scale * rng.gauss(0, 1)) for _ in range(width - 1))]
        if rng.random() < 0.08:
            cells[rng.randrange(width)] = rng.choice(CELLS)
        if rng.random() < 0.03:
            cells = cells[: rng.randrange(width + 1)]
        lines.append(mark.join(cells))
    text = (
        rng.choice(["\n", "\n", "\r\n", "\r"])
        .join(lines)
        .encode(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]), "replace")
    )
    return mangled(text, rng) if rng.random() < 0.2 else text


def yaml_text(rng: random.Random, keys: Sequence[str]) -> bytes:
    """Returns a yaml grid over `keys`, or something similar."""
    key, other = rng.choice(keys), rng.choice(keys)
    values = [
        "[1, 2]",
        "[0.1, 0.2]",
        "3",
        "'1:9:2'",
        "'log:1:9:3'",
        "[]",
        "{}",
        "null",
        "[null]",
        "[[1, 2], [3]]",
        "{a: 1}",
        "[{a: [1]}]",
    ]
    values += [
        "2001-01-01",
        "[2001-01-01]",
        "!!binary aGk=",
        "!!set {a, b}",
        "!!python/object:os.system {}",
        "0o17",
        "1:30:00",
        ".nan",
        "[.inf]",
    ]
    values += [
        "[1e999]",
        "9" * 4400,
        "'" + "9" * 4400 + "'",
        "true",
        "[true, 1]",
        "~",
        "''",
        "'\\n'",
        "|\n  a\n  b",
        "[1, [2, [3, [4]]]]",
    ]
    value, second = rng.choice(values), rng.choice(values)
    text = rng.choice(
        [
            f"{key}: {value}\n",
            f"{key}: {value}\n",
            f"{key}: {value}\n{other}: {second}\n",
            f"{key}: {value}\n{key}: {second}\n",
            f"{key},{other}: {value}\n",
            f"{key},{other}: [[1, 2], [3, 4]]\n",
            f"1: {value}\n",
            f"null: {value}\n",
            f"[{key}, {other}]: [[1, 2]]\n",
            f"? {{{key}: 1}}\n: 2\n",
            f"- {key}\n- {value}\n",
            f"{key}: &a [1, *a]\n",
            f"{key}: &a [1]\n{other}: *a\n",
            "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}' if i else '1'] * 9)}]\n" for i in range(12))
            + f"{key}: *x11\n",
            f"{key}: " + "[" * 3000,
            f"{key}: " + "[" * 500 + "]" * 500,
            f"{key}: {'x' * 100_000}\n",
            f"--- {{{key}: 1}}\n--- {{{key}: 2}}\n",
            f"%YAML 9.9\n---\n{key}: 1\n",
            "",
            "\t",
            "key",
            ": :",
            "\x00",
        ]
    ).encode("utf-8")
    return mangled(text, rng) if rng.random() < 0.2 else text


def mangled(data: bytes, rng: random.Random) -> bytes:
    """`data` cut short, or with a byte changed, put in or taken out."""
    at, byte = rng.randrange(len(data) + 1), bytes([rng.randrange(256)])
    return rng.choice(
        [data[:at], data[:at] + byte + data[at + 1 :], data[:at] + byte + data[at:], data[:at] + data[at + 1 :]]
    )
