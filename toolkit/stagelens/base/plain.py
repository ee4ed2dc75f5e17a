"""Converts values to plain JSON. nan and infinity, which JSON does not have, become null."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any


def plain(value: Any, *, keep_nan: bool = False) -> Any:
    """Returns `value` (dicts, sequences, numbers, arrays and scalars of numpy or torch) as plain Python.

    nan and infinity, which JSON does not have, become None unless `keep_nan`.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item, keep_nan=keep_nan) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item, keep_nan=keep_nan) for item in value]
    if isinstance(value, float) and not (keep_nan or math.isfinite(value)):
        return None
    return value


def json_text(document: Any) -> str:
    """Returns `document` as indented JSON."""
    return json.dumps(plain(document), indent=2, allow_nan=False)
