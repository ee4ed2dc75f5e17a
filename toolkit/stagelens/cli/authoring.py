"""`new-plugin`: a skeleton to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.main import app
from stagelens.cli.state import State


@app.command("new-plugin")
def new_plugin(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it shall be called, such as my-paper.")],
    into: Annotated[Path, typer.Option(metavar="DIR", help="The folder to make it in.")] = Path(),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Write a working plugin to start from.

    It has a task, a probe, a claim and their tests.

    Example: stagelens new-plugin my-paper && pip install -e my-paper && stagelens run my-paper
    """
    from stagelens.cli.skeleton import write_plugin

    state: State = context.obj
    files = write_plugin(name, into, {plugin.name for plugin in state.host.plugins})
    if json:
        output.print_json({"plugin": name, "folder": str(into / name), "files": [str(file) for file in files]})
        return
    for file in files:
        output.say(f"{file}")
    output.say(f"\nTry it: pip install -e '{into / name}[dev]' && stagelens run {name} && pytest {into / name}")
