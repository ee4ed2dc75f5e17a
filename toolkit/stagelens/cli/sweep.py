"""`stagelens sweep`: many runs over a grid, their table, and the power law fitted to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.completing import (
    complete_executor,
    complete_fit,
    complete_key,
    complete_measure,
    complete_preset,
    complete_results,
)
from stagelens.cli.options import Device, Json, Probes, Runs, State, TaskArgument, names
from stagelens.cli.output import INTERRUPTED, exit_with
from stagelens.cli.progress import duration, sweep_progress

if TYPE_CHECKING:
    from stagelens.sweeps import Measure, Sweep, SweepPlan
    from stagelens.sweeps.executors import Executor

SHOWN = 40  # rows that are printed; `--json` prints all


def sweep(
    context: typer.Context,
    task: TaskArgument,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GRID",
            help="k=a,b,c; k=first:last:step; k=log:first:last:count; k1,k2=a:b,c:d; a yaml file. May be repeated.",
            autocompletion=complete_key,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Seeds of every grid point: 0 to N - 1.")] = 1,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M",
            help="loss:final, loss:best, NAME:stage2, plateau_length@0.1, transition1, stages, event:NAME.",
            autocompletion=complete_measure,
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="K1,K2", help="Fit the first metric as a product of powers of these.", autocompletion=complete_fit
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="The preset that the grid changes.", autocompletion=complete_preset)
    ] = "quick",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a config key of every grid point; may be repeated.",
            autocompletion=complete_key,
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="local: processes on this machine; ray: a cluster.", autocompletion=complete_executor)
    ] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Grid points at a time (default: one per core).")] = None,
    address: Annotated[
        str | None, typer.Option(help="The ray cluster: host:port, ray://host:port or auto (default: a local one).")
    ] = None,
    results: Annotated[
        str,
        typer.Option(
            help="With ray: workers write to a `shared` directory, or runs are `returned`.",
            autocompletion=complete_results,
        ),
    ] = "shared",
    ensemble: Annotated[bool, typer.Option(help="Vectorize the seeds of a grid point if the model allows it.")] = True,
    device: Device = "auto",
    probes: Probes = None,
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The sweep's name (default: after its content).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the grid points and estimate their time; run none.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run even more than 10000 grid points.")] = False,
    json: Json = False,
) -> None:
    """Run a task over a grid; fit a power law.

    The result is a table, figures and, with --fit, a power law with 95% confidence intervals.

    Completed grid points are reused: a repeated or interrupted sweep runs only what is missing.

    Example: stagelens sweep recall/flow --grid order=3,4,5 --grid responses=4:16:4 --measure transition1 --fit order
    """
    from stagelens.base import cores
    from stagelens.sweeps import check_columns, check_measures, gather, parse_columns, parse_measure, plan_sweep
    from stagelens.sweeps.executors import make_executor

    state: State = context.obj
    measures = [parse_measure(text) for text in measure or ["loss:final"]]
    columns = parse_columns(fit)
    if not json:
        output.loading("the task")
    plan = plan_sweep(
        task,
        grid or [],
        seeds=seeds,
        preset=preset,
        settings=set_ or [],
        runs=runs,
        device=device,
        probes=names(probes),
        ensemble=ensemble,
        yes=yes,
        host=state.host,
        plugin_dirs=state.plugin_dirs,
    )
    check_columns(plan, columns)
    check_measures(plan, measures)
    if plan.warning:
        output.warn(plan.warning)
    if dry_run:
        _show_plan(plan, workers or cores(), json)
        return
    failures = _execute(plan, make_executor(executor, workers, address, results), measures)
    swept = gather(plan, measures, columns, failures, name)
    if json:
        output.print_json(swept.to_dict())
    else:
        _show(swept)
    _exit_as(swept)


def _execute(plan: SweepPlan, executor: Executor, measures: list[Measure]) -> dict[str, str]:
    """Runs the missing grid points. Exits with 130 if that is interrupted."""
    from stagelens.sweeps import execute

    settings = {point.name: point.settings | {"seed": point.seed} for point in plan.points}
    try:
        with sweep_progress(f"{plan.task} sweep", lambda name, reason: _failed(settings[name], reason)) as watch:
            return execute(plan, executor, watch, measures)
    except KeyboardInterrupt:
        done = sum(plan.status(point) == "finished" for point in plan.points)
        output.warn(f"interrupted: {done} of {len(plan.points)} points are done; the same command resumes the sweep")
        raise typer.Exit(INTERRUPTED) from None


def _exit_as(swept: Sweep) -> None:
    """Exits with 2 if the fit is impossible, with 1 if a grid point or a plugin's code failed; else returns."""
    if swept.fit_error:
        output.complain(f"no power-law fit: {swept.fit_error}")
        raise typer.Exit(1 if "fit" in swept.noted else 2)
    if swept.failed:
        raise typer.Exit(1)
    exit_with(swept.noted.values())


def _show_plan(plan: SweepPlan, workers: int, json: bool) -> None:
    """Prints the grid points with their status, and an estimate of the time that the missing ones take."""
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
    output.say(f"about {duration(guess.seconds)} on {workers} workers ({guess.basis})")


def _show(swept: Sweep) -> None:
    """Prints problems, table, power law, failures with the command that repeats each, and the directory."""
    for line, runs in swept.problems.items():
        output.say(output.one_line(f"problem: {line}" + (f" ({len(runs)} points)" if runs else "")))
    _print_rows(
        [_seen(swept, row) for row in swept.rows[:SHOWN]],
        [*swept.plan.grid.keys, "seed", *swept.measures, "status"],
        len(swept.rows),
    )
    output.say(f"\n{len(swept.rows)} points, {len(swept.done)} done, {len(swept.failed)} failed")
    for measure, count in swept.censored.items():
        unseen = "; the fit leaves them out" if swept.fit and measure == swept.measures[0] else ""
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
    """Returns the row with `> value` for a censored metric: the value is a lower bound."""
    limits = [m for m in swept.measures if row.get(swept.censored_in(m)) and row[m] is not None]
    return row | {measure: f"> {output.show(row[measure])}" for measure in limits}


def _print_rows(rows: list[dict[str, Any]], columns: list[str], of: int) -> None:
    output.print_table(columns, [[row[column] for column in columns] for row in rows])
    if len(rows) < of:
        output.say(f"... and {of - len(rows)} more; --json lists all")


def _failed(point: Mapping[str, Any], reason: str) -> str:
    return output.one_line(f"failed: {' '.join(f'{key}={value}' for key, value in point.items())}: {reason}")
