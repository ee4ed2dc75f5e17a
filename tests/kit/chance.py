"""Reproducible random choices in tests: all follow from one seed.

The seed is 0 in `make test`. `make stress` draws a new one each time and prints it; `--seed N` repeats it.
"""

from __future__ import annotations

import os
import random

SEED = "STAGELENS_TEST_SEED"


def seed() -> int:
    return int(os.environ.get(SEED, "0"))


def chance(*names: object) -> random.Random:
    """Returns a separate random generator for each name."""
    return random.Random(" ".join(map(str, (seed(), *names))))
