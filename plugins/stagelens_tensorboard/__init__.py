"""Every reading of a run in TensorBoard, as it is recorded.

    pip install 'stagelens[tensorboard]'
    stagelens --plugin-dir stagelens_tensorboard run markov
    tensorboard --logdir runs

It is not loaded unless it is named: nobody gets files that they did not ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stagelens import Reading, Run, hookimpl
from stagelens.errors import UsageError

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    raise UsageError("TensorBoard is not installed; pip install 'stagelens[tensorboard]'") from None

FOLDER = "tensorboard"  # in the run's own folder
_writers: dict[Path, Any] = {}  # by run; a run has one writer, and this process may have several runs


@hookimpl
def stagelens_run_started(run: Run) -> None:
    """A resumed run measures again what came after its newest checkpoint: TensorBoard drops that too."""
    redone = max(run.checkpoints, default=-1) + 1
    writer = SummaryWriter(run.folder / FOLDER, purge_step=redone)
    writer.add_text("config", f"`{run.command}`", 0)
    _writers[run.folder] = writer


@hookimpl
def stagelens_reading_recorded(run: Run, step: float, readings: Sequence[Reading]) -> None:
    for reading in readings:
        for name, value in reading.scalars().items():
            _writers[run.folder].add_scalar(name.replace(" ", ""), value, int(step))


@hookimpl
def stagelens_run_finished(run: Run) -> None:
    _writers.pop(run.folder).close()
