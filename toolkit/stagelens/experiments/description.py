"""What a config accepts: every key with its meaning, type, bounds, default, and values in the presets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stagelens.experiments.config import is_model, stated_bounds

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}  # pydantic's names of the bounds


def config_keys(kind: type[BaseModel], presets: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns one mapping for each key of a config: `key`, `meaning`, `type`, `bounds`, `default` and `presets`.

    `presets` has the values that presets set, by preset. Keys of nested configs have dots, as in `--set`.
    """
    return list(_keys(kind, presets, ""))


def _keys(kind: type[BaseModel], presets: Mapping[str, Any], prefix: str) -> Iterator[dict[str, Any]]:
    for name, field in kind.model_fields.items():
        set_by = {preset: values[name] for preset, values in presets.items() if name in values}
        if is_model(field.annotation):
            inner = {preset: values for preset, values in set_by.items() if isinstance(values, Mapping)}
            yield from _keys(field.annotation, inner, f"{prefix}{name}.")  # type: ignore[arg-type]
            continue
        yield {
            "key": prefix + name,
            "meaning": field.description or "",
            "type": type_name(field.annotation),
            "bounds": _bounds(kind, name, field),
            "default": None if field.is_required() else field.get_default(call_default_factory=True),
            "presets": set_by,
        }


def type_name(annotation: Any) -> str:
    """Returns a type as a person writes it: `int`, `float | None`, `'adam' | 'sgd'`, `tuple[float, ...]`."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(annotation))
    return re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace(", ", " | "), text)


def _bounds(kind: type[BaseModel], name: str, field: FieldInfo) -> str:
    """Returns the bounds of a key: those of its field, and those that the config's validators state."""
    own = [
        f"{sign} {getattr(bound, attribute)}"
        for bound in field.metadata
        for attribute, sign in SIGNS.items()
        if getattr(bound, attribute, None) is not None
    ]
    return ", ".join(dict.fromkeys([*own, *stated_bounds(kind, name)]))
