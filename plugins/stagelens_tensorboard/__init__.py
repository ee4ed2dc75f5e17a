"""Every reading of a run in TensorBoard, as it is recorded.

    pip install 'stagelens[tensorboard]'
    stagelens --plugin-dir stagelens_tensorboard run markov
    tensorboard --logdir runs

It is not loaded unless it is named: nobody gets files that they did not ask for.

TensorBoard has integer steps. A training's are its own. The times of a flow are multiplied by a power of ten, which the
text `steps` of the run names, and each point has its exact time as its wall time (axis "Relative").
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
    raise UsageError("TensorBoard is not installed; pip install 'stagelens[tensorboard]'") from None

FOLDER = "tensorboard"  # in the run's own folder
FINENESS = 7  # a flow ends at a step of at most 10**7; a longer one has its own times, up to what an int64 holds
LONGEST = 18


class Writer:
    """Writes the readings of one run. No two steps or names of a run become one of TensorBoard's."""

    def __init__(self, run: Run) -> None:
        """A resumed run measures again what came after its newest checkpoint: TensorBoard drops that too."""
        redone = max(run.checkpoints, default=-1) + 1
        self.events: Any = SummaryWriter(run.folder / FOLDER, purge_step=redone)
        self.events.add_text("config", f"`{run.command}`", 0)
        self.scale = scale_of(run.manifest.steps) if run.manifest.kind == "flow" else None
        if self.scale is not None:
            text = f"step = time x {self.scale:g}, and the wall time of a point is its time"
            self.events.add_text("steps", text, 0)
        self.last = -1
        self.tags: dict[str, str] = {}  # by name

    def add(self, step: float, readings: Sequence[Reading]) -> None:
        whole, wall = int(step), None
        if self.scale is not None:
            whole, wall = max(round(step * self.scale), self.last + 1), float(step)
            self.last = whole
        for reading in readings:
            for name, value in reading.scalars().items():
                self.events.add_scalar(self.tag(name), value, whole, walltime=wall)

    def tag(self, name: str) -> str:
        """`name` without blanks, unless another name is already called that."""
        if name not in self.tags:
            short = name.replace(" ", "")
            self.tags[name] = name if short in self.tags.values() else short
        return self.tags[name]


def scale_of(end: float) -> float:
    """The power of ten that takes times up to `end` to steps of up to 10**FINENESS."""
    size = math.ceil(math.log10(end)) if end > 0 else 0
    exponent = min(max(FINENESS - size, 0), LONGEST - size)
    return float(10**exponent) if exponent >= 0 else 1 / 10**-exponent


_writers: dict[Path, Writer] = {}  # by run; a run has one writer, and this process may have several runs


@hookimpl
def stagelens_run_started(run: Run) -> None:
    _writers[run.folder] = Writer(run)


@hookimpl
def stagelens_reading_recorded(run: Run, step: float, readings: Sequence[Reading]) -> None:
    _writers[run.folder].add(step, readings)


@hookimpl
def stagelens_run_finished(run: Run) -> None:
    _writers.pop(run.folder).events.close()
