"""Every plugin has the same files: the five papers, what `stagelens new-plugin` writes, and the example of the docs."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from conftest import ROOT
from stagelens.cli.skeleton import write_plugin

FILES = {
    "__init__.py",
    "config.py",
    "data.py",
    "model.py",
    "losses.py",
    "theory.py",
    "predictions.py",
    "tasks.py",
    "flow.py",
    "probes.py",
    "README.md",
    "py.typed",
}
FOLDERS = {"data", "tasks", "claims", "figures"}  # with one file per family; `data` and `tasks` may be files instead
PAPERS = ("markov", "linear_icl", "recall", "rich", "emergence")
EXAMPLES = sorted((ROOT / "docs/examples").glob("*/src/*"))


def package_of(paper: str) -> Path:
    return ROOT / "plugins" / f"stagelens_{paper}"


def wrong_names(package: Path) -> list[str]:
    """Returns the files and folders of a plugin's package that have no place in the shape of a plugin."""
    found = []
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        if path.is_dir() or "__pycache__" in parts:
            continue
        fits = (
            parts[0] in FILES
            if len(parts) == 1
            else len(parts) == 2 and parts[0] in FOLDERS and parts[1].endswith(".py")
        )
        if not fits:
            found.append("/".join(parts))
    found += [
        f"{name}.py and {name}/"
        for name in ("data", "tasks")
        if (package / name).is_dir() and (package / f"{name}.py").is_file()
    ]
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_plugin_has_files_of_the_common_names_only(paper):
    assert wrong_names(package_of(paper)) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_plugin_has_what_each_of_them_needs(paper):
    package = package_of(paper)
    for name in (
        "__init__.py",
        "config.py",
        "model.py",
        "losses.py",
        "theory.py",
        "predictions.py",
        "flow.py",
        "README.md",
    ):
        assert (package / name).is_file(), f"{paper} has no {name}"
    for name in ("data", "tasks"):
        assert (package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file(), (
            f"{paper} has no {name}"
        )
    assert (package / "claims/measures.py").is_file() and len(list((package / "claims").glob("*.py"))) >= 3
    assert [file for file in (package / "figures").glob("*.py") if file.name != "__init__.py"]


def test_the_skeleton_has_files_of_the_common_names_only(tmp_path):
    write_plugin("two-words", tmp_path, set())
    package = tmp_path / "two-words/src/stagelens_two_words"
    assert wrong_names(package) == []
    assert {path.name for path in package.iterdir()} >= (FILES | {"claims", "figures"}) - {
        "flow.py",
        "README.md",
        "py.typed",
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_files_of_the_common_names_only(example):
    assert wrong_names(example) == [] and (example / "config.py").is_file() and (example / "losses.py").is_file()


def test_a_file_of_another_name_is_found(tmp_path):
    for name in ("tasks.py", "tasks/__init__.py", "claims/toy.py", "claims/deep/er.py", "helpers.py", "flows/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert wrong_names(tmp_path) == ["claims/deep/er.py", "flows/a.py", "helpers.py", "tasks.py and tasks/"]


def classes_of(paper: str) -> set[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in package_of(paper).rglob("*.py"))
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def test_no_two_plugins_define_a_class_of_the_same_name():
    owners = defaultdict(list)
    for paper in PAPERS:
        for name in classes_of(paper):
            owners[name].append(paper)
    shared = {name: papers for name, papers in owners.items() if len(papers) > 1}
    assert not shared, shared
