"""What the README shows is what happens."""

from __future__ import annotations

import re
import shlex

import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"```(?:sh|console)\n(.*?)```", README, re.DOTALL) for line in block.splitlines()
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "snippet", SNIPPETS, ids=lambda s: next(line for line in s.splitlines() if "import" not in line and line)
)
def test_the_snippets_run_one_after_the_other_in_one_folder(snippet, tmp_path_factory, monkeypatch, request):
    folder = tmp_path_factory.getbasetemp() / "readme"
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})


def test_the_commands_exist(cli):
    for line in COMMANDS:
        words = shlex.split(line, comments=True)
        if words[:1] == ["stagelens"]:
            command = next(word for word in words[1:] if not word.startswith("-"))
            assert cli(command, "--help").code == 0, line


def test_the_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
