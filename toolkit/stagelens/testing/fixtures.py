"""pytest fixtures for plugin authors: put `pytest_plugins = ["stagelens.testing.fixtures"]` into `conftest.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagelens.claims import Lab
from stagelens.host import Host, make_host


@pytest.fixture(scope="session")
def host() -> Host:
    """All installed plugins; fails where one of them did not load."""
    made = make_host()
    assert not made.failed, [f"{plugin.name}: {plugin.error}" for plugin in made.failed]
    return made


@pytest.fixture(scope="session")
def lab(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lab with a cache of its own, shared by the session's tests."""
    cache: Path = tmp_path_factory.mktemp("lab")
    return Lab(host, cache)
