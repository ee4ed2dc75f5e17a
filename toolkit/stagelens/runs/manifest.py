"""The manifest of a run, `run.json`: what the run is, how it was made, and its status."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from dataclasses import asdict, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from stagelens.base import EnvironmentFault, UsageError, digest, load_sealed, own, save_sealed
from stagelens.experiments import first_error

FILE = "run.json"
FORMAT = 1
DETECTOR = 8  # revision of `stages`. Raise it if stages or names of a curve change: stored ones are then found again
VECTORIZED = 2  # revision of the training of several seeds together; revision 1 is described in `defects`
MOST_INTEGER = 2**63 - 1
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MOST_INTEGER:
        raise ValueError(f"an integer should be at most {MOST_INTEGER}")
    return value


def _each(*kinds: type) -> AfterValidator:
    """Checks the values of a dict, and stops at the first wrong one: an untrusted file may have millions of them."""

    def check(values: dict[str, Any]) -> dict[str, Any]:
        for key, value in values.items():
            if type(_bounded(value)) not in kinds:
                raise ValueError(f"{key[:40]!r} should be of type {kinds[-1].__name__}")
        return values

    return AfterValidator(check)


Status = Literal["running", "finished", "interrupted", "failed"]
Integer = Annotated[int, AfterValidator(_bounded)]
Number = Annotated[int | float, AfterValidator(_bounded)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Rows = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
NamedTexts = Annotated[dict[str, Any], _each(str)]
NamedNumbers = Annotated[dict[str, Any], _each(int, float)]


class StageRow(BaseModel):
    """The required keys of a row of `Manifest.stages`; it may have more."""

    model_config = STRICT | ConfigDict(extra="allow")
    kind: str
    name: str
    start: Number
    end: Number
    level: Number | None = None
    drop: Number | None = None


class PredictionRow(BaseModel):
    """The required keys of a row of `Manifest.predictions`; it may have more."""

    model_config = STRICT | ConfigDict(extra="allow")
    name: str
    reference: str
    expected: Number | None = None
    measured: Number | None = None
    error: Number | None = None


@dataclass(config=STRICT | ConfigDict(extra="forbid"))
class Manifest:
    """`step` is the last measured step, and `steps` the planned last one. Both are times if the run is a flow."""

    task: str  # id of the task
    plugin: str  # that registers the task
    preset: str  # name of the preset
    config: dict[str, Any]  # every config key with its value
    seed: Integer  # of initialization, data and evaluation
    kind: str  # training | flow | checkpoints
    steps: Number  # the planned last step
    metric: str = "loss"  # the series whose stages are reported
    stage_names: Texts = field(default_factory=list)  # that the task expects
    stage_settings: dict[str, Any] = field(default_factory=dict)  # of the task; empty: the detector's own
    device: str = "cpu"  # on which it ran
    threads: Integer = 1  # of torch
    status: Status = "running"  # see below
    step: Number = 0  # the last measured step
    error: str = ""  # why it failed
    seconds: Number = 0.0  # of all its parts, without the time between them
    compile_seconds: Number | None = None  # within `seconds`; None: not compiled
    created: str = ""  # when, as an ISO time
    settings: dict[str, Any] = field(default_factory=dict)  # the config keys that differ from the preset
    probes: Texts = field(default_factory=list)  # names of the probes that were asked for
    skipped: NamedTexts = field(default_factory=dict)  # probes and readings that do not apply, each with the reason
    problems: NamedTexts = field(default_factory=dict)  # probes that failed, each with the reason
    plugin_problems: NamedTexts = field(default_factory=dict)  # other plugin code that failed, such as `figures()`
    warnings: Texts = field(default_factory=list)  # that the run raised
    phases: Rows = field(default_factory=list)  # training phases, each with its steps
    events: NamedNumbers = field(default_factory=dict)  # first time of each of a flow's events
    predictions: Rows = field(default_factory=list)  # expected and measured number of each prediction
    stages: Rows | None = None  # of `metric`, as found when the run ended; None: not computed
    detector: Integer = DETECTOR  # revision of the detector that found them
    versions: NamedTexts = field(default_factory=dict)  # of Python and the libraries
    process: Integer = 0  # id of the process that wrote it last
    host: str = ""  # name of its machine
    vectorized: Integer | None = None  # the revision that trained it with other seeds; 0: alone; None: 1, or alone
    seeded: bool = True  # False: a user's loop gave no seed; `seed` is 0 then
    timeline: str = ""  # digest of `timeline.sqlite` at the end of the run; empty while the run is written
    format: Integer = FORMAT  # of this file

    @property
    def content(self) -> str:
        """A digest of all that decides the run's numbers. It marks the checkpoints as this run's."""
        return digest({"task": self.task, "config": self.config, "seed": self.seed})

    def save(self, folder: Path) -> None:
        save_sealed(folder / FILE, asdict(self))


def load_manifest(folder: Path) -> Manifest:
    """Reads the manifest in `folder`; raises an error with the reason if the folder is not a run."""
    path = own(folder, FILE)
    try:
        values = load_sealed(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} is not a run: it has no {FILE}; `stagelens runs` lists the runs") from None
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{path} cannot be read ({_reason(error)}); restore it or delete the run") from None
    if values.get("format") != FORMAT:
        raise UsageError(f"{path} is not a manifest of format {FORMAT}; it was written by another program or version")
    try:
        manifest = Manifest(**values)
        for kind, rows in ((StageRow, manifest.stages), (PredictionRow, manifest.predictions)):
            for row in rows or ():
                kind.model_validate(row)
    except ValidationError as error:
        key, given, message = first_error(error)
        problem = f"{error.title} {key[:40]!r} is {given}: {message}"
        raise EnvironmentFault(f"{path} is not a whole manifest ({problem}); restore it or delete the run") from None
    return manifest


def new_manifest(**values: Any) -> Manifest:
    """Returns the manifest of a new run. A value that it cannot hold, such as a huge seed, is the user's mistake."""
    try:
        return Manifest(**values)
    except ValidationError as error:
        key, given, message = first_error(error)
        raise UsageError(f"{key} is {given}: {message}; give another value") from None


def this_process() -> dict[str, Any]:
    """Returns the id of this process and the name of its machine, as a manifest stores them."""
    return {"process": os.getpid(), "host": socket.gethostname()}


@cache
def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that numbers depend on."""
    names = ("stagelens", "torch", "transformer-lens", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
