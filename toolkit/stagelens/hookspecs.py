"""The plugin hooks: the interface between the host and a plugin.

A plugin is a module (or package) with a table `plugin = stagelens.Registration(__name__)` of what it registers, or with
functions marked by `stagelens.hookimpl` and named as below, or with both. Life of a run:

    register_tasks, register_probes, register_claims, register_figures        once, when the host is made
          |
    run_started  ->  reading_recorded (each measurement)  ->  run_finished
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from stagelens.experiments import Flow, Task
    from stagelens.host import ClaimRef, FigureRef, ProbeRef, TaskRef
    from stagelens.recording import Probe
    from stagelens.runs import Run
    from stagelens.timelines import Reading

PROJECT = "stagelens"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def stagelens_register_tasks() -> Iterable[TaskRef | type[Task] | type[Flow]]:
    """Return the plugin's tasks and flows.

    :return: classes, or lazy references to them (`TaskRef`), so that listing tasks imports nothing heavy. The
        first one, or the one with `default=True`, is the default task: the plugin's name alone means this task.
    """
    raise NotImplementedError


@hookspec
def stagelens_register_probes() -> Iterable[ProbeRef | type[Probe]]:
    """Return the plugin's probes.

    :return: classes, or lazy references to them (`ProbeRef`).
    """
    raise NotImplementedError


@hookspec
def stagelens_register_claims() -> Iterable[ClaimRef]:
    """Return the claims of the paper.

    :return: lazy references (`ClaimRef`) to the claims that `stagelens verify` runs.
    """
    raise NotImplementedError


@hookspec
def stagelens_register_figures() -> Iterable[FigureRef]:
    """Return the paper's figures.

    :return: references (`FigureRef`) to the figures that `stagelens figure PLUGIN` lists and draws; names are unique
        within the plugin.
    """
    raise NotImplementedError


@hookspec
def stagelens_run_started(run: Run) -> None:
    """Called when a run's directory exists and before its first step, also when the run is resumed.

    :param run: the run; its manifest has the task, the config and the seed.
    """


@hookspec
def stagelens_reading_recorded(run: Run, step: float, readings: Sequence[Reading]) -> None:
    """Called after each measurement is written to disk.

    :param run: the run that was measured.
    :param step: training step, or time of a flow.
    :param readings: everything measured at that step.
    """


@hookspec
def stagelens_run_finished(run: Run) -> None:
    """Called when a run has ended, whatever its status (`finished`, `interrupted`, `failed`).

    :param run: the run; `run.status` is the status with which it ended.
    """
