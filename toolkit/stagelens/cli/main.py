"""`stagelens`: the commands, and what happens to errors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.group import Group
from stagelens.cli.state import State
from stagelens.errors import StagelensError

app = typer.Typer(
    name="stagelens",
    cls=Group,
    help="Watch circuits form: train, probe, find the stages, compare.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_BadUsage: type[Exception] = typer.BadParameter.__mro__[1]  # typer's UsageError, which it does not export


def _version(asked: bool) -> None:
    if asked:
        import stagelens

        typer.echo(f"stagelens {stagelens.__version__}")
        raise typer.Exit


@app.callback()
def setup(
    context: typer.Context,
    plugin_dir: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="A folder, file or module with plugins under development; may be repeated."),
    ] = None,
    version: Annotated[  # noqa: ARG001  acted upon by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    context.obj = State(plugin_dir or [])


def main() -> None:
    """Runs the command line. A mistake becomes one line on stderr; anything else keeps its traceback."""
    from stagelens.cli import (  # noqa: F401  each registers its commands
        answering,
        authoring,
        inspecting,
        listing,
        probing,
        running,
        sweeping,
        verifying,
    )

    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except _BadUsage as error:
        message, context = error.format_message(), error.ctx  # type: ignore[attr-defined]
        output.complain(f"{message.rstrip('.')}; see `{context.command_path} --help`")
        sys.exit(2)
    except StagelensError as error:
        output.complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
