"""`run`: train or integrate, probe, find the stages, report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagelens.cli import output
from stagelens.cli.listing import Json
from stagelens.cli.main import app
from stagelens.cli.state import State

if TYPE_CHECKING:
    from stagelens.running import Progress

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
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")] = "auto",
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The run's name (default: task, preset and seed).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run where it stopped.")] = False,
    probes: Annotated[str | None, typer.Option(help="Probes, separated by commas (default: the task's).")] = None,
    json: Json = False,
) -> None:
    """Train or integrate a task, probe it, find its stages, and write a report.

    Example: stagelens run markov --seed 1 --set steps=800
    """
    state: State = context.obj
    state.host.task(task)  # a wrong name is told before anything heavy is imported
    if not json and output.is_terminal():
        typer.secho("loading torch and TransformerLens ...", dim=True, err=True)
    from stagelens.running import run as run_task

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
            probes=probes.split(",") if probes else None,
            host=state.host,
            progress=progress,
        )
    if json:
        output.print_json(done.summary())
    else:
        from stagelens.cli.inspecting import show_summary

        show_summary(done)
    if done.manifest.status == "failed":
        output.complain(done.manifest.error)
        raise typer.Exit(1)
    if done.manifest.status == "interrupted":
        output.warn(f"interrupted at step {done.manifest.step:g}; go on with the same command and --resume")
        raise typer.Exit(INTERRUPTED)


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
