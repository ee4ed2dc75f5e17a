"""What the README shows is what happens."""

from __future__ import annotations

import re
import shlex

import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"```(?:sh|console)\n(.*?)```", README, re.DOTALL) for line in block.splitlines()
]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/loops.md"])
def test_the_snippets_run_one_after_the_other(page, tmp_path, monkeypatch):
    """In one folder and with one set of names, as a reader types them."""
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 3
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), names)


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
