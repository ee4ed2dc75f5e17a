"""Names of folders that say what is in them: readable first, then a digest of all that the content depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def content_name(task: str, label: str, depends_on: Mapping[str, Any]) -> str:
    """`markov-minimal-<label>-<digest>`: the same content has the same name on every machine."""
    digest = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
    return f"{task.replace('/', '-')}-{label}-{digest[:16]}"
