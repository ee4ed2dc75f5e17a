"""A ray cluster on this machine, for the tests that need one. They are skipped if ray is not installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def installed():
    pytest.importorskip("ray", reason="ray is not installed: pip install ray")


@pytest.fixture(scope="module")
def cluster():
    """One cluster for all of these tests: it takes seconds to start."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    variables = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=2, num_gpus=2, runtime_env={"env_vars": variables}, **options)  # ray does not check it
    yield
    ray.shutdown()
