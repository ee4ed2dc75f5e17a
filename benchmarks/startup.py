"""Compares the start-up time of the command line with the import time of its libraries: typer, rich and pydantic."""

from __future__ import annotations

import subprocess  # nosec B404  # to time our own commands
import sys
from pathlib import Path

from benchmarks.measure import Row, in_turns, ratio, report

STAGELENS = str(Path(sys.executable).with_name("stagelens"))
IMPORTS = [sys.executable, "-c", "import typer, rich, pydantic"]
# `stagelens tasks` with all converters of typer, which cli/group.py skips.
CONVERTERS = "import stagelens.cli.group as group; group._skipping_converters = lambda option: option"
WITH_CONVERTERS = [sys.executable, "-c", f"{CONVERTERS}\nfrom stagelens.cli import main; main()"]


def start(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)  # nosec B603  # no shell


def main() -> int:
    times = in_turns(
        {
            "imports": lambda: start(*IMPORTS),
            "--help": lambda: start(STAGELENS, "--help"),
            "tasks": lambda: start(STAGELENS, "tasks"),
            "with converters": lambda: start(*WITH_CONVERTERS, "tasks"),
        },
        repeats=15,
    )
    rows = [
        Row("`stagelens --help` / the imports", ratio(times, "--help", "imports"), at_most=1.5),
        Row("`stagelens tasks` / the imports", ratio(times, "tasks", "imports"), at_most=3.0),
        Row(
            "`stagelens tasks` with typer's converters / without",
            ratio(times, "with converters", "tasks"),
            at_least=1.1,
        ),
    ]
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
