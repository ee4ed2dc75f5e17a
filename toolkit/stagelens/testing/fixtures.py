"""pytest fixtures for plugin authors: put `pytest_plugins = ["stagelens.testing.fixtures"]` into `conftest.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagelens.claims import Lab
from stagelens.host import Host, make_host


@pytest.fixture(scope="session")
def host() -> Host:
    """The host with all installed plugins; fails if one of them did not load."""
    made = make_host()
    assert not made.failed, [f"{plugin.name}: {plugin.error}" for plugin in made.failed]
    return made


@pytest.fixture(scope="session")
def lab(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lab with its own cache, shared by the tests of the session."""
    cache: Path = tmp_path_factory.mktemp("lab")
    return Lab(host, cache)
