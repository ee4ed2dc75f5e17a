"""The files that services read: workflows, templates of issues, pre-commit and the citation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load(path: str):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def workflows() -> list[Path]:
    return sorted(ROOT.glob(".github/workflows/*.yml"))


@pytest.mark.parametrize("path", workflows(), ids=lambda path: path.name)
def test_a_workflow_runs_targets_that_make_has(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    used = {target for command in commands for target in re.findall(r"\bmake ([a-z-]+)", command)}
    assert used and used <= targets


def test_every_python_of_the_classifiers_is_tested():
    (job,) = load(".github/workflows/test.yml")["jobs"].values()
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == versions and PROJECT["requires-python"] == f">={versions[0]}"


def test_the_templates_of_issues_are_forms():
    forms = [load(str(path.relative_to(ROOT))) for path in sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))]
    assert len(forms) == 3
    for form in forms:
        assert form["name"] and form["description"]
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert fields and all(field["attributes"]["label"] for field in fields)


def test_the_citation_names_this_version_and_its_authors():
    cited = load("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == PROJECT["version"] and cited["license"] == PROJECT["license"]
    assert [author["name"] for author in cited["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_the_pre_commit_hooks_leave_an_excluded_file_as_it_is(tmp_path):
    hooks = [hook for repo in load(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert len(hooks) == 3
    excluded = "tests/project/frozen_plugin/src/stagelens_frozen/tasks.py"
    copy = tmp_path / excluded
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    before = "import os,sys\nx = { 'a':1 }\n"
    for hook in hooks[:2]:
        program, *arguments = hook["entry"].split()
        assert program == ".venv/bin/ruff"
        command = [Path(sys.executable).parent / "ruff", *arguments]
        copy.write_text(before, encoding="utf-8")
        subprocess.run([*command, excluded], cwd=tmp_path, check=True, capture_output=True)
        assert copy.read_text(encoding="utf-8") == before
        (tmp_path / "other.py").write_text(before, encoding="utf-8")
        subprocess.run([*command, "other.py"], cwd=tmp_path, check=False, capture_output=True)
        assert (tmp_path / "other.py").read_text(encoding="utf-8") != before
