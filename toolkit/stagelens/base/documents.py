"""Documents: JSON and yaml from untrusted sources, checked before they are used.

Documents that stagelens writes contain a checksum, which detects a changed digit as well as a missing brace.
A document that is too large, nested too deeply, or has a key twice raises a `ValueError` of one line.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from stagelens.base.files import write_text
from stagelens.base.plain import json_text, plain

CHECKSUM = "checksum"
MOST_BYTES = 64 * 2**20
MOST_YAML = 2**20  # bytes; the yaml reader takes seconds for that many
MOST_DEPTH = 32


def save_sealed(path: Path, document: dict[str, Any]) -> None:
    """Writes `document` with its checksum, completely or not at all."""
    document = plain(document)
    write_text(path, json_text(document | {CHECKSUM: _checksum(document)}) + "\n")


def load_sealed(path: Path) -> dict[str, Any]:
    """Returns what `save_sealed` wrote. A document of an older version, without a checksum, is not verified."""
    document = parse_json(read_text(path))
    if not isinstance(document, dict):
        raise ValueError(f"it holds a {type(document).__name__}, expected an object")
    stored = document.pop(CHECKSUM, None)
    found = _checksum(document)
    if stored is not None and stored != found:
        raise ValueError(f"it does not match its checksum; if you edited it, remove its {CHECKSUM}")
    return document


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Returns the text of a file of at most `most` bytes."""
    with path.open("rb") as file:
        read = file.read(most + 1)
    if len(read) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return read.decode("utf-8")


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text. Repeated keys and numbers that are not finite raise a `ValueError`."""
    try:
        value = json.loads(text, object_pairs_hook=_each_once, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def read_yaml(path: Path) -> Any:
    """Returns the plain value in a yaml file. Aliases are refused: with them a few lines can expand to gigabytes."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            _each_once([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return super().construct_mapping(node, deep)

    text, depth = read_text(path, MOST_YAML), 0
    try:
        for event in yaml.parse(text, Loader):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise ValueError(f"line {line}: an alias; write its value instead")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise _too_deep()
        return yaml.load(text, Loader)  # nosec B506  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _checksum(document: dict[str, Any]) -> str:
    """Returns a checksum of the content, independent of the layout. Half a surrogate pair raises a `ValueError`."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def _each_once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def _check_depth(value: Any, left: int = MOST_DEPTH) -> None:
    if left < 0:
        raise _too_deep()
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(item, dict | list):
            _check_depth(item, left - 1)


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MOST_DEPTH} deep")
