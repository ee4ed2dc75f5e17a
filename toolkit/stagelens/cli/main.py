"""`stagelens`: registers the commands, and turns a user's mistakes into one line on stderr."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from stagelens.base import StagelensError, within_memory
from stagelens.cli import output
from stagelens.cli.compare import compare
from stagelens.cli.doctor import doctor
from stagelens.cli.export import export
from stagelens.cli.figure import figure
from stagelens.cli.group import Group
from stagelens.cli.new_plugin import new_plugin
from stagelens.cli.options import State
from stagelens.cli.plugins import plugins
from stagelens.cli.probe import probe
from stagelens.cli.probes import probes
from stagelens.cli.report import report
from stagelens.cli.run import run
from stagelens.cli.runs import list_runs
from stagelens.cli.show import show
from stagelens.cli.stages import stages
from stagelens.cli.sweep import sweep
from stagelens.cli.tasks import tasks
from stagelens.cli.verify import verify

# In the order of `stagelens --help`. Each is in the file of its name.
COMMANDS: dict[str, Callable[..., None]] = {
    "tasks": tasks,
    "probes": probes,
    "plugins": plugins,
    "run": run,
    "runs": list_runs,
    "show": show,
    "stages": stages,
    "compare": compare,
    "report": report,
    "verify": verify,
    "figure": figure,
    "sweep": sweep,
    "probe": probe,
    "export": export,
    "new-plugin": new_plugin,
    "doctor": doctor,
}

app = typer.Typer(
    name="stagelens",
    cls=Group,
    help="Watch circuits form: train, probe, find the stages, compare.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)

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
        typer.Option(
            metavar="DIR", help="A directory, file or module with plugins under development; may be repeated."
        ),
    ] = None,
    no_plugins: Annotated[
        bool, typer.Option("--no-plugins", help="Import only the plugins that come with stagelens.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="As --no-plugins, but import this plugin too; may be repeated."),
    ] = None,
    version: Annotated[  # noqa: ARG001  acted upon by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    allowed = allow or ([] if no_plugins else None)
    if allowed is not None:
        from stagelens.base import environment
        from stagelens.host import ALLOW

        context.with_resource(environment({ALLOW: ",".join(allowed)}))  # also for the processes of this one
    context.obj = State(plugin_dir or [], allowed)


def main() -> None:
    """Runs the command line. A user's mistake becomes one line on stderr; a defect keeps its traceback."""
    try:
        with within_memory():
            sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="stagelens"))
    except _BadUsage as error:
        message, context = error.format_message(), error.ctx  # type: ignore[attr-defined]
        where = context.command_path if context else "stagelens"  # the parser's own errors have none
        output.complain(f"{message.rstrip('.')}; see `{where} --help`")
        sys.exit(2)
    except StagelensError as error:
        output.complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        output.complain(f"{str(error.filename)!r} cannot name a file ({error.strerror}); give another name")
        sys.exit(2)
