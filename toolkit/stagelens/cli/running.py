"""`run`: train or integrate, probe, find the stages, report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.base import UsageError
from stagelens.cli import output
from stagelens.cli.listing import Json
from stagelens.cli.main import app
from stagelens.cli.state import State
from stagelens.host import importing

if TYPE_CHECKING:
    from stagelens.runs import Run
    from stagelens.training import Ensemble, Progress

Runs = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder of runs (default: $STAGELENS_RUNS or 'runs').")
]
INTERRUPTED = 130


@app.command()
def run(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's id, or a plugin's name for its default task.")],
    preset: Annotated[
        str, typer.Option(help="quick: a laptop, about a minute; paper: the paper's own sizes.")
    ] = "quick",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a config key; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Init, data and evaluation all follow from it.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Train N seeds, from --seed on.")] = 1,
    ensemble: Annotated[bool, typer.Option(help="With --seeds: train them together if the model allows it.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")] = "auto",
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The run's name (default: task, preset and seed).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run where it stopped.")] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the run of that name; it is kept until the new one is finished."),
    ] = False,
    probes: Annotated[str | None, typer.Option(help="Probes, separated by commas (default: the task's).")] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the training step with torch.compile; pays off in long runs.")
    ] = False,
    json: Json = False,
) -> None:
    """Train or integrate a task; probe and report.

    Example: stagelens run markov --seed 1 --set steps=800
    """
    state: State = context.obj
    state.host.task(task)  # a wrong name is told before anything heavy is imported
    if not json and output.is_terminal():
        typer.secho("loading torch and TransformerLens ...", dim=True, err=True)
    if seeds > 1:
        if compile:
            raise UsageError("--compile is for one seed; give either --compile or --seeds")
        shared: dict[str, Any] = {
            "preset": preset,
            "settings": set_ or [],
            "device": device,
            "runs": runs,
            "name": name,
        }
        options = {"resume": resume, "probes": _names(probes), "ensemble": ensemble}
        shared |= options | {"replace": replace, "notify": output.note}
        _run_seeds(state, task, range(seed, seed + seeds), json, **shared)
        return
    with importing():
        from stagelens.api import run as run_task

    with progress_bar(f"{task} seed {seed}") as progress:
        done = run_task(
            task,
            preset=preset,
            settings=set_ or [],
            seed=seed,
            device=device,
            runs=runs,
            name=name,
            resume=resume,
            probes=_names(probes),
            host=state.host,
            progress=progress,
            compile=compile,
            replace=replace,
            notify=output.note,
        )
    if json:
        output.print_json(done.summary())
    else:
        from stagelens.cli.inspecting import show_summary

        show_summary(done)
    _end([done], replace)


def _run_seeds(state: State, task: str, seeds: range, json: bool, **options: Any) -> None:
    """The seeds as an ensemble: one page and one table for all; `stagelens report RUN` writes the page of one."""
    with importing():
        from stagelens.api import run_ensemble

    with progress_bar(f"{task} seeds {seeds[0]}..{seeds[-1]}") as progress:
        done = run_ensemble(task, seeds=seeds, host=state.host, progress=progress, **options)
    if done.alone and options["ensemble"]:
        output.warn(f"the seeds were run one by one: {done.alone}")
    if json:
        answer = {"task": done[0].manifest.task, "seeds": list(seeds), "together": not done.alone, "alone": done.alone}
        output.print_json(answer | {"page": str(done.page or ""), "runs": [run.summary() for run in done]})
    else:
        _show_seeds(done)
    _end(done, options["replace"], done.noted)


def _show_seeds(done: Ensemble) -> None:
    """The problems of the runs, their comparison, and where they are."""
    from stagelens.cli.answering import show_comparison
    from stagelens.cli.inspecting import show_problems
    from stagelens.comparing import align_runs

    show_problems(done)
    if done.page is not None:
        show_comparison(align_runs([run for run in done if len(run.timeline.steps)]))
        output.say("\n".join(["", *(str(run.folder) for run in done), str(done.page)]))


def end_with(problems: Iterable[str]) -> None:
    """Ends the command with 1, and each problem on stderr, if a plugin's code failed."""
    if problems := list(dict.fromkeys(problems)):
        for problem in problems:
            output.complain(problem)
        raise typer.Exit(1)


def _end(runs: Iterable[Run], replace: bool, noted: Mapping[str, str] | None = None) -> None:
    """Ends the command as the runs ended."""
    runs = list(runs)
    statuses = {run.manifest.status: run.manifest for run in runs}
    if failed := statuses.get("failed"):
        output.complain(failed.error)
        raise typer.Exit(1)
    if interrupted := statuses.get("interrupted"):
        instead = " instead of --replace" if replace else ""
        output.warn(f"interrupted at step {interrupted.step:g}; go on with the same command and --resume{instead}")
        raise typer.Exit(INTERRUPTED)
    end_with([*(problem for run in runs for problem in run.manifest.plugin_problems.values()), *(noted or {}).values()])


def _names(probes: str | None) -> list[str] | None:
    return probes.split(",") if probes else None


@contextmanager
def progress_bar(label: str) -> Iterator[Progress | None]:
    """A progress bar with loss, step rate and time left, on stderr, where a person can see it."""
    if not output.is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:g}/{task.total:g}"),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        row = bar.add_task(label, total=None, loss="", rate="")

        def update(step: float, steps: float, loss: float | None) -> None:
            speed = bar.tasks[row].speed
            rate = f"{speed:.0f} steps/s" if speed else ""
            bar.update(row, completed=step, total=steps, loss="" if loss is None else f"{loss:.4g}", rate=rate)

        yield update
