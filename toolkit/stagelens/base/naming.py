"""Names of folders that say what is in them: readable first, then a digest of all that the content depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def content_name(task: str, label: str, depends_on: Mapping[str, Any]) -> str:
    """`markov-minimal-<label>-<digest>`: the same content has the same name on every machine."""
    return f"{task.replace('/', '-')}-{label}-{digest(depends_on)}"


def digest(depends_on: Mapping[str, Any]) -> str:
    """Sixteen digits that are the same for the same content, on every machine."""
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
