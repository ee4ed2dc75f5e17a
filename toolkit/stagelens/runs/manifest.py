"""The manifest of a run, `run.json`: what it is, how it was made, and how it stands."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from stagelens.base import EnvironmentFault, UsageError, digest, fits, load_sealed, own, save_sealed

FILE = "run.json"
FORMAT = 1
DETECTOR = 6  # of `stages`; raised when the same curve may give other stages or names, so that kept ones are found anew
VECTORIZED = 2  # revision of the training of several seeds together; revision 1 is described in `defects`
STATUSES = ("running", "finished", "interrupted", "failed")
# What the rows of a manifest must have; they may have more.
ROWS: dict[str, dict[str, Any]] = {
    "stages": {"kind": str, "name": str, "start": float, "end": float, "level": float | None, "drop": float | None},
    "predictions": {"name": str, "reference": str, **dict.fromkeys(("expected", "measured", "error"), float | None)},
}


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
    problems: dict[str, str] = field(default_factory=dict)  # of probes
    plugin_problems: dict[str, str] = field(default_factory=dict)  # of other plugin code, such as `figures()`
    warnings: list[str] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, float] = field(default_factory=dict)
    predictions: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] | None = None  # of `metric`, as found when the run ended; None: not looked for
    detector: int = DETECTOR  # that found them
    versions: dict[str, str] = field(default_factory=dict)
    process: int = 0
    host: str = ""
    vectorized: int | None = None  # the revision that trained it with other seeds; 0: alone; None: 1, or alone
    timeline: str = ""  # the digest of `timeline.sqlite` as the run ended; empty while it goes on
    format: int = FORMAT

    @property
    def content(self) -> str:
        """What the run's numbers follow from, as a digest: it marks the checkpoints as this run's."""
        return digest({"task": self.task, "config": self.config, "seed": self.seed})

    def save(self, folder: Path) -> None:
        save_sealed(folder / FILE, asdict(self))


def load_manifest(folder: Path) -> Manifest:
    """The manifest in `folder`, or an error that says why the folder is not a run."""
    path = own(folder, FILE)
    try:
        values = load_sealed(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} is not a run: it has no {FILE}; `stagelens runs` lists the runs") from None
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{path} cannot be read ({_reason(error)}); restore it or delete the run") from None
    if values.get("format") != FORMAT:
        raise UsageError(f"{path} is not a manifest of format {FORMAT}; it was written by another program or version")
    if (problem := next(_problems(values), None)) is not None:
        raise EnvironmentFault(f"{path} is not a whole manifest ({problem}); restore it or delete the run")
    return Manifest(**values)


def _problems(values: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the values of a manifest."""
    kinds, needed = _fields()
    for name in (*needed, *values):
        if name not in kinds:
            yield f"{name[:40]!r} is no part of one"
        elif name not in values:
            yield f"{name!r} is missing"
        elif not fits(values[name], kinds[name]):
            yield f"{name!r} is {str(values[name])[:40]!r}, which it cannot be"
    for name, keys in ROWS.items():
        for row in values.get(name) or ():
            yield from (f"{name!r} lacks a right {key!r}" for key, kind in keys.items() if not fits(row.get(key), kind))
    if values.get("status", STATUSES[0]) not in STATUSES:
        yield f"status {values['status']!r} is none of {', '.join(STATUSES)}"


@cache
def _fields() -> tuple[dict[str, Any], list[str]]:
    """The fields of a manifest by name with their types, and those that it must have."""
    given = [one.name for one in fields(Manifest) if one.default is MISSING and one.default_factory is MISSING]
    return get_type_hints(Manifest), given


def this_process() -> dict[str, Any]:
    """Returns the id of this process and the name of its machine, as a manifest stores them."""
    return {"process": os.getpid(), "host": socket.gethostname()}


@cache
def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    names = ("stagelens", "torch", "transformer-lens", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
