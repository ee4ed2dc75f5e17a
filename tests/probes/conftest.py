"""All tests here run on one thread: the models are small, and threads only wait for each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("probes", deadline=None, max_examples=15, derandomize=True)
settings.load_profile("probes")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)
