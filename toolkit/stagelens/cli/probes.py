"""`stagelens probes`: lists the probes."""

from __future__ import annotations

import typer

from stagelens.cli import output
from stagelens.cli.options import Json, State


def probes(context: typer.Context, json: Json = False) -> None:
    """List the probes, their readings and cost.

    Example: stagelens probes
    """
    state: State = context.obj
    known = state.host.probes
    if json:
        rows = [
            {
                "name": name,
                "plugin": known.owners[name],
                "title": ref.title,
                "readings": [f"{name}/{reading}" for reading in ref.readings],
                "passes": ref.passes,
                "default": ref.default,
            }
            for name, ref in known
        ]
        output.print_json(rows)
        return
    shown = [[f"{name} *" if ref.default else name, ref.title, ref.readings, ref.passes] for name, ref in known]
    output.print_table(["probe", "what it measures", "readings", "extra passes"], shown)
    output.say("\n* runs by default; extra passes are forward passes beyond the one that all probes share")
