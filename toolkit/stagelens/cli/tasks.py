"""`stagelens tasks`: lists the tasks."""

from __future__ import annotations

import typer

from stagelens.cli import output
from stagelens.cli.options import Json, State


def tasks(context: typer.Context, json: Json = False) -> None:
    """List the tasks that plugins bring.

    Example: stagelens tasks
    """
    state: State = context.obj
    host = state.host
    rows = [
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
        return
    shown = [[f"{row['id']} *" if row["default"] else row["id"], row["title"], row["presets"]] for row in rows]
    output.print_table(["task", "what it is", "presets"], shown)
    output.say("\n* the plugin's default task: `stagelens run markov` runs it")
