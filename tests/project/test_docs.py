"""Runs the Python blocks and commands of README and docs, page by page, in order.

The blocks of a page share one folder and one set of names, as for a reader who types them. Commands that take minutes
(`verify`, presets other than `quick`, tasks not in QUICK) are only parsed, including their config. Runs of registered
tasks come from the store (`kit.store`). A `stagelens run` that several pages show is called once and then copied.
Sweeps run their points in this process, and share them between pages: a point's folder is named after its content.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
import shutil
import sys
from pathlib import Path

import matplotlib
import pytest
import typer

import stagelens.cli
from conftest import ROOT
from kit import store
from kit.printed import assert_same_text
from stagelens.cli.main import app
from stagelens.experiments.config import make_config
from stagelens.host.host import make_host

matplotlib.use("Agg")

sys.path.insert(0, str(ROOT / "docs"))
from snippets import EXAMPLES, blocks, pages

PAGES = pages()
NOT_RUN = ("text", "toml", "sql", "bibtex", "")  # languages of blocks that are not code to type
QUICK = {"markov", "recall/flow", "linear-icl/flow", "my-paper"}  # tasks that take less than a minute
LONG = {"verify", "figure"}  # commands that take minutes for any arguments
PLACEHOLDER = re.compile(r"\b(RUN|RUN_or_CSV|TASK|COMMAND|CHECKPOINT|DIR|PLUGIN|NAME|FILE)\b|\[")


def commands(block: str) -> list[list[str]]:
    """The calls of stagelens in a block, each as its words; a line with a placeholder is not one."""
    lines = block.replace("\\\n", " ").splitlines()
    calls = [shlex.split(line, comments=True) for line in lines if line.startswith("stagelens ")]
    return [words[1:] for words in calls if not PLACEHOLDER.search(" ".join(words))]


WITH_BLOCKS = [page for page in PAGES if any(block.language in ("python", "sh", "console") for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_and_commands_of_a_page_run(page, cli, trained_once, capsys):
    names = {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python" and not block.title:
            capsys.readouterr()
            exec(compile(block.text, str(page), "exec"), names)
            if block.printed is not None:
                assert_same_text(capsys.readouterr().out, block.printed)
        elif block.language in ("sh", "console"):
            for words in commands(block.text):
                _call(words, cli)


def _call(words, cli):
    if words[0] in LONG or (words[0] == "run" and (words[1] not in QUICK or "--preset" in words)):
        return
    shared = store.folder() / "docs" / ("points" if words[0] == "sweep" else shlex.join(words).replace("/", "%"))
    runs = Path("runs", "points") if words[0] == "sweep" else Path("runs")
    if shared.exists() and words[0] in ("run", "sweep"):
        shutil.copytree(shared, runs, dirs_exist_ok=True)
        if words[0] == "run":
            return
    before = set(runs.glob("*"))
    answer = cli(*words)
    assert answer.code == 0, (words, answer.err)
    assert answer.out.strip() and "Traceback" not in answer.err, words
    if words[0] in ("run", "sweep"):
        for made in set(runs.glob("*")) - before:
            shutil.copytree(made, shared / made.name)


def test_the_store_is_used_only_while_a_test_asks_for_it(monkeypatch):
    import stagelens.api

    monkeypatch.delitem(vars(stagelens), "run", raising=False)  # as in a process that has not called it
    train = stagelens.api.run
    with pytest.MonkeyPatch.context() as asking:
        store.serve(asking)
        assert stagelens.run is stagelens.api.run is not train
    assert stagelens.run is stagelens.api.run is train


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_shows_can_be_parsed(page):
    """Includes commands that take too long to run or need a cluster."""
    for block in blocks(page):
        known = (*NOT_RUN, "python", "sh", "console")
        assert block.language in known, f"a block of {block.language!r} is never run"
        for words in commands(block.text):
            _parses(words)


def test_the_files_that_the_tutorial_shows_are_those_of_the_example():
    example = EXAMPLES / "statistical_induction"
    places = (example, example / "src" / "stagelens_statistical_induction")
    shown = [block for block in blocks(ROOT / "docs" / "tutorial" / "plugin.md") if block.title]
    for block in shown:
        (file,) = [place / block.title for place in places if (place / block.title).is_file()]
        assert block.text.strip() in file.read_text(encoding="utf-8"), block.title
    source = {path.relative_to(places[1]).as_posix() for path in places[1].rglob("*.py")}
    assert source - {block.title for block in shown} == {"claims/__init__.py", "figures/__init__.py"}


def test_no_tutorial_is_skipped():
    taught = [ROOT / "README.md", *ROOT.glob("docs/tutorial/*.md")]
    for page in taught:
        assert any(block.language == "python" or commands(block.text) for block in blocks(page)), page


def _parses(words: list[str]) -> None:
    """Fails unless the command line takes these words; of a run, unless its task and settings exist."""
    for module in pkgutil.iter_modules(stagelens.cli.__path__, "stagelens.cli."):
        importlib.import_module(module.name)
    group = typer.main.get_command(app)
    start = {"--plugin-dir": 2, "--allow": 2, "--no-plugins": 1}.get(words[0], 0)
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
    made = {ROOT / "docs" / "changelog.md"}  # by the site
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        place = (page.parent / target).resolve()
        assert "://" in target or place.exists() or place in made, target
