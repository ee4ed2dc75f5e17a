"""The manifest of a run, `run.json`: what it is, how it was made, and how it stands."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from stagelens.errors import EnvironmentFault, UsageError
from stagelens.files import write_text
from stagelens.plain import json_text

FILE = "run.json"
FORMAT = 1
DETECTOR = 2  # of `stages`; raised when the same curve may give other stages, so that kept ones are found anew
STATUSES = ("running", "finished", "interrupted", "failed")


@dataclass
class Manifest:
    """`step` is the last step that was measured, `steps` the planned end (a time for flows)."""

    task: str
    plugin: str
    preset: str
    config: dict[str, Any]
    seed: int
    kind: str  # training | flow
    steps: float
    metric: str = "loss"
    stage_names: list[str] = field(default_factory=list)
    device: str = "cpu"
    threads: int = 1
    status: str = "running"
    step: float = 0
    error: str = ""
    seconds: float = 0.0
    compile_seconds: float | None = None  # within `seconds`; None: not compiled
    created: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # what differs from the preset
    probes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, float] = field(default_factory=dict)
    predictions: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] | None = None  # of `metric`, as found when the run ended; None: not looked for
    detector: int = DETECTOR  # that found them
    versions: dict[str, str] = field(default_factory=dict)
    process: int = 0
    host: str = ""
    format: int = FORMAT

    def save(self, folder: Path) -> None:
        write_text(folder / FILE, json_text(asdict(self)) + "\n")


def load_manifest(folder: Path) -> Manifest:
    """The manifest in `folder`, or an error that says why the folder is not a run."""
    path = folder / FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} is not a run: it has no {FILE}; `stagelens runs` lists the runs") from None
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{path} cannot be read ({_reason(error)}); restore it or delete the run") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise UsageError(f"{path} is not a manifest of format {FORMAT}; it was written by another program or version")
    try:
        manifest = Manifest(**values)
    except TypeError as error:
        raise EnvironmentFault(f"{path} is not a whole manifest ({error}); restore it or delete the run") from None
    if manifest.status not in STATUSES:
        raise EnvironmentFault(f"{path}: status {manifest.status!r} is none of {', '.join(STATUSES)}")
    return manifest


def this_process() -> dict[str, Any]:
    return {"process": os.getpid(), "host": socket.gethostname()}


@cache
def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    names = ("stagelens", "torch", "transformer-lens", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
