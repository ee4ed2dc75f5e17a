"""What README and docs show is what happens: their snippets and commands are run, page by page, in order.

A page's blocks share one folder and one set of names, as for a reader who types them. What would take minutes
(`verify`, presets other than `quick`, tasks not in QUICK) is not run but parsed, config and all. A `stagelens run` that
several pages show is run once and copied.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
import shutil
from pathlib import Path

import matplotlib
import pytest
import typer

import stagelens.cli
from conftest import ROOT
from stagelens.cli.main import app
from stagelens.experiments.config import make_config
from stagelens.host.host import make_host

matplotlib.use("Agg")

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")])
PAGES = [page for page in PAGES if "examples" not in page.parts]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUICK = {"markov", "recall/flow", "linear-icl/flow", "my-paper"}  # tasks that a reader waits for less than a minute
LONG = {"verify", "figure"}  # commands that take minutes whatever they are given
PLACEHOLDER = re.compile(r"\b(RUN|RUN_or_CSV|TASK|COMMAND|CHECKPOINT|DIR|PLUGIN|NAME|FILE)\b|\[")


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(block: str) -> list[list[str]]:
    """The commands of a block of shell, each as its words."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="session")
def finished_runs():
    """Runs that a page has made, by their command: the folder that they are kept in."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_and_commands_of_a_page_run(page, cli, tmp_path, tmp_path_factory, finished_runs):
    names = {"__name__": page.stem}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
        elif language in ("sh", "console"):
            for words in commands(text):
                if words[0] == "stagelens" and not PLACEHOLDER.search(" ".join(words)):
                    _call(words[1:], cli, tmp_path, tmp_path_factory, finished_runs)


def _call(words, cli, folder, tmp_path_factory, finished_runs):
    _parses(words)
    if words[0] in LONG or (words[0] == "run" and (words[1] not in QUICK or "--preset" in words)):
        return
    key = tuple(words)
    if words[0] == "run" and key in finished_runs:
        shutil.copytree(finished_runs[key], folder / "runs", dirs_exist_ok=True)
        return
    before = set((folder / "runs").glob("*"))
    answer = cli(*words)
    assert answer.code == 0, (words, answer.err)
    if words[0] == "run":
        kept = tmp_path_factory.mktemp("runs")
        for made in set((folder / "runs").glob("*")) - before:
            shutil.copytree(made, kept / made.name)
        finished_runs[key] = kept


def _parses(words: list[str]) -> None:
    """Fails unless the command line takes these words; of a run, unless its task and settings exist."""
    for module in pkgutil.iter_modules(stagelens.cli.__path__, "stagelens.cli."):
        importlib.import_module(module.name)
    group = typer.main.get_command(app)
    start = 2 if words[0] == "--plugin-dir" else 0
    name, *rest = words[start:]
    context = group.make_context("stagelens", words[:start], resilient_parsing=True)
    command = group.get_command(context, name)
    assert command is not None, f"there is no command {name!r}"
    options = command.make_context(name, rest, parent=context).params
    if name == "run" and not start:
        kind = make_host().task(options["task"]).load()
        make_config(kind.Config, kind.presets, options["preset"], options["set_"] or [])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    made = {ROOT / "docs" / "changelog.md", ROOT / "docs" / "reference" / "rooms.md"}  # by the site
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        place = (page.parent / target).resolve()
        assert "://" in target or place.exists() or place in made, target
