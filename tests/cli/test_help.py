"""Help texts: one line for each command in the overview, and an example in each command's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from stagelens.cli.main import app

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_no_line_of_the_overview_is_cut_off(cli) -> None:
    answer = cli("--help")
    assert answer.code == 0 and "..." not in answer.out.split("Commands:")[1]
    assert set(COMMANDS) == set(re.findall(r"^  ([\w-]+)  ", answer.out.split("Commands:")[1], re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_without_markup(cli, command: str) -> None:
    answer = cli(command, "--help")
    assert answer.code == 0 and f"Example: stagelens {command}" in answer.out.replace("--no-plugins ", "")
    assert not re.search(r"\[/|\[[a-z]+\]stagelens", answer.out)


def test_a_shell_completes_commands() -> None:
    words = {"_STAGELENS_COMPLETE": "complete_bash", "COMP_WORDS": "stagelens ru", "COMP_CWORD": "1"}
    script = Path(sys.executable).with_name("stagelens")
    done = subprocess.run([script], env=os.environ | words, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["run", "runs"]
