"""`tasks`, `probes`, `plugins`, `doctor`: what is there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.main import app
from stagelens.cli.state import State

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


@app.command()
def tasks(context: typer.Context, json: Json = False) -> None:
    """List the tasks that plugins bring.

    Example: stagelens tasks
    """
    state: State = context.obj
    host = state.host
    rows: list[dict[str, Any]] = [
        {
            "id": name,
            "plugin": host.tasks.owners[name],
            "title": ref.title,
            "presets": list(ref.presets),
            "default": host.default_task(name.partition("/")[0]) == name,
        }
        for name, ref in host.tasks
    ]
    if json:
        output.print_json(rows)
    else:
        shown = [[row["id"] + (" *" if row["default"] else ""), row["title"], row["presets"]] for row in rows]
        output.print_table(["task", "what it is", "presets"], shown)
        output.say("\n* what the plugin's bare name means, as in `stagelens run markov`")


@app.command()
def probes(context: typer.Context, json: Json = False) -> None:
    """List the probes, their readings and cost.

    Example: stagelens probes
    """
    state: State = context.obj
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "plugin": state.host.probes.owners[name],
            "title": ref.title,
            "readings": [f"{name}/{reading}" for reading in ref.readings],
            "passes": ref.passes,
            "default": ref.default,
        }
        for name, ref in state.host.probes
    ]
    if json:
        output.print_json(rows)
        return
    shown = [
        [row["name"] + (" *" if row["default"] else ""), row["title"], ref.readings, row["passes"]]
        for row, (_, ref) in zip(rows, state.host.probes, strict=True)
    ]
    output.print_table(["probe", "what it measures", "readings", "extra passes"], shown)
    output.say("\n* runs by default; extra passes are forward passes beyond the one that all probes share")


@app.command()
def plugins(context: typer.Context, json: Json = False) -> None:
    """List the plugins, and where each comes from.

    Before it, --no-plugins lists without importing.

    Example: stagelens --no-plugins plugins
    """
    from stagelens.host import make_host

    state: State = context.obj
    found = make_host(state.plugin_dirs, allow=state.allowed).plugins
    if json:
        output.print_json([vars(plugin) for plugin in found])
    else:
        output.print_table(
            ["plugin", "distribution", "version", "status", "file", "why not"],
            [[p.name, p.distribution, p.version, p.status, p.file, p.error] for p in found],
        )


@app.command()
def doctor(context: typer.Context, json: Json = False) -> None:
    """Check the installation; say how to mend it.

    Versions, device, plugins and the folder of runs are looked at.

    Example: stagelens doctor
    """
    from stagelens.cli.doctor import examine

    state: State = context.obj
    findings = examine(state.plugin_dirs)
    if json:
        output.print_json([vars(finding) for finding in findings])
    else:
        rows: list[list[Any]] = [["ok" if f.ok else "WRONG", f.what, f.found, "" if f.ok else f.mend] for f in findings]
        output.print_table(["", "what", "found", "how to mend it"], rows)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
