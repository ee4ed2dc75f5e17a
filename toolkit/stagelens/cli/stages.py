"""`stagelens stages`: the stages of one curve of a run, or of a csv file. It needs neither torch nor a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

import typer

from stagelens.cli import output
from stagelens.cli.completing import complete_run, complete_series
from stagelens.cli.options import Json, Runs

if TYPE_CHECKING:
    from stagelens.runs import Run
    from stagelens.stages import JointStages, Stages


class Settings(TypedDict, total=False):
    """The settings of `detect_stages` that were given; the others are those of the run's task, or the defaults."""

    axis: Literal["auto", "linear", "log"]
    min_drop: float
    significance: float


EACH = "*"  # instead of a label: one curve for each element of the dim
MOST_SERIES = 12  # that move in a transition of the whole model; `--json` prints all numbers
COLUMNS = ("kind", "start", "end", "level", "drop", "at", "name")


def stages(
    curve: Annotated[
        str,
        typer.Argument(metavar="RUN_or_CSV", help="A run, or a csv file with step,value.", autocompletion=complete_run),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A series of the run, PROBE/READING[dim=label] or [dim=*], or a column (default: the run's metric).",
            autocompletion=complete_series,
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="NAME", help="The step column of a csv file (default: found by its name).")
    ] = None,
    joint: Annotated[
        bool, typer.Option("--joint", help="Stages of the whole model, from all readings of the run together.")
    ] = False,
    axis: Annotated[
        Literal["auto", "linear", "log"] | None,
        typer.Option(help="On which steps are measured.", show_default="the task's, or auto"),
    ] = None,
    min_drop: Annotated[
        float | None,
        typer.Option(
            "--min-drop",
            min=0,
            help="The least drop, as a fraction of the range.",
            show_default="the task's, or 0.01",
        ),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--strength",
            min=0,
            help="The least drop, in standard errors of the plateaus next to it.",
            show_default="the task's, or 3",
        ),
    ] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Find the stages of a run, or of any curve.

    Example: stagelens stages losses.csv
    """
    given = {"axis": axis, "min_drop": min_drop, "significance": strength}
    settings = cast("Settings", {key: value for key, value in given.items() if value is not None})
    if joint:
        _show_joint(_joint_of(curve, metric, step, runs, settings), json)
        return
    if _is_csv(curve):
        several = [_of_csv(Path(curve), metric, step, settings)]
    else:
        several = _of_run(curve, metric, step, runs, settings)
    if json:
        output.print_json(several if metric is not None and f"={EACH}" in metric else several[0])
        return
    for number, found in enumerate(several):
        if number:
            output.say("")
        _show(found)


def _show(found: dict[str, Any]) -> None:
    """Prints the stages of one curve as a table."""
    rule = f" ({found['rule']})" if found["rule"] else ""
    rows = [[stage.get(column) for column in COLUMNS] for stage in found["stages"]]
    output.print_table(["stage", *COLUMNS[1:]], rows, f"stages of {found['metric']}{rule}")
    if not found["transitions"]:
        output.say(found["explanation"])


def _is_csv(given: str) -> bool:
    """True if `given` is an existing file, or has the ending of a csv file and is not a directory."""
    path = Path(given)
    return path.is_file() or (path.suffix.lower() in (".csv", ".tsv", ".txt") and not path.is_dir())


def _of_csv(path: Path, metric: str | None, step: str | None, settings: Settings) -> dict[str, Any]:
    from stagelens.stages import detect_stages
    from stagelens.timelines import read_curve

    curve = read_curve(path, metric, step)
    return _answer(curve.metric, "", detect_stages(curve.steps, curve.values, **settings))


def _of_run(
    name: str, metric: str | None, step: str | None, runs: Path | None, settings: Settings
) -> list[dict[str, Any]]:
    """Returns the answer for the curve that `metric` names; with `[dim=*]` for each of its curves."""
    from stagelens.base import UsageError
    from stagelens.comparing import Members
    from stagelens.runs import load
    from stagelens.timelines import curve_name, curves_of, one_curve

    if step is not None:
        raise UsageError(f"--step {step} names a column of a csv file, and {name!r} is a run; leave it out")
    run = load(name, runs)
    Members.open(run)  # an error if nothing was measured yet
    wanted = metric or run.manifest.metric
    chosen = curve_name(wanted, run.timeline)
    if EACH in chosen.place.values():
        curves = curves_of(run.timeline.column(chosen.series), place=chosen.place, is_mean=chosen.is_mean)
    else:
        curves = [one_curve(run.timeline, wanted)]
    return [_answer(curve.name, curve.rule, run.stages(curve.name, **settings)) for curve in curves]


def _joint_of(
    name: str, metric: str | None, step: str | None, runs: Path | None, settings: Settings
) -> tuple[Run, JointStages]:
    from stagelens.base import UsageError
    from stagelens.comparing import Members
    from stagelens.runs import load

    if _is_csv(name):
        raise UsageError(f"--joint takes all readings of a run, and {name!r} is a csv file; give a run")
    if metric is not None or step is not None:
        raise UsageError("--joint takes all readings; leave out --metric and --step")
    run = load(name, runs)
    Members.open(run)  # an error if nothing was measured yet
    return run, run.joint_stages(**settings)


def _show_joint(found: tuple[Run, JointStages], json: bool) -> None:
    """Prints the stages of the whole model; for people, the readings that move in each, one line per series."""
    from stagelens.stages import series_moved

    run, stages = found
    if json:
        output.print_json(_answer("all", "", stages))
        return
    rows = [[one.kind, one.start, one.end, one.at, one.name] for one in stages]
    output.print_table(["stage", "start", "end", "at", "name"], rows, f"stages of {run.name}, all readings together")
    for one in stages.transitions:
        moved = [[s.series, s.count, s.first, s.last, s.strongest, s.strength] for s in series_moved(one)]
        title = f"readings that move around {output.show(one.at)}"
        output.say("")
        columns = ["series", "numbers", "first at", "last at", "strongest", "times its wander"]
        output.print_table(columns, moved[:MOST_SERIES], title)
        if len(moved) > MOST_SERIES:
            output.say(f"and {len(moved) - MOST_SERIES} more series: add --json")
    output.say(stages.explanation)


def _answer(metric: str, rule: str, found: Stages) -> dict[str, Any]:
    """Returns what `--json` prints. `rule` says how several numbers per step became one; empty if there was one."""
    return {
        "metric": metric,
        "rule": rule,
        "stages": found.to_dicts(),
        "transitions": [float(transition.at) for transition in found.transitions],
        "explanation": found.explanation,
    }
