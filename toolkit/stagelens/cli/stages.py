"""`stagelens stages`: the stages of one curve of a run, or of a csv file. It needs neither torch nor a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import typer

from stagelens.cli import output
from stagelens.cli.options import Json, Runs

if TYPE_CHECKING:
    from stagelens.stages import Stages


class Settings(TypedDict):
    """The settings of `detect_stages`."""

    axis: Literal["auto", "linear", "log"]
    min_drop: float
    significance: float


COLUMNS = ("kind", "start", "end", "level", "drop", "at", "name")


def stages(
    curve: Annotated[str, typer.Argument(metavar="RUN_or_CSV", help="A run, or a csv file with step,value.")],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A series of the run, PROBE/READING[dim=label], or a column (default: the run's metric).",
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="NAME", help="The step column of a csv file (default: found by its name).")
    ] = None,
    axis: Annotated[Literal["auto", "linear", "log"], typer.Option(help="On which steps are measured.")] = "auto",
    min_drop: Annotated[
        float, typer.Option("--min-drop", min=0, help="The least drop, as a fraction of the range.")
    ] = 0.01,
    strength: Annotated[
        float, typer.Option("--strength", min=0, help="The least drop, in standard errors of the plateaus next to it.")
    ] = 3.0,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Find the stages of a run, or of any curve.

    Example: stagelens stages losses.csv
    """
    settings: Settings = {"axis": axis, "min_drop": min_drop, "significance": strength}
    if _is_csv(curve):
        found = _of_csv(Path(curve), metric, step, settings)
    else:
        found = _of_run(curve, metric, step, runs, settings)
    if json:
        output.print_json(found)
        return
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


def _of_run(name: str, metric: str | None, step: str | None, runs: Path | None, settings: Settings) -> dict[str, Any]:
    from stagelens.base import UsageError
    from stagelens.comparing import Members
    from stagelens.runs import load
    from stagelens.timelines import one_curve

    if step is not None:
        raise UsageError(f"--step {step} names a column of a csv file, and {name!r} is a run; leave it out")
    run = load(name, runs)
    Members.open(run)  # an error if nothing was measured yet
    curve = one_curve(run.timeline, metric or run.manifest.metric)
    return _answer(curve.name, curve.rule, run.stages(curve.name, **settings))


def _answer(metric: str, rule: str, found: Stages) -> dict[str, Any]:
    """Returns what `--json` prints. `rule` says how several numbers per step became one; empty if there was one."""
    return {
        "metric": metric,
        "rule": rule,
        "stages": found.to_dicts(),
        "transitions": [float(transition.at) for transition in found.transitions],
        "explanation": found.explanation,
    }
