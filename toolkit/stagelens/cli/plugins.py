"""`stagelens plugins`: lists the plugins."""

from __future__ import annotations

import typer

from stagelens.cli import output
from stagelens.cli.options import Json, State


def plugins(context: typer.Context, json: Json = False) -> None:
    """List the plugins, and where each comes from.

    With --no-plugins before the command, third-party plugins are listed but not imported.

    Example: stagelens --no-plugins plugins
    """
    from stagelens.host import make_host

    state: State = context.obj
    found = make_host(state.plugin_dirs, allow=state.allowed).plugins  # `state.host` would print their errors twice
    if json:
        output.print_json([vars(plugin) for plugin in found])
        return
    output.print_table(
        ["plugin", "distribution", "version", "status", "file", "error"],
        [[p.name, p.distribution, p.version, p.status, p.file, p.error] for p in found],
    )
