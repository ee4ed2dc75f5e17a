"""`stagelens verify`: checks the papers' claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.base import unknown
from stagelens.cli import output
from stagelens.cli.completing import complete_budget, complete_claim, complete_plugin
from stagelens.cli.options import Json, State
from stagelens.cli.output import INTERRUPTED
from stagelens.cli.progress import claims_progress

if TYPE_CHECKING:
    from stagelens.claims import Check, Result


def verify(
    context: typer.Context,
    plugins: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PLUGIN", help="Plugins (default: all that have claims).", autocompletion=complete_plugin
        ),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option("--claim", metavar="ID", help="Only this claim; may be repeated.", autocompletion=complete_claim),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            help="quick: a laptop, minutes; long: up to 20 minutes per claim; paper: its own sizes, on a GPU.",
            autocompletion=complete_budget,
        ),
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds of each claim (default: as the claim defines).")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The cache of runs (default: $STAGELENS_CACHE or the user's cache)."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Claims at a time (default: one per core, or one if there is an accelerator)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the verdicts of this budget that are still valid; verify the others.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a claim that raises.")] = False,
    json: Json = False,
) -> None:
    """Check the claims of the papers.

    It prints what was measured next to what the paper says.

    Runs are cached and shared: a run is trained again only when something that it depends on changes. Each verdict is
    stored when it is decided: after an interruption, --resume continues with the claims that have none.

    Example: stagelens verify markov --claim M1 --seeds 5
    """
    from stagelens.claims import BUDGETS, choose, verify as verify_claims

    state: State = context.obj
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    chosen = choose(state.host, plugins or [], claim or [])
    results: list[Result] = []
    interrupted = False
    at_a_time = min(workers or _workers(), len(chosen)) or 1
    with claims_progress(len(chosen)) as (entering, finished, watch):
        verdicts = verify_claims(
            entering(chosen) if at_a_time == 1 else chosen,
            state.host,
            budget=budget,
            seeds=seeds,
            cache=cache,
            watch=watch,
            workers=at_a_time,
            plugin_dirs=state.plugin_dirs,
            resume=resume,
        )
        try:
            for result in verdicts:
                results.append(result)
                finished(len(results))
        except KeyboardInterrupt:
            interrupted = True
    order = [claim.ref.id for claim in chosen]
    results.sort(key=lambda result: order.index(result.id))
    if json:
        output.print_json([result.to_dict() for result in results])
    else:
        _show(results)
    if debug:
        for result in results:
            if result.traceback:
                output.err(f"{result.id}:\n{result.traceback}")
    if interrupted:
        output.warn("interrupted; verdicts and runs are cached, and the same command with --resume continues")
        raise typer.Exit(INTERRUPTED)
    if any(result.verdict == "error" for result in results):
        raise typer.Exit(1)


def _workers() -> int:
    """Returns the number of cores, or 1 if there is an accelerator, which claims cannot share."""
    from stagelens.base import cores, resolve_device

    return cores() if resolve_device("auto").type == "cpu" else 1


def _show(results: list[Result]) -> None:
    """Prints a row for each check, a line for each claim, and the number of claims with each verdict."""
    if not results:
        output.say("no plugin registers a claim; `stagelens plugins` lists the plugins")
        return
    columns = ["claim", "check", "measured", "expected", "tolerance", "reference", "seeds", "verdict"]
    output.print_table(columns, [row for result in results for row in _rows(result)])
    if sanity := [_row(result, check) for result in results for check in result.checks if check.sanity]:
        output.say("\nSanity checks: identities, which must hold but are no evidence")
        output.print_table(columns, sanity)
    output.say("")
    for result in results:
        reason = {"error": result.error, "needs budget": result.needs, "differs": result.reason}.get(result.verdict, "")
        line = f"{result.id} {result.verdict}: {result.title} ({result.seconds:.0f} s)"
        output.say(f"{line}: {reason}" if reason else line)
    counts = Counter(result.verdict for result in results)
    output.say(f"\n{len(results)} claims: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _rows(result: Result) -> Iterator[list[Any]]:
    yield from (_row(result, check) for check in result.checks if not check.sanity)
    if not result.checks or result.verdict == "error":
        yield [result.id, result.title, "", "", "", result.reference, "", result.verdict]


def _row(result: Result, check: Check) -> list[Any]:
    return [
        result.id,
        check.what,
        _value(check.measured) + _interval(check),
        _value(check.expected),
        check.tolerance,
        check.reference,
        _seeds(check),
        check.verdict,
    ]


def _interval(check: Check) -> str:
    return f" [{output.show(list(check.interval))}]" if check.interval else ""


def _seeds(check: Check) -> str:
    """Returns in how many seeds the check holds."""
    return f"{sum(check.seeds.values())} of {len(check.seeds)}" if check.seeds else ""


def _value(value: Any) -> str:
    """Returns `value` as text. Nested lists are in brackets, which separate the numbers of the seeds."""
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return " ".join(f"[{output.show(item)}]" for item in value)
    return output.show(value)
