"""The command lines of the figures: a mistake becomes one line on stderr, as with `stagelens` itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from stagelens import StagelensError
from stagelens.base import UsageError
from stagelens.claims import Lab, cache_folder


class Parser(argparse.ArgumentParser):
    """One whose errors are one line. It knows the options of a lab."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description)
        self.add_argument("--budget", choices=("quick", "paper"), default="quick", help="sizes of the runs")
        self.add_argument("--cache", help="folder of kept runs")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def lab_of(given: argparse.Namespace) -> Lab:
    from stagelens.host import make_host

    return Lab(make_host(), cache_folder(given.cache), given.budget)


def answer(command: Callable[[list[str]], None]) -> None:
    """Runs a command on the process' arguments; what is not a mistake of the user's keeps its traceback."""
    try:
        command(sys.argv[1:])
    except StagelensError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
