"""`stagelens figure`: lists and draws the figures of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.base import EnvironmentFault, StagelensError, UsageError, unknown
from stagelens.cli import output
from stagelens.cli.completing import complete_budget, complete_figure, complete_plugin
from stagelens.cli.options import Json, State
from stagelens.cli.output import INTERRUPTED
from stagelens.cli.progress import run_progress

if TYPE_CHECKING:
    from stagelens.claims import ChosenFigure
    from stagelens.host import Host

ENDINGS = (".png", ".svg", ".pdf")


def figure(
    context: typer.Context,
    plugin: Annotated[
        str | None,
        typer.Argument(metavar="PLUGIN", help="A plugin (default: list all).", autocompletion=complete_plugin),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Figures to draw (default: list the plugin's).", autocompletion=complete_figure
        ),
    ] = None,
    to: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="The directory to write to, or a .png, .svg or .pdf file."),
    ] = Path(),
    budget: Annotated[
        str,
        typer.Option(
            help="Sizes of the runs. quick: a laptop, minutes; long: two cores; paper: its own sizes, on a GPU.",
            autocompletion=complete_budget,
        ),
    ] = "quick",
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The cache of runs (default: $STAGELENS_CACHE or the user's cache)."),
    ] = None,
    json: Json = False,
) -> None:
    """List and draw the figures of the papers.

    It trains the runs that a figure needs, or takes them from the cache that `stagelens verify` uses, too.

    Example: stagelens figure markov fig1
    """
    from stagelens.claims import BUDGETS, choose_figures

    state: State = context.obj
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    chosen = choose_figures(state.host, plugin, names or [])
    if not names:
        _list(chosen, json)
        return
    files = _files(chosen, to)
    rows = []
    for one, file in zip(chosen, files, strict=True):
        _draw(one, file, state.host, budget, cache)
        rows.append({**_row(one), "file": str(file)})
        if not json:
            output.say(str(file))
    if json:
        output.print_json(rows)


def _row(one: ChosenFigure) -> dict[str, Any]:
    return {"plugin": one.plugin, "name": one.ref.name, "title": one.ref.title}


def _list(chosen: list[ChosenFigure], json: bool) -> None:
    rows = [_row(one) for one in chosen]
    if json:
        output.print_json(rows)
        return
    if not rows:
        output.say("no plugin registers a figure; `stagelens plugins` lists the plugins")
        return
    output.print_table(["plugin", "figure", "what it shows"], [list(row.values()) for row in rows])
    output.say("\n`stagelens figure PLUGIN FIGURE` draws one")


def _files(chosen: list[ChosenFigure], to: Path) -> list[Path]:
    """Returns the file of each figure; makes the directory `to` if there is none."""
    if to.suffix.lower() in ENDINGS and not to.is_dir():
        if len(chosen) > 1:
            raise UsageError(f"cannot write {len(chosen)} figures to the one file {str(to)!r}; give a directory")
        if not to.parent.is_dir():
            raise UsageError(f"cannot write {to}: {to.parent} is not a directory; make it or give another")
        return [to]
    try:
        to.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot make {to}: {error.strerror or error}; give another -o") from None
    return [to / f"{one.plugin}-{one.ref.name}.png" for one in chosen]


def _draw(one: ChosenFigure, file: Path, host: Host, budget: str, cache: Path | None) -> None:
    """Draws one figure into `file`."""
    from stagelens.claims import Lab, cache_folder, draw_figure
    from stagelens.figures import save

    with run_progress(f"{one.plugin} {one.ref.name}") as update:
        watch = None if update is None else lambda label, step, steps: update(step, steps, None)  # noqa: ARG005
        try:
            drawn = draw_figure(one.ref, Lab(host, cache_folder(cache), budget, watch=watch))
        except KeyboardInterrupt:
            output.warn("interrupted; finished runs are cached, and the same command resumes")
            raise typer.Exit(INTERRUPTED) from None
    if drawn is None:
        raise StagelensError(f"figure {one.ref.name!r} of plugin {one.plugin!r} has nothing to show")
    save(drawn, file)
