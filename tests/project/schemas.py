"""JSON Schemas of what the commands print with `--json`, in `docs/reference/json`.

They are inferred from the answers that `surface.measure` collects: types, required keys, and objects whose keys are
data. `python tests/project/pin.py surface` writes them; the test of the surface checks the answers against them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from project.surface import ANSWERS, DATA

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "json"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
MORE_DATA = (*DATA, "presets", "versions", "settings", "without", "problems", "table", "rows", "default")


def path_of(title: str) -> Path:
    """Returns the file of the schema of a command: `sweep --dry-run` is in `sweep-dry-run.schema.json`."""
    return FOLDER / f"{title.lower().replace(' --', '-').replace(' ', '-')}.schema.json"


def schemas() -> dict[str, dict[str, Any]]:
    """Returns the schema of each command's answer, from what the commands printed."""
    return {title: {"$schema": DRAFT, "title": f"stagelens {title}"} | infer(some) for title, some in ANSWERS.items()}


def infer(values: list[Any], is_data: bool = False) -> dict[str, Any]:
    """Returns a schema that all `values` fulfil. With `is_data`, the keys of objects are names, not a part of it."""
    kinds = sorted({kind for value in values for kind in _kinds(value)})
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds} if kinds else {}
    items = [item for value in values if isinstance(value, list) for item in value]
    if "array" in kinds and items:
        schema["items"] = infer(items)
    found = [value for value in values if isinstance(value, dict)]
    if is_data and found:
        inner = [item for value in found for item in value.values()]
        schema["additionalProperties"] = infer(inner) if inner else True
    elif found:
        keys = dict.fromkeys(key for value in found for key in value)
        schema["properties"] = {key: infer([v[key] for v in found if key in v], key in MORE_DATA) for key in keys}
        schema["required"] = [key for key in keys if all(key in value for value in found)]
    return schema


def _kinds(value: Any) -> set[str]:
    """Returns the types of a value. A float may be nan in another answer, which JSON has as null."""
    kinds = {bool: "boolean", int: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return {"number", "null"} if isinstance(value, float) else {kinds[type(value)]}


def save() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.schema.json"):
        old.unlink()
    for title, schema in schemas().items():
        path_of(title).write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
