"""Randomness: every random number of a run is a function of the seed and of its purpose.

Init, train and eval are separate streams of one seed, and the batch of step `s` depends on (seed, s) alone. So a
resumed run draws the same numbers as an uninterrupted one, and two tasks can be trained on the same data.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def derive(seed: int, *path: str | int) -> int:
    """Returns a 63-bit seed for the stream `path` of `seed`, the same on every machine."""
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, *path: str | int) -> torch.Generator:
    """Returns a CPU generator for the stream `path` of `seed`. Data drawn on the CPU are the same on every device."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *path))


def seed_everywhere(seed: int) -> None:
    """Calls `torch.manual_seed`, or a faster equivalent if there is no accelerator.

    Without one, `torch.manual_seed` formats a stack for each missing device: a third of a small model's step.
    """
    import torch

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Restores the random states of torch (all devices), numpy and Python after the block."""
    import numpy as np
    import torch

    numpy: Any = np.random  # the global generator; its bit generator may have been replaced too
    bits, numpy_state = numpy.get_bit_generator(), numpy.get_state(legacy=False)
    python_state = random.getstate()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        numpy.set_bit_generator(bits)
        numpy.set_state(numpy_state)
        random.setstate(python_state)
