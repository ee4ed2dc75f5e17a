"""Names of directories after their content: a readable part, then a digest of what the content depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def content_name(task: str, label: str, depends_on: Mapping[str, Any]) -> str:
    """Returns `markov-minimal-<label>-<digest>`. The same content has the same name on every machine."""
    return f"{task.replace('/', '-')}-{label}-{digest(depends_on)}"


def digest(depends_on: Mapping[str, Any]) -> str:
    """Returns 16 hexadecimal digits, the same for the same content on every machine."""
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
