"""pytest fixtures for plugin authors: put `pytest_plugins = ["stagelens.testing.fixtures"]` into `conftest.py`.

The tests of a plugin run without installing it. If the tested project registers plugins that are not installed, they
are loaded from its directory, as with `stagelens --plugin-dir DIR`.
"""

from __future__ import annotations

import os
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from stagelens.claims import Lab, cache_folder
from stagelens.hookspecs import PROJECT
from stagelens.host import PLACES, Host, make_host


def pytest_configure(config: pytest.Config) -> None:
    """Makes the plugin under test known to this process and those that it starts, unless it is installed."""
    folder = config.rootpath
    if not _registered_by(folder / "pyproject.toml") - {entry.name for entry in entry_points(group=PROJECT)}:
        return
    source = folder / "src" if (folder / "src").is_dir() else folder
    if str(source) not in sys.path:
        sys.path.insert(0, str(source))
    known = [place for place in os.environ.get(PLACES, "").split(os.pathsep) if place]
    if str(folder) not in known:
        os.environ[PLACES] = os.pathsep.join([*known, str(folder)])


def _registered_by(project: Path) -> set[str]:
    """Returns the names of the plugins that a `pyproject.toml` registers."""
    if not project.is_file():
        return set()
    content = tomllib.loads(project.read_text(encoding="utf-8"))
    return set(content.get("project", {}).get("entry-points", {}).get(PROJECT, {}))


@pytest.fixture(scope="session")
def host() -> Host:
    """The host with all installed plugins and the one under test; fails if one of them did not load."""
    made = make_host()
    assert not made.failed, [f"{plugin.name}: {plugin.error}" for plugin in made.failed]
    return made


@pytest.fixture(scope="session")
def lab(host: Host) -> Lab:
    """A lab with the cache of `stagelens verify`: a run that it has is not trained again."""
    return Lab(host, cache_folder())
