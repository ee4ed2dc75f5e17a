"""Options and arguments that several commands share, and the state that the options before a command set up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagelens.cli import output
from stagelens.cli.completing import complete_device, complete_key, complete_probes, complete_run, complete_task

if TYPE_CHECKING:
    from stagelens.host import Host

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Runs = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The runs directory (default: $STAGELENS_RUNS or 'runs').")
]
TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK", help="A task's id, or a plugin's name for its default task.", autocompletion=complete_task
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.", autocompletion=complete_run)]
RunArguments = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Names or paths of runs.", autocompletion=complete_run)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a config key; may be repeated.", autocompletion=complete_key
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...", autocompletion=complete_device)]
Probes = Annotated[
    str | None,
    typer.Option(
        help="Probes, separated by commas: 'a,b' selects these, '+a' adds to the task's, 'all' means every probe.",
        autocompletion=complete_probes,
    ),
]


@dataclass
class State:
    """What the options before a command set up: the plugin directories, and the plugins that may be loaded."""

    plugin_dirs: list[str]
    allowed: list[str] | None = None  # the third-party plugins to load; None: all

    @cached_property
    def host(self) -> Host:
        """The host. Prints a warning for each plugin that failed; all others work."""
        from stagelens.host import make_host

        host = make_host(self.plugin_dirs, allow=self.allowed)
        for plugin in host.failed:
            output.warn(f"plugin {plugin.name!r} failed: {plugin.error} ({plugin.file})")
        return host


def names(text: str | None) -> list[str] | None:
    """Returns the names in a text with commas between them; None if there is no text."""
    return text.split(",") if text else None
