"""`python -m build` makes a source archive and, from it, a wheel that installs and runs in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from conftest import ROOT, SEVERAL, make_environment

# The installed package lists its tasks, integrates one to its report, and writes a plugin from templates.
COMMANDS = {"tasks": ["tasks"], "run": ["run", "recall/flow", "--set", "points=20"], "written": ["new-plugin", "mine"]}
PROGRAM = SEVERAL + "import stagelens; print(json.dumps([stagelens.__file__, answers]), file=stdout)"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_wheel_installs_and_runs(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    environment = make_environment(tmp_path / "environment", tmp_path)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(environment.python)]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "STAGELENS_PLUGINS")}
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True, env=clean, timeout=600)
    words = json.dumps({name: [*given, "--json"] for name, given in COMMANDS.items()})
    called = [str(environment.python), "-c", PROGRAM, words]
    done = subprocess.run(called, capture_output=True, text=True, env=clean, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    file, answers = json.loads(done.stdout)
    assert file.startswith(str(tmp_path)), f"{file} is not the installed one"
    assert {"markov/full", "emergence/flow"} <= {task["id"] for task in answers["tasks"]}
    assert answers["run"]["status"] == "finished"
    assert (tmp_path / "runs" / "recall-flow-quick-seed0" / "report.html").stat().st_size > 100_000
    assert len(answers["written"]["files"]) == 18


@pytest.mark.slow
def test_the_archives_have_the_license_and_types_and_nothing_private(built):
    (wheel,) = built.glob("*.whl")
    (source,) = built.glob("*.tar.gz")
    installed = zipfile.ZipFile(wheel).namelist()
    assert "stagelens/py.typed" in installed and any(name.endswith("licenses/LICENSE") for name in installed)
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "docs/index.md"} <= set(names)
    assert not [name for name in names if name.startswith((".venv", "runs/", "site/", ".git/", ".mypy_cache"))]
