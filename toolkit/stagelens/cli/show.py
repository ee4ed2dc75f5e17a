"""`stagelens show`: the summary of one run. It needs neither torch nor a plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stagelens.cli import output
from stagelens.cli.options import Json, RunArgument, Runs

if TYPE_CHECKING:
    from stagelens.runs import Run

MOST_EVENTS = 12  # of the probes; `--json` prints all
LONGEST = 90  # characters of a reading that is printed; `--json` prints all


def show(run: RunArgument, runs: Runs = None, json: Json = False) -> None:
    """Show one run: status, stages, phases, last readings.

    Example: stagelens show markov-minimal-quick-seed0
    """
    from stagelens.runs import load

    opened = load(run, runs)
    if json:
        output.print_json(opened.summary())
    else:
        show_summary(opened)


def show_problems(runs: Iterable[Run]) -> None:
    """Prints what failed in the runs, one line each. It comes first: the numbers below it may be incomplete."""
    for reason in dict.fromkeys(reason for run in runs for reason in run.problems.values()):
        output.say(output.one_line(f"problem: {reason}"))


def show_summary(run: Run) -> None:
    """Prints the summary of a run: what happened, tables of what was found, and the files."""
    summary = run.summary()
    show_problems([run])
    _show_head(run, summary)
    stages, metric = summary["stages"], summary["metric"]
    _show_table(stages, ("kind", "start", "end", "level", "drop", "name"), f"stages of {metric}", kind="stage")
    for difference in summary["stage_differences"]:
        output.say(f"{difference}\n")
    _show_table(summary["nearest"], ("reference", "start", "end"), "nearest reference predictor")
    _show_table(summary["phases"], ("phase", "start", "end", "layer"), "phases of head specialization")
    events = summary["probe_events"]
    _show_table(events[:MOST_EVENTS], ("step", "series", "what"), "events in the readings", what="event")
    if len(events) > MOST_EVENTS:
        output.say(f"and {len(events) - MOST_EVENTS} more: add --json\n")
    predictions = [p | {"measured": p.get("note") or p["measured"]} for p in summary["predictions"]]
    columns = ("name", "expected", "measured", "error", "reference", "compared_with")
    _show_table(predictions, columns, "theory", name="prediction", compared_with="compared with")
    small = [[name, v] for name, v in summary["final"].items() if not isinstance(v, list) or len(str(v)) < LONGEST]
    output.print_table(["reading", "last value"], small)
    for name, reason in summary["skipped"].items():
        what = f"reading {name} is omitted" if "/" in name else f"probe {name} does not apply"
        output.say(f"\n{what}: {reason}")
    for file in sorted([*run.folder.glob("report.html"), *run.folder.glob("figures/*.png")]):
        output.say(f"\n{file}" if file.suffix == ".html" else f"{file}")
    show_formed(summary["formed"])


def show_formed(formed: list[dict[str, Any]]) -> None:
    """Prints what formed in the heads and when, one line per probe. It comes last, where a reader looks first."""
    if formed:
        output.say("\nwhat formed when\n" + "\n".join(f"  {one['what']}" for one in formed))


def _show_head(run: Run, summary: dict[str, Any]) -> None:
    seed = "" if summary["seed"] is None else f", seed {summary['seed']}"
    output.say(f"{summary['name']}: {summary['task']}{seed}, {summary['status']}")
    compiling = run.manifest.compile_seconds
    compiled = "" if compiling is None else f", {compiling:.1f} s of them compiling"
    done = f"{output.show(summary['step'])} of {summary['steps']:g} steps"
    output.say(f"{done} in {summary['seconds']:.1f} s on {summary['device']}{compiled}\n")
    for warning in summary["warnings"]:
        output.warn(warning)
    if "measured_on" in summary["config"]:
        output.say(f"measured on {summary['config']['measured_on']}\n")


def _show_table(rows: list[dict[str, Any]], columns: tuple[str, ...], title: str, **headings: str) -> None:
    """Prints the rows under a title, and an empty line; nothing if there are none. Headings are the keys by default."""
    if rows:
        titles = [headings.get(column, column) for column in columns]
        output.print_table(titles, [[row.get(column) for column in columns] for row in rows], title)
        output.say("")
