"""`stagelens new-plugin`: writes a working plugin to start from (`skeleton.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.options import Json, State


def new_plugin(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The plugin's name, such as my-paper.")],
    into: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make it in.")] = Path(),
    json: Json = False,
) -> None:
    """Write a working plugin to start from.

    It has a task, a probe, a claim, a figure and their tests.

    Example: stagelens new-plugin my-paper && stagelens --plugin-dir my-paper run my-paper
    """
    from stagelens.cli.skeleton import write_plugin

    state: State = context.obj
    files = [str(file) for file in write_plugin(name, into, {plugin.name for plugin in state.host.plugins})]
    hint = f"\nTry it: stagelens --plugin-dir {into / name} run {name}; test it: pytest {into / name}"
    output.answer({"plugin": name, "folder": str(into / name), "files": files}, "\n".join([*files, hint]), json)
