"""`stagelens run`: trains or integrates a task, with one seed or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.base import UsageError
from stagelens.cli import output
from stagelens.cli.compare import show_comparison
from stagelens.cli.completing import complete_preset
from stagelens.cli.options import Device, Json, Probes, Runs, Settings, State, TaskArgument, names
from stagelens.cli.output import INTERRUPTED, exit_with
from stagelens.cli.progress import run_progress
from stagelens.cli.show import show_problems, show_summary
from stagelens.host import importing

if TYPE_CHECKING:
    from stagelens.runs import Run
    from stagelens.training import Ensemble


def run(
    context: typer.Context,
    task: TaskArgument,
    preset: Annotated[
        str,
        typer.Option(
            help="quick: a laptop, about a minute; paper: the paper's own sizes.", autocompletion=complete_preset
        ),
    ] = "quick",
    set_: Settings = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of initialization, data and evaluation.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Train N seeds, from --seed on.")] = 1,
    ensemble: Annotated[bool, typer.Option(help="With --seeds: train them together if the model allows it.")] = True,
    device: Device = "auto",
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The run's name (default: task, preset and seed).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run from its last checkpoint.")] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the run of that name. The old run is deleted when this one finishes."),
    ] = False,
    probes: Probes = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the training step with torch.compile; pays off in long runs.")
    ] = False,
    json: Json = False,
) -> None:
    """Train or integrate a task; probe and report.

    Example: stagelens run markov --seed 1 --set steps=800
    """
    state: State = context.obj
    state.host.task(task)  # an unknown name is an error before anything heavy is imported
    if compile and seeds > 1:
        raise UsageError("--compile is for one seed; give either --compile or --seeds")
    if not json:
        output.loading("torch and TransformerLens")
    options = {
        "preset": preset,
        "settings": set_ or [],
        "device": device,
        "runs": runs,
        "name": name,
        "resume": resume,
        "probes": names(probes),
        "host": state.host,
        "replace": replace,
        "notify": output.note,
    }
    if seeds > 1:
        _run_seeds(task, range(seed, seed + seeds), json, options | {"ensemble": ensemble})
    else:
        _run_seed(task, seed, json, options | {"compile": compile})


def _run_seed(task: str, seed: int, json: bool, options: dict[str, Any]) -> None:
    with importing():
        from stagelens.api import run as run_task

    with run_progress(f"{task} seed {seed}") as progress:
        done = run_task(task, seed=seed, progress=progress, **options)
    if json:
        output.print_json(done.summary())
    else:
        show_summary(done)
    _exit_as([done], options["replace"])


def _run_seeds(task: str, seeds: range, json: bool, options: dict[str, Any]) -> None:
    """Runs several seeds with one report and one table for all; `stagelens report RUN` writes the report of one."""
    with importing():
        from stagelens.api import run_ensemble

    with run_progress(f"{task} seeds {seeds[0]}..{seeds[-1]}") as progress:
        done = run_ensemble(task, seeds=seeds, progress=progress, **options)
    if done.alone and options["ensemble"]:
        output.warn(f"the seeds were run one by one: {done.alone}")
    if json:
        answer = {"task": done[0].manifest.task, "seeds": list(seeds), "together": not done.alone, "alone": done.alone}
        output.print_json(answer | {"page": str(done.page or ""), "runs": [run.summary() for run in done]})
    else:
        _show_seeds(done)
    _exit_as(done, options["replace"], done.noted.values())


def _show_seeds(done: Ensemble) -> None:
    """Prints the problems of the runs, their comparison, and the paths of runs and report."""
    from stagelens.comparing import align_runs

    show_problems(done)
    if done.page is not None:
        show_comparison(align_runs([run for run in done if len(run.timeline.steps)]))
        output.say("\n".join(["", *(str(run.folder) for run in done), str(done.page)]))


def _exit_as(runs: Iterable[Run], replace: bool, problems: Iterable[str] = ()) -> None:
    """Exits with 1 if a run failed or a plugin's code did, with 130 if a run was interrupted; else returns."""
    runs = list(runs)
    statuses = {run.manifest.status: run.manifest for run in runs}
    if failed := statuses.get("failed"):
        output.complain(failed.error)
        raise typer.Exit(1)
    if interrupted := statuses.get("interrupted"):
        instead = " instead of --replace" if replace else ""
        output.warn(f"interrupted at step {interrupted.step:g}; resume it with the same command and --resume{instead}")
        raise typer.Exit(INTERRUPTED)
    exit_with([*(problem for run in runs for problem in run.manifest.plugin_problems.values()), *problems])
