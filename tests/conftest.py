"""Shared by all tests: one thread, no plugins or runs from the user's environment, and a command line to call."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # also in subprocesses: the models are small, and more threads would only wait

import json

import pytest
import torch
from hypothesis import settings

from kit.store import ENVIRONMENT as STORE, serve
from kit.swept import Here

ROOT = Path(__file__).parent.parent
STAGELENS = [sys.executable, "-c", "from stagelens.cli import main; main()"]
# A program that runs several commands in one process, because each start of Python imports torch. `sys.argv[1]` has
# their words by name, as JSON. `answers` has what each printed, also as JSON.
SEVERAL = """
import contextlib, io, json, sys
from stagelens.cli import main

arguments, stdout, answers = sys.argv, sys.stdout, {}
for name, words in json.loads(arguments[1]).items():
    sys.argv, out = ["stagelens", *words], io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
    answers[name] = json.loads(out.getvalue())
sys.argv = arguments
"""

settings.register_profile("stagelens", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("stress", deadline=None, max_examples=200, derandomize=False, print_blob=True)
settings.load_profile("stagelens")


def pytest_configure(config):
    """Creates the folder of `kit.store`. The process that starts the session owns it; its workers inherit the path."""
    if STORE not in os.environ:
        os.environ[STORE] = tempfile.mkdtemp(prefix="stagelens-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(STORE), ignore_errors=True))


# The files that take longest, in CPU seconds. Workers get whole files; with these first, both end at the same time.
LONGEST = (
    "project/test_docs.py",
    "project/test_golden.py",
    "training/test_seeds_together.py",
    "plugins/test_every_run.py",
    "cli/test_commands.py",
    "host/test_installed_plugins.py",
    "sweeps/test_executors.py",
    "project/test_frozen_plugin.py",
    "project/test_notebooks.py",
    "project/test_built.py",
    "project/test_surface.py",
    "training/test_resume.py",
    "training/test_faults.py",
    "claims/test_verifying.py",
    "plugins/test_every_answer.py",
)


def pytest_collection_modifyitems(items):
    """Starts with the longest files. Python's sort is stable, so the order within a file stays."""
    rank = {ROOT / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish():
    """Excludes torch and the other modules from garbage collection, which would visit their objects repeatedly."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch):
    monkeypatch.setenv("STAGELENS_CACHE", os.environ[STORE])  # the same runs for claims in all test processes
    monkeypatch.delenv("STAGELENS_PLUGINS", raising=False)
    monkeypatch.delenv("STAGELENS_RUNS", raising=False)


@pytest.fixture
def imports(monkeypatch):
    """Removes modules that a test imports from plugin folders, and the folders from `sys.path`, after the test."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if not _installed(sys.modules[name]):
            del sys.modules[name]


def _installed(module: Any) -> bool:
    """Returns True if a module belongs to Python, an installed package or this project, and must not be removed."""
    ours = (str(ROOT / folder) for folder in ("toolkit", "probes", "plugins"))
    return str(getattr(module, "__file__", None) or sys.prefix).startswith((sys.prefix, sys.base_prefix, *ours))


@dataclass(frozen=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Returns stdout, which must be exactly one JSON document."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    @property
    def complaint(self) -> str:
        """Returns the line of a user's mistake. It must be all of stderr, and stdout must be empty."""
        assert self.out == "", self.out
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").strip()


@pytest.fixture
def sweeps_here(monkeypatch):
    """Makes sweeps run their jobs in this process. `tests/sweeps/test_executors.py` tests the worker processes."""
    from stagelens.sweeps.executors import local

    monkeypatch.setattr(local, "Local", Here)


@pytest.fixture
def trained_once(monkeypatch):
    """Makes `sl.run` and `stagelens run` take runs of registered tasks from the store; see `kit.store`."""
    serve(monkeypatch)


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path, imports, sweeps_here):
    """Calls the command line in this process, in an empty folder. Its sweeps start no other processes."""
    from stagelens.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*words: Any) -> Answer:
        monkeypatch.setattr(sys, "argv", ["stagelens", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return call


@dataclass(frozen=True)
class Environment:
    """A separate Python environment. It has the packages of the test environment and those installed into it."""

    folder: Path
    cwd: Path

    def install(self, *projects: Path) -> None:
        """Does `pip install -e` without a network: the build backend is already installed."""
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(self.python)]
        given = [word for project in projects for word in ("-e", str(project))]
        self._run([*pip, "install", "--no-deps", "--no-build-isolation", *given])

    def call(self, program: str, *words: str) -> str:
        """Returns stdout of `stagelens` or `python` in this environment."""
        start = ["-c", "from stagelens.cli import main; main()"] if program == "stagelens" else []
        return self._run([str(self.python), *start, *words])

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.cwd, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def make_environment(folder: Path, cwd: Path) -> Environment:
    """Returns a new environment in `folder` with the packages of this one; its commands run in `cwd`."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    made = Environment(folder, cwd)
    (site,) = folder.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "ours.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return made
