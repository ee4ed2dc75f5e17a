"""Writes every reading of a run to Weights & Biases, offline unless `WANDB_MODE` is set.

    pip install wandb
    stagelens --plugin-dir stagelens_wandb run markov
    wandb sync RUN_DIRECTORY/wandb/offline-run-*

The plugin is loaded only if `--plugin-dir` names it. Offline, nothing leaves the machine before `wandb sync`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stagelens import Reading, Run, hookimpl
from stagelens.base import UsageError

try:
    import wandb
except ImportError:
    raise UsageError("Weights & Biases is not installed; pip install wandb") from None

_sessions: dict[Path, Any] = {}  # by run directory


@hookimpl
def stagelens_run_started(run: Run) -> None:
    session: Any = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "stagelens"),
        name=run.name,
        group=run.manifest.task,
        dir=run.folder,
        config={**run.manifest.config, "task": run.manifest.task, "seed": run.manifest.seed},
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        reinit="create_new",
    )
    session.define_metric("step")
    session.define_metric("*", step_metric="step")  # the x axis of every chart, instead of the number of calls
    _sessions[run.folder] = session


@hookimpl
def stagelens_reading_recorded(run: Run, step: float, readings: Sequence[Reading]) -> None:
    """Logs the step with the values: the steps of a flow are times, which are not integers."""
    values = {name: value for reading in readings for name, value in reading.scalars().items()}
    _sessions[run.folder].log({**values, "step": step})


@hookimpl
def stagelens_run_finished(run: Run) -> None:
    _sessions.pop(run.folder).finish(exit_code=0 if run.status == "finished" else 1)
