"""`stagelens new-plugin`: the plugin that it writes works, and it overwrites nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.mark.parametrize(
    "name",
    ["", "My-Paper", "my_paper", "9lives", "-x", "x-", "a--b", "a/b", "../up", "é", "a b", "x" * 41, "--json/../x"],
)
def test_a_name_that_cannot_be_a_plugin_is_refused(cli, tmp_path, name):
    answer = cli("new-plugin", "--", name)
    assert answer.code == 2 and "expected lower-case letters" in answer.complaint
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_and_no_name_is_taken_twice(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    answer = cli("new-plugin", "mine")
    assert answer.code == 2 and "exists already" in answer.complaint and not list((tmp_path / "mine").iterdir())
    answer = cli("new-plugin", "markov")
    assert answer.code == 2 and "is taken by an installed plugin" in answer.complaint


def test_a_folder_that_cannot_be_written_is_one_line(cli, tmp_path):
    (tmp_path / "file").write_text("")
    answer = cli("new-plugin", "mine", "--into", "file")
    assert answer.code != 0 and "give another --into" in answer.complaint


def test_what_it_writes_is_named_after_the_plugin_and_lints(cli, tmp_path):
    written = cli("new-plugin", "two-words", "--json").json
    assert written["plugin"] == "two-words" and "two-words/src/stagelens_two_words/tasks.py" in written["files"]
    for check in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *check, "."]  # by the rules in its own pyproject.toml
        done = subprocess.run(ruff, capture_output=True, text=True, cwd=tmp_path / "two-words")
        assert done.returncode == 0, done.stdout + done.stderr
    text = "".join((tmp_path / file).read_text(encoding="utf-8") for file in written["files"])
    assert "{{" not in text and str(ROOT) not in text
