"""Writes every reading of a run to TensorBoard while the run is recorded.

    pip install tensorboard
    stagelens --plugin-dir stagelens_tensorboard run markov
    tensorboard --logdir runs

The plugin is loaded only if `--plugin-dir` names it.

TensorBoard has integer steps. The steps of a training are written as they are. The times of a flow are multiplied by a
power of ten, which the run's text `steps` names. The wall time of each point is its exact time (axis "Relative").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stagelens import Reading, Run, hookimpl
from stagelens.base import UsageError

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    raise UsageError("TensorBoard is not installed; pip install tensorboard") from None

FOLDER = "tensorboard"  # directory in the run's directory
FINENESS = 7  # a flow's times are scaled to steps of at most 10**7; longer times are not scaled up
LONGEST = 18  # largest exponent of ten of a step, so that it fits into an int64


class Writer:
    """Writes the readings of one run. Different steps and names stay different in TensorBoard."""

    def __init__(self, run: Run) -> None:
        """Opens the event file. A resumed run repeats the steps after its newest checkpoint, so these are dropped."""
        redone = max(run.checkpoints, default=-1) + 1
        self.events: Any = SummaryWriter(run.folder / FOLDER, purge_step=redone)
        self.events.add_text("config", f"`{run.command}`", 0)
        self.scale = scale_of(run.manifest.steps) if run.manifest.kind == "flow" else None
        if self.scale is not None:
            text = f"step = time x {self.scale:g}, and the wall time of a point is its time"
            self.events.add_text("steps", text, 0)
        self.last = -1
        self.tags: dict[str, str] = {}  # TensorBoard's tag of each name

    def add(self, step: float, readings: Sequence[Reading]) -> None:
        """Writes the readings of one step."""
        integer, wall = int(step), None
        if self.scale is not None:
            integer, wall = max(round(step * self.scale), self.last + 1), float(step)
            self.last = integer
        for reading in readings:
            for name, value in reading.scalars().items():
                self.events.add_scalar(self.tag(name), value, integer, walltime=wall)

    def tag(self, name: str) -> str:
        """Returns `name` without spaces, or `name` itself if another name already has that tag."""
        if name not in self.tags:
            short = name.replace(" ", "")
            self.tags[name] = name if short in self.tags.values() else short
        return self.tags[name]


def scale_of(end: float) -> float:
    """Returns the power of ten that maps times up to `end` to steps up to 10**FINENESS."""
    size = math.ceil(math.log10(end)) if end > 0 else 0
    exponent = min(max(FINENESS - size, 0), LONGEST - size)
    return float(10**exponent) if exponent >= 0 else 1 / 10**-exponent


_writers: dict[Path, Writer] = {}  # by run directory; one process can have several runs


@hookimpl
def stagelens_run_started(run: Run) -> None:
    _writers[run.folder] = Writer(run)


@hookimpl
def stagelens_reading_recorded(run: Run, step: float, readings: Sequence[Reading]) -> None:
    _writers[run.folder].add(step, readings)


@hookimpl
def stagelens_run_finished(run: Run) -> None:
    _writers.pop(run.folder).events.close()
