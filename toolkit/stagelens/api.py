"""The public calls that compute and then show: each calls the engine and writes the page of what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens import training
from stagelens.report import write_comparison, write_report

if TYPE_CHECKING:
    from torch import Tensor

    from stagelens.experiments import Experiment
    from stagelens.host import Host
    from stagelens.runs import Notify, Run
    from stagelens.training import Ensemble, Page, Progress, Series


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
    report: bool = True,
    compile: bool = False,
    replace: bool = False,
    notify: Notify | None = None,
) -> Run:
    """Trains or integrates `task`, records its probes, and writes figures and an HTML report.

        run = sl.run("markov", seed=1, settings={"steps": 500})

    Args:
        task: The id of a task or flow, or its class.
        preset: The preset that `settings` change.
        settings: `key=value` strings, or a mapping.
        seed: The seed of initialization, training data and evaluation data.
        device: A torch device, or `auto` for the accelerator if there is one.
        runs: The runs directory. Default: `$STAGELENS_RUNS`, else `runs`.
        name: The run's name. A second run without a name is called `NAME-2`.
        resume: Continue the run of this name or, without a name, of the same task, config and seed. If there is none,
            a new one starts.
        probes: Names of probes. Default: the task's own.
        host: The plugins. Default: all that are installed.
        progress: Called with (step, steps, loss or None), at most ten times a second.
        report: Write figures and the HTML report.
        compile: Compile the training step with `torch.compile`, which pays off in long runs.
        replace: Replace the run of this name. The old run is kept as `NAME-replaced`, and removed when this
            call finishes the new one.
        notify: Called before the training with one line about a changed name, a replaced run, and each warning. The
            warnings are stored in `run.manifest.warnings`.

    A plugin whose `figures()`, `predictions()` or `stage_names()` raises does not stop the run: see `run.problems`.
    """
    return training.run(
        task,
        preset=preset,
        settings=settings,
        seed=seed,
        device=device,
        runs=runs,
        name=name,
        resume=resume,
        probes=probes,
        host=host,
        progress=progress,
        compile=compile,
        replace=replace,
        notify=notify,
        page=write_report if report else None,
    )


def run_ensemble(
    task: str | type[Experiment],
    *,
    seeds: int | Sequence[int] = 6,
    preset: str = "quick",
    settings: Sequence[str] | Mapping[str, Any] = (),
    device: str = "auto",
    runs: str | Path | None = None,
    name: str | None = None,
    names: Sequence[str] | None = None,
    resume: bool = False,
    probes: Sequence[str] | None = None,
    host: Host | None = None,
    progress: Progress | None = None,
    report: bool = True,
    replace: bool = False,
    notify: Notify | None = None,
    ensemble: bool = True,
) -> Ensemble:
    """Runs `task` with several seeds. They are vectorized into one training if the task allows it.

        runs = sl.run_ensemble("linear-icl", seeds=6)
        runs[0].stages(), runs.alone

    Args:
        seeds: How many seeds, from 0 on, or the seeds themselves.
        name: The runs are called `NAME-seed0`, `NAME-seed1`, ... Default: as `sl.run` names them.
        names: The name of each run, instead of `name`.
        report: Write one HTML page that compares the runs; `stagelens report RUN` writes the page of one of them.
        ensemble: Vectorize the seeds. `False` trains them one after the other.

    The other arguments are those of `sl.run`. `alone` of the result gives the reason if the seeds were not vectorized.
    """
    return training.run_ensemble(
        task,
        seeds=seeds,
        preset=preset,
        settings=settings,
        device=device,
        runs=runs,
        name=name,
        names=names,
        resume=resume,
        probes=probes,
        host=host,
        progress=progress,
        replace=replace,
        notify=notify,
        ensemble=ensemble,
        page=_page_of_seeds if report else None,
    )


def probe_series(
    series: Series,
    *,
    probes: Sequence[str] | None = None,
    batch: Tensor | None = None,
    batch_name: str = "the given batch",
    runs: str | Path | None = None,
    name: str | None = None,
    host: Host | None = None,
    progress: Progress | None = None,
    report: bool = True,
) -> Run:
    """Measures saved checkpoints one after the other and writes a run with its report; see `stagelens probe`."""
    return training.probe_series(
        series,
        probes=probes,
        batch=batch,
        batch_name=batch_name,
        runs=runs,
        name=name,
        host=host,
        progress=progress,
        page=write_report if report else None,
    )


class Recorder(training.Recorder):
    __doc__ = training.Recorder.__doc__

    def _page(self) -> Page:
        return write_report


def _page_of_seeds(runs: Sequence[Run]) -> Path:
    """Writes `NAME-seeds.html` next to the runs."""
    stem = runs[0].name.removesuffix(f"-seed{runs[0].manifest.seed}")
    return write_comparison(runs, runs[0].folder.parent / f"{stem}-seeds.html")
