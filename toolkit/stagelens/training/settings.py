"""The settings of a user's own training, as a run stores them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from stagelens.base import UsageError, plain

MOST_VALUES = 1000  # of an array among the settings; a larger one is stored as its type and shape
MOST_LEVELS = 20  # of nested settings; deeper ones are stored as text, and so is what contains itself


def settings_of(config: Any) -> dict[str, Any]:
    """Returns settings as JSON can hold them: of a mapping, a dataclass, a pydantic model, a config or a namespace.

    What JSON lacks becomes text: dtypes, devices, paths, classes and functions.
    """
    if config is None:
        return {}
    found = _mapping(config)
    if found is None:
        raise UsageError(f"config is a {type(config).__name__}; expected a mapping, a dataclass or a namespace")
    return {str(key): _json(value) for key, value in found.items()}


def _mapping(config: Any) -> Mapping[Any, Any] | None:
    """Returns the fields of an object by name; None if it has none."""
    if isinstance(config, Mapping):
        return config
    if isinstance(config, type | str | bytes):
        return None
    if dataclasses.is_dataclass(config):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if callable(getattr(config, "to_dict", None)):  # of Hugging Face, TransformerLens and pandas
        found = config.to_dict()
    elif hasattr(config, "model_dump"):  # of pydantic
        found = config.model_dump()
    else:  # argparse's and other namespaces
        found = getattr(config, "__dict__", None)
    return found if isinstance(found, Mapping) else None


def _json(value: Any, level: int = 0) -> Any:
    """Returns one setting as JSON can hold it."""
    if level == MOST_LEVELS:
        return type(value).__name__
    if isinstance(value, Mapping):
        return {str(key): _json(one, level + 1) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _json(_mapping(value), level + 1)
    if isinstance(value, list | tuple | set | frozenset):
        return [_json(one, level + 1) for one in value]
    if hasattr(value, "tolist") and hasattr(value, "shape"):  # an array
        if math.prod(value.shape) > MOST_VALUES:
            return f"{type(value).__name__} {list(value.shape)}"
        return _json(plain(value), level + 1)
    found = plain(value) if isinstance(value, str | int | float) else value
    if isinstance(found, type) or callable(found):
        return getattr(found, "__qualname__", type(found).__name__)
    known = isinstance(found, str | bool | float | None) or (isinstance(found, int) and abs(found) < 2**63)
    return found if known else str(found)
