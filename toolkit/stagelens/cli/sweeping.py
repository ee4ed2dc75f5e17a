"""`sweep`: many runs over a grid, their table, and the law in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.listing import Json
from stagelens.cli.main import app
from stagelens.cli.running import INTERRUPTED, Runs, end_with
from stagelens.cli.state import State

if TYPE_CHECKING:
    from stagelens.sweeps import Sweep, SweepPlan, Tally, Watch

SHOWN = 40  # rows of the table that a person is shown


@app.command()
def sweep(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's id, or a plugin's name for its default task.")],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GRID",
            help="k=a,b,c; k=first:last:step; k=log:first:last:count; k1,k2=a:b,c:d; a yaml file. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Seeds of every point: 0 to N - 1.")] = 1,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M", help="loss:final, loss:best, NAME:stage2, plateau_length@0.1, transition1, stages, event:NAME."
        ),
    ] = None,
    fit: Annotated[
        str | None, typer.Option(metavar="K1,K2", help="Fit the first measure as a product of powers of these.")
    ] = None,
    preset: Annotated[str, typer.Option(help="The preset that the grid is laid over.")] = "quick",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a config key of every point; may be repeated."),
    ] = None,
    executor: Annotated[str, typer.Option(help="local: processes on this machine; ray: a cluster.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Points at a time (default: one per core).")] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a ray cluster: host:port, ray://host:port or auto (default: one made here).")
    ] = None,
    results: Annotated[
        str, typer.Option(help="With ray: runs are written to a `shared` folder, or `returned` and written here.")
    ] = "shared",
    ensemble: Annotated[bool, typer.Option(help="Train a point's seeds as one where the model can be stacked.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")] = "auto",
    probes: Annotated[str | None, typer.Option(help="Probes, separated by commas (default: the task's).")] = None,
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The sweep's name (default: after its content).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the points and the time they need; run none.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run even more than 10000 points.")] = False,
    json: Json = False,
) -> None:
    """Run a task over a grid; fit the law in it.

    It gives a table, pictures and, with --fit, a power law with intervals.

    Points that are there are not run again: a repeated or interrupted sweep goes on with what is missing.

    Example: stagelens sweep recall/flow --grid order=3,4,5 --grid responses=4:16:4 --measure transition1 --fit order
    """
    from stagelens.base import cores
    from stagelens.sweeps import check_columns, execute, gather, parse_columns, parse_measure, plan_sweep
    from stagelens.sweeps.executors import make_executor

    state: State = context.obj
    measures = [parse_measure(text) for text in measure or ["loss:final"]]
    columns = parse_columns(fit)
    if not json and output.is_terminal():
        typer.secho("loading the task ...", dim=True, err=True)
    plan = plan_sweep(
        task,
        grid or [],
        seeds=seeds,
        preset=preset,
        settings=set_ or [],
        runs=runs,
        device=device,
        probes=probes.split(",") if probes else None,
        ensemble=ensemble,
        yes=yes,
        host=state.host,
        plugin_dirs=state.plugin_dirs,
    )
    check_columns(plan, columns)
    if plan.warning:
        output.warn(plan.warning)
    if dry_run:
        _show_plan(plan, workers or cores(), json)
        return
    made = make_executor(executor, workers, address, results)
    try:
        with _watching(f"{task} sweep", plan) as watch:
            failures = execute(plan, made, watch, measures)
    except KeyboardInterrupt:
        done = sum(plan.status(point) == "finished" for point in plan.points)
        output.warn(f"interrupted: {done} of {len(plan.points)} points are done; the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    swept = gather(plan, measures, columns, failures, name)
    if json:
        output.print_json(swept.to_dict())
    else:
        _show(swept)
    if swept.fit_error:
        output.complain(f"no law: {swept.fit_error}")
        raise typer.Exit(1 if "fit" in swept.noted else 2)
    if swept.failed:
        raise typer.Exit(1)
    end_with(swept.noted.values())


def _show_plan(plan: SweepPlan, workers: int, json: bool) -> None:
    """The points, which of them are there, and how long the others will take."""
    from stagelens.sweeps import estimate

    guess = estimate(plan, workers)
    rows = [point.settings | {"seed": point.seed, "status": plan.status(point)} for point in plan.points]
    missing = sum(row["status"] != "finished" for row in rows)
    if json:
        sums = {"points": len(rows), "missing": missing, "seconds": guess.seconds, "basis": guess.basis}
        output.print_json(sums | {"table": rows})
        return
    _print_rows(rows[:SHOWN], [*plan.grid.keys, "seed", "status"], len(rows))
    output.say(f"\n{len(rows)} points, {missing} missing")
    output.say(f"about {_duration(guess.seconds)} on {workers} workers ({guess.basis})")


def _show(swept: Sweep) -> None:
    """The problems, the table, the law, what failed and how to repeat it, and where the files are."""
    for line, runs in swept.problems.items():
        output.say(output.one_line(f"problem: {line}" + (f" ({len(runs)} points)" if runs else "")))
    _print_rows(
        [_seen(swept, row) for row in swept.rows[:SHOWN]],
        [*swept.plan.grid.keys, "seed", *swept.measures, "status"],
        len(swept.rows),
    )
    output.say(f"\n{len(swept.rows)} points, {len(swept.done)} done, {len(swept.failed)} failed")
    for measure, count in swept.censored.items():
        unseen = "; no law sees them" if swept.fit and measure == swept.measures[0] else ""
        output.say(f"{count} points are censored: they never reached {measure}{unseen}")
    for reason, count in Counter(row["reason"] for row in swept.rows if row["reason"]).items():
        output.say(f"{count} points without a value: {reason}")
    if swept.law is not None:
        output.say(f"{swept.measures[0]} = {swept.law}")
        if not swept.law.problem:
            output.say(f"  in brackets: 95% confidence intervals over {swept.law.grid_points} grid points")
    for failure in swept.failed:
        output.say(f"{_failed(failure['point'], failure['reason'])}\n  again: {failure['command']}")
    output.say(str(swept.folder))


def _seen(swept: Sweep, row: dict[str, Any]) -> dict[str, Any]:
    """A row for a person: what is censored is more than it says."""
    limits = [m for m in swept.measures if row.get(swept.censored_in(m)) and row[m] is not None]
    return row | {measure: f"> {output.show(row[measure])}" for measure in limits}


def _print_rows(rows: list[dict[str, Any]], columns: list[str], of: int) -> None:
    output.print_table(columns, [[row[column] for column in columns] for row in rows])
    if len(rows) < of:
        output.say(f"... and {of - len(rows)} more; --json lists all")


def _failed(point: Mapping[str, Any], reason: str) -> str:
    return output.one_line(f"failed: {' '.join(f'{key}={value}' for key, value in point.items())}: {reason}")


@contextmanager
def _watching(label: str, plan: SweepPlan) -> Iterator[Watch]:
    """On stderr a line for each failure as it comes, and where a person can see it a bar below them."""
    points = {point.name: point.settings | {"seed": point.seed} for point in plan.points}

    def failures(tally: Tally) -> list[str]:
        return [_failed(points[name], reason) for name, reason in tally.failures.items()]

    def tell(tally: Tally) -> None:
        for line in failures(tally):
            typer.echo(line, err=True)

    with _bar(label, failures) if output.is_terminal() else nullcontext(tell) as watch:
        yield watch


@contextmanager
def _bar(label: str, failures: Callable[[Tally], list[str]]) -> Iterator[Watch]:
    """A bar of the points done, with points per minute and time left, and above it a line for each failure."""
    import time

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class Left(ProgressColumn):
        """The time left, counted down between one point and the next."""

        def render(self, task: Task) -> Text:
            end = task.fields["end"]
            return Text(f"left {_duration(max(0.0, end - time.monotonic()))}" if end else "")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        Left(),
    )
    started, failed = time.monotonic(), 0
    with Progress(*columns, console=Console(stderr=True)) as bar:
        row = bar.add_task(label, total=None, rate="", end=None)

        def watch(tally: Tally) -> None:
            nonlocal failed
            failed += len(tally.failures)
            for line in failures(tally):
                bar.console.print(line, markup=False, highlight=False)
            now = time.monotonic()
            new, rest = tally.done - tally.found + failed, tally.points - tally.done - failed
            rate = f"{60 * new / (now - started):.0f} points/min" if new else ""
            end = now + (now - started) / new * rest if new and rest else None
            words = f"{label}, {failed} failed" if failed else label
            bar.update(row, completed=tally.done + failed, total=tally.points, rate=rate, end=end, description=words)

        yield watch


def _duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
