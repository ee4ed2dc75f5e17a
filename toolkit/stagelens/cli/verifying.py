"""`verify`: the papers' claims, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.base import unknown
from stagelens.cli import output
from stagelens.cli.listing import Json
from stagelens.cli.main import app
from stagelens.cli.running import INTERRUPTED
from stagelens.cli.state import State

if TYPE_CHECKING:
    from stagelens.claims import Check, Chosen, Result, Watch


@app.command()
def verify(
    context: typer.Context,
    plugins: Annotated[
        list[str] | None, typer.Argument(metavar="PLUGIN", help="Plugins (default: all that have claims).")
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option("--claim", metavar="ID", help="Only this claim; may be repeated.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="quick: a laptop, minutes; paper: the paper's own sizes, on a GPU.")
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each claim (default: as the claim says).")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where runs are kept (default: $STAGELENS_CACHE or the user's cache)."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Claims at a time (default: one per core, or one where there is an accelerator)."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a claim that raises.")] = False,
    json: Json = False,
) -> None:
    """Check the claims of the papers.

    What was measured stands beside what the paper says.

    Runs are kept and shared: what was trained once is not trained again until something that it depends on changes.

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
    with _bar(len(chosen)) as (entering, finished, watch):
        verdicts = verify_claims(
            entering(chosen) if at_a_time == 1 else chosen,
            state.host,
            budget=budget,
            seeds=seeds,
            cache=cache,
            watch=watch,
            workers=at_a_time,
            plugin_dirs=state.plugin_dirs,
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
    for result in results:
        if debug and result.traceback:
            typer.echo(f"{result.id}:\n{result.traceback}", err=True)
    if interrupted:
        output.warn("interrupted; what was trained is kept, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED)
    if any(result.verdict == "error" for result in results):
        raise typer.Exit(1)


def _workers() -> int:
    """One for each core; an accelerator is not shared."""
    from stagelens.base import cores, resolve_device

    return cores() if resolve_device("auto").type == "cpu" else 1


def _show(results: list[Result]) -> None:
    """A row for each check, then one line for each claim that needs words, then the sum."""
    if not results:
        output.say("no plugin brings a claim; `stagelens plugins` lists the plugins")
        return
    columns = ["claim", "check", "measured", "expected", "tolerance", "reference", "seeds", "verdict"]
    output.print_table(columns, [row for result in results for row in _rows(result)])
    output.say("")
    for result in results:
        words = {"error": result.error, "needs budget": "run it with --budget paper"}.get(result.verdict)
        output.say(
            f"{result.id} {result.verdict}: {result.title} ({result.seconds:.0f} s)" + (f": {words}" if words else "")
        )
    counts: dict[str, int] = {}
    for result in results:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
    output.say(f"\n{len(results)} claims: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _rows(result: Result) -> Iterator[list[Any]]:
    for check in result.checks:
        yield [
            result.id,
            check.what,
            _value(check.measured),
            _value(check.expected),
            check.tolerance,
            check.reference,
            _seeds(check),
            ("holds" if check.holds else "differs") if check.judged else "",
        ]
    if not result.checks or result.verdict == "error":
        yield [result.id, result.title, "", "", "", result.reference, "", result.verdict]


def _seeds(check: Check) -> str:
    """How many of the seeds hold."""
    return f"{sum(check.seeds.values())} of {len(check.seeds)}" if check.seeds else ""


def _value(value: Any) -> str:
    """Lists in brackets where they are nested, so that one seed's numbers are told from the next's."""
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return " ".join(f"[{output.show(item)}]" for item in value)
    return output.show(value)


Entering = Callable[["list[Chosen]"], "Iterator[Chosen]"]


@contextmanager
def _bar(total: int) -> Iterator[tuple[Entering, Callable[[int], None], Watch | None]]:
    """A bar of the claims done, with time left, over a bar of the run in hand; on stderr, where a person can see it."""
    if not output.is_terminal():
        yield iter, lambda number: None, None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        claims = bar.add_task("claims", total=total, left="")
        run = bar.add_task("", total=None, visible=False, left="")
        running = ""

        def show(row: Any, done: float, of: float, label: str) -> None:
            left = _left(bar.tasks[row].elapsed or 0.0, done, of)
            bar.update(row, completed=done, total=of, description=label, left=left, visible=True)

        def entering(chosen: list[Chosen]) -> Iterator[Chosen]:
            for number, claim in enumerate(chosen):
                show(claims, number, total, f"{claim.plugin} {claim.ref.id}: {claim.ref.title}")
                yield claim
            show(claims, total, total, "claims")

        def finished(number: int) -> None:
            show(claims, number, total, bar.tasks[claims].description)

        def watch(label: str, step: float, steps: float) -> None:
            nonlocal running
            if label != running or step < bar.tasks[run].completed:
                running = label
                bar.reset(run)
            show(run, step, steps, f"  {label}")

        yield entering, finished, watch


def _left(elapsed: float, done: float, of: float) -> str:
    """The time left if the rest goes as what is done; rich's own estimate forgets after half a minute."""
    if not done or done >= of:
        return ""
    minutes, seconds = divmod(round(elapsed / done * (of - done)), 60)
    return f"left {minutes}:{seconds:02d}"
