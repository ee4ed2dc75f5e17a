"""Damage to files. A mutation takes the bytes of a file and a random stream, and returns other bytes."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

HUGE = 10 * 2**40
TEXTS = ("", "x" * 100_000, "\ud800", "\x00", "\x1b[2J\x1b]0;x\x07", "../../../etc/passwd", "<script>alert(1)</script>")
DEEP = "nested"  # means lists in lists
ODD: tuple[Any, ...] = (None, True, -1, 0, 2**63, 10**400, 1e308, -0.0, 0.5, [], {}, [[]], {"a": {}}, *TEXTS)


def truncated(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(len(whole))]


def one_bit(whole: bytes, rng: random.Random) -> bytes:
    return _with(whole, rng.randrange(len(whole)), lambda byte: byte ^ 1 << rng.randrange(8))


def some_bits(whole: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((2, 5, 50))):
        whole = one_bit(whole, rng)
    return whole


def early_bit(whole: bytes, rng: random.Random) -> bytes:
    """Flips a bit in the first hundred bytes, where formats have their headers."""
    return one_bit(whole[:100], rng) + whole[100:]


def zeros(whole: bytes, rng: random.Random) -> bytes:
    start, end = _part(whole, rng)
    return whole[:start] + bytes(end - start) + whole[end:]


def noise(whole: bytes, rng: random.Random) -> bytes:
    start, end = _part(whole, rng)
    return whole[:start] + rng.randbytes(end - start) + whole[end:]


def spliced(whole: bytes, rng: random.Random) -> bytes:
    """Copies a part over another part."""
    (start, end), to = _part(whole, rng), rng.randrange(len(whole))
    return (whole[:to] + whole[start:end] + whole[to + end - start :])[: len(whole)]


def doubled(whole: bytes, rng: random.Random) -> bytes:
    start, end = _part(whole, rng)
    return whole[:end] + whole[start:]


def shortened(whole: bytes, rng: random.Random) -> bytes:
    start, end = _part(whole, rng)
    return whole[:start] + whole[end:]


def lengthened(whole: bytes, rng: random.Random) -> bytes:
    return whole + rng.choice((b"\0", b"\n", b"\0" * 4096, rng.randbytes(100), whole))


def page_over_page(whole: bytes, rng: random.Random, size: int = 4096) -> bytes:
    """Damages blocks as a file system may: moved, lost or empty."""
    pages = [whole[at : at + size] for at in range(0, len(whole), size)]
    at = rng.randrange(len(pages))
    pages[at] = rng.choice((rng.choice(pages), b"", bytes(len(pages[at]))))
    return b"".join(pages)


def foreign(whole: bytes, rng: random.Random) -> bytes:
    """Returns the file of another program."""
    return rng.choice(FOREIGN)(rng)


def encoded(whole: bytes, rng: random.Random) -> bytes:
    """Returns the same text in another encoding. Bytes that are no text get an additional byte."""
    try:
        text = whole.decode("utf-8")
    except UnicodeDecodeError:
        return b"\xef\xbb\xbf" + whole
    ways = ("utf-8-sig", "utf-16", "utf-32", "utf-7", "latin-1", "cp037")
    end = rng.choice(("\n", "\r\n", "\r", "\u2028", "\0"))
    return text.replace("\n", end).encode(rng.choice(ways), "replace")


ANY: tuple[Mutation, ...] = (truncated, one_bit, some_bits, early_bit, zeros, noise, spliced, doubled)
ANY += (shortened, lengthened, page_over_page, foreign, encoded)


def _png(rng: random.Random) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(b"".join(b"\0" + rng.randbytes(24) for _ in range(8)))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _database(rng: random.Random) -> bytes:
    with TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "theirs")
        connection.executescript("CREATE TABLE measurement (step, sum); INSERT INTO measurement VALUES (1, 1)")
        connection.close()
        return (Path(folder) / "theirs").read_bytes()


def _safetensors(rng: random.Random) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + rng.randbytes(16)


FOREIGN: tuple[Callable[[random.Random], bytes], ...] = (
    lambda rng: b"",
    lambda rng: b"\0",
    lambda rng: b"\n" * 10,
    lambda rng: rng.randbytes(rng.randrange(1, 5000)),
    lambda rng: b"cposix\nsystem\n(S'true'\ntR.",  # a pickle that calls a program
    lambda rng: b"PK\x03\x04" + rng.randbytes(500),
    lambda rng: gzip.compress(rng.randbytes(2000)),
    lambda rng: b"#!/bin/sh\necho hello\n",
    lambda rng: b"<!doctype html><script>alert(1)</script>",
    lambda rng: b"[" * 100_000,
    lambda rng: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    lambda rng: b"1" * 5000,
    lambda rng: b"nan",
    lambda rng: b'{"format": 1}',
    lambda rng: b"null",
    lambda rng: b'"text"',
    lambda rng: b"- a\n- b\n",
    lambda rng: b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    lambda rng: b"step,value\n1,2\n",
    _png,
    _database,
    _safetensors,
)


def rewritten(whole: bytes, rng: random.Random) -> bytes:
    """Changes one value of a JSON document, as an editor or an attacker would."""
    document = json.loads(whole)
    place, key = _anywhere(document, rng)
    match rng.randrange(6):
        case 0:
            del place[key]
        case 1 if isinstance(place, dict):
            place[rng.choice(("__class__", "..", "new", "", "step"))] = rng.choice(ODD)
        case 2:
            place[key] = DEEP
        case _:
            place[key] = rng.choice(ODD)
    depth = rng.choice((40, 900, 50_000))
    text = json.dumps(document, indent=2).replace(f'"{DEEP}"', "[" * depth + "]" * depth)
    match rng.randrange(8):
        case 0:
            text = text.replace('"seed": 0', rng.choice(('"seed": NaN', '"seed": 1e999', f'"seed": {"9" * 5000}')), 1)
        case 1:
            line = rng.choice([line for line in text.splitlines() if '": ' in line and line.endswith(",")] or [""])
            text = text.replace(line, f"{line}\n{line}", 1)
    return text.encode("utf-8", "surrogatepass")


def one_header(whole: bytes, rng: random.Random) -> bytes:
    """Changes the header of a safetensors file: sizes, offsets, types, names."""
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    one, other = rng.choice(names), rng.choice(names)
    match rng.randrange(9):
        case 0:
            return struct.pack("<Q", rng.choice((0, 1, length - 1, length + 1, 10**8, HUGE, 2**64 - 1))) + whole[8:]
        case 1:
            header[one]["data_offsets"][1] = rng.choice((HUGE, 0, -1, len(data) + 1, 2**64))
        case 2:
            header[one]["shape"] = rng.choice(([HUGE], [0], [-1], [2**32, 2**32], [[]], ["x"], header[other]["shape"]))
        case 3:
            header[one]["dtype"] = rng.choice(("F64", "I64", "U8", "BF16", "F8_E4M3", "X", 7))
        case 4:
            header[one], header[other] = header[other], header[one]
        case 5:
            header[one]["data_offsets"] = header[other]["data_offsets"]
        case 6:
            header["__metadata__"] = rng.choice(({}, {"stagelens": "1"}, {"stagelens": 1}, [], None))
        case 7:
            key = rng.choice(list(header["__metadata__"]))
            header["__metadata__"][key] = rng.choice(("", "1", "{}", "[]", "[" * 5000, '{"model": {"$tensor": "no"}}'))
        case _:
            header[rng.choice(("", "x" * 1000, "\0"))] = header.pop(one)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one_statement(statements: Mapping[str, str]) -> Mutation:
    """Returns a database after one untrusted SQL statement."""

    def mutate(whole: bytes, rng: random.Random) -> bytes:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "changed"
            path.write_bytes(whole)
            connection = sqlite3.connect(path)
            connection.executescript(statements[rng.choice(list(statements))])
            connection.close()
            return path.read_bytes()

    return mutate


STATEMENTS = {
    "a row less": "DELETE FROM measurement WHERE step = (SELECT step FROM measurement ORDER BY random() LIMIT 1)",
    "the end gone": "DELETE FROM measurement WHERE step > (SELECT max(step) / 2 FROM measurement)",
    "nothing left": "DELETE FROM measurement",
    "a layout less": "PRAGMA foreign_keys = OFF; DELETE FROM layout",
    "another step": "UPDATE measurement SET step = step + 1000000 WHERE step > 3",
    "a step of text": "UPDATE measurement SET step = 'later' WHERE step = 0",
    "values of text": "UPDATE measurement SET \"values\" = 'none' WHERE step = 0",
    "values of zeros": 'UPDATE measurement SET "values" = zeroblob(length("values"))',
    "a long value": 'UPDATE measurement SET "values" = zeroblob(1000000) WHERE step = 0',
    "a table less": "DROP TABLE layout",
    "a view": "ALTER TABLE measurement RENAME TO m; CREATE VIEW measurement AS SELECT * FROM m",
    "an endless view": (
        "DROP TABLE measurement; CREATE VIEW measurement AS WITH RECURSIVE n(step) AS (SELECT 1 UNION ALL "
        "SELECT step + 1 FROM n) SELECT step, 1 AS layout, 0 AS sum, x'00' AS \"values\" FROM n"
    ),
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON measurement BEGIN DELETE FROM measurement; END",
    "another table": "CREATE TABLE more (x); INSERT INTO more VALUES (1)",
    "an index": "CREATE INDEX i ON measurement (sum)",
    "another program": "PRAGMA application_id = 7",
    "another version": "PRAGMA user_version = 2",
    "another encoding": "PRAGMA journal_mode = DELETE; VACUUM",
    "a log": "PRAGMA journal_mode = WAL",
}


def _with(whole: bytes, at: int, change: Callable[[int], int]) -> bytes:
    return whole[:at] + bytes([change(whole[at])]) + whole[at + 1 :]


def _part(whole: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(whole))
    return start, min(len(whole), start + rng.choice((1, 7, 64, 512, 4096)))


def _anywhere(document: Any, rng: random.Random) -> tuple[Any, Any]:
    """Returns a random container in the document, and a key in it."""
    place, key = document, rng.choice(list(document))
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.6:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    return place, key
