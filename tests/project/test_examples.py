"""The statistical-induction example passes its own tests of data, strategies and task. `make stress` has its claims."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "statistical_induction"


def find_plugin_of(folder: Path) -> None:
    """Loads the fixtures as pytest does when it starts: imported here, after pytest has rewritten their asserts."""
    from stagelens.testing import fixtures

    fixtures.pytest_configure(SimpleNamespace(rootpath=folder))


@pytest.fixture
def own_tests(imports, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    monkeypatch.syspath_prepend(EXAMPLE / "tests")
    return importlib.import_module("test_statistical_induction")


def test_the_example_passes_its_own_tests(own_tests):
    tests = [function for name, function in vars(own_tests).items() if name.startswith("test_")]
    assert len(tests) == 5
    for test in tests:
        test()


def test_the_tests_of_a_plugin_find_it_without_an_installation(imports, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("STAGELENS_PLUGINS", "")  # restored afterwards
    find_plugin_of(EXAMPLE)
    from stagelens.host import make_host

    host = make_host()
    assert not host.failed and host.task("statistical-induction").id == "statistical-induction/chains"
    assert {"SI1", "SI2"} <= {name for name, _ in host.claims}


@pytest.mark.parametrize("folder", [ROOT, ROOT / "tests"])
def test_a_project_without_a_new_plugin_changes_nothing(folder: Path, monkeypatch):
    monkeypatch.setenv("STAGELENS_PLUGINS", "before")
    before = list(sys.path)
    find_plugin_of(folder)
    assert sys.path == before and os.environ["STAGELENS_PLUGINS"] == "before"
