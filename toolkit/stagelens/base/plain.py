"""Values as plain JSON: nan and infinity, which JSON lacks, become null."""

from __future__ import annotations

import json
import math
from typing import Any


def plain(value: Any) -> Any:
    """`value` (dicts, lists, numbers, numpy arrays and scalars) as what JSON can hold."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(document: Any) -> str:
    """`document` as one readable JSON document."""
    return json.dumps(plain(document), indent=2, allow_nan=False)
