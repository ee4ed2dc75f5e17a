"""The public calls that compute and then show: each calls the engine and writes the page of what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens import training
from stagelens.report import write_comparison, write_report

if TYPE_CHECKING:
    from torch import Tensor

    from stagelens.experiments import Experiment, Prediction
    from stagelens.host import Host
    from stagelens.runs import Notify, Run
    from stagelens.timelines import Timeline
    from stagelens.training import Ensemble, Page, Progress


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
        probes: Names of probes. They select: only these run. `+NAME` adds to the usual ones, `all` means every probe.
            Default: the usual ones, which are the default probes and those that the task adds.
        host: The plugins. Default: all that are installed.
        progress: Called with (step, steps, loss or None), at most ten times a second.
        report: Write figures and the HTML report.
        compile: Compile the training step with `torch.compile`, which pays off in long runs.
        replace: Replace the run of this name. The old run is renamed to `NAME-replaced`, and removed when this
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


def probe_checkpoints(
    checkpoints: str | Path | Sequence[str | Path] = (),
    *,
    hub: str | None = None,
    revisions: Sequence[str] = (),
    probes: Sequence[str] | None = None,
    text: str | Path | None = None,
    batch: Tensor | str | Path | None = None,
    sequences: int | None = None,
    length: int | None = None,
    every: int = 1,
    first: int = 0,
    last: int | None = None,
    jobs: int = 1,
    runs: str | Path | None = None,
    name: str | None = None,
    host: Host | None = None,
    plugin_dirs: Sequence[str] = (),
    progress: Progress | None = None,
    report: bool = True,
) -> Run:
    """Measures saved checkpoints and writes a run with stages, figures and an HTML report.

        run = sl.probe_checkpoints("my_training", text="book.txt")
        run = sl.probe_checkpoints(hub="EleutherAI/pythia-70m", revisions=["step1", "step512", "step143000"])

    Args:
        checkpoints: Checkpoints named by step, or a directory of them: `checkpoint-100/` of the Hugging Face Trainer or
            `step1000/`, each with its config.json; or weights of a HookedTransformer next to one config.json.
        hub: A repository on the Hugging Face hub instead.
        revisions: Its branches, tags or commits, named by step. Default: `main`.
        probes: Names of probes; `+NAME` adds to the default ones, and `all` means every probe.
        text: A file of plain text to measure on. The tokenizer of the first checkpoint splits it.
        batch: Tokens [sequence, position] to measure on, or a file with one such tensor. Without text and batch the
            probes see random tokens; the loss and what is computed from it are then skipped.
        sequences: How many sequences of text or random tokens. Default: 16, or as many as the text has.
        length: Tokens in a sequence. Default: 256, or the model's context if that is shorter.
        every: Take every n-th checkpoint.
        first: The first step to take.
        last: The last step to take.
        jobs: How many processes measure checkpoints in parallel. Each has its fraction of the cores, and one model in
            memory.
        runs: The runs directory. Default: `$STAGELENS_RUNS`, else `runs`.
        name: The run's name. Default: after the directory or the repository.
        host: The plugins. Default: all that are installed.
        plugin_dirs: Directories with plugins under development, which the other processes load too.
        progress: Called with (checkpoints done, checkpoints, None), at most ten times a second.
        report: Write figures and the HTML report.

    The first checkpoint is measured before anything is written. If a later one cannot be read or has another
    architecture, `run.warnings` gives the reason, the others are measured, and the run has the status `interrupted`.
    """
    return training.probe_checkpoints(
        checkpoints,
        hub=hub,
        revisions=revisions,
        probes=probes,
        text=text,
        batch=batch,
        sequences=sequences,
        length=length,
        every=every,
        first=first,
        last=last,
        jobs=jobs,
        runs=runs,
        name=name,
        host=host,
        plugin_dirs=plugin_dirs,
        progress=progress,
        page=write_report if report else None,
    )


def save_timeline(
    timeline: Timeline,
    name: str,
    *,
    runs: str | Path | None = None,
    config: Any = None,
    stage_names: Sequence[str] = (),
    predictions: Sequence[Prediction] = (),
) -> Run:
    """Writes a timeline in memory as a run with its report; see `Timeline.save`."""
    return training.save_timeline(
        timeline,
        name,
        runs=runs,
        config=config,
        stage_names=stage_names,
        predictions=predictions,
        page=write_report,
    )


class Recorder(training.Recorder):
    __doc__ = training.Recorder.__doc__

    def _page(self) -> Page:
        return write_report


def _page_of_seeds(runs: Sequence[Run]) -> Path:
    """Writes `NAME-seeds.html` next to the runs."""
    stem = runs[0].name.removesuffix(f"-seed{runs[0].manifest.seed}")
    return write_comparison(runs, runs[0].folder.parent / f"{stem}-seeds.html")
