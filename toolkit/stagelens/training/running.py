"""Running: a task or flow from a name to a finished run on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stagelens.base import UsageError
from stagelens.experiments import Experiment
from stagelens.host import Host, make_host
from stagelens.runs import Notify, Run, replacing
from stagelens.training.plan import plan_run
from stagelens.training.writer import Page, Progress


def run(
    task: str | type[Experiment],
    *,
    preset: str = "quick",
    settings: Sequence[str] | Mapping[str, Any] = (),
    seed: int = 0,
    device: str = "auto",
    runs: str | Path | None = None,
    name: str | None = None,
    resume: bool = False,
    probes: Sequence[str] | None = None,
    host: Host | None = None,
    progress: Progress | None = None,
    compile: bool = False,
    replace: bool = False,
    notify: Notify | None = None,
    page: Page | None = None,
) -> Run:
    """Trains or integrates `task` and records its probes; `sl.run` explains the arguments.

    `page` is called with the finished run, while it is still locked, to show it.
    """
    host = host or make_host()
    plan = plan_run(task, preset=preset, settings=settings, seed=seed, device=device, probes=probes, host=host)
    training = plan.training()
    if compile:
        if training is None:
            raise UsageError(f"{plan.experiment.id!r} is a flow, which has no training step; run it without compiling")
        training.compile()
    folder = plan.folder(runs, name, resume, replace, notify)  # the user's mistakes are reported before this line
    with replacing(folder, replace, notify):
        plan.warn(notify)
        with plan.writing(folder) as writer:
            with writer.recording(plan.experiment) as store:
                if training is None:
                    writer.integrate(plan.experiment, store, progress)
                else:
                    from stagelens.training.loop import Track, train

                    train(Track(training, writer, store), progress)
                    writer.manifest.compile_seconds = training.compile_seconds
            if page is not None:
                writer.finish(page)
    return writer.run
