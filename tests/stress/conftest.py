"""Fixtures of the stress tests, which `make stress` runs and `make test` does not.

`--seed N` repeats what the seed N did; without it a new seed is drawn and printed. `--record` writes the counts to
`docs/verified/stress.json`, of which `page.py` makes `docs/reliability.md`; without it the docs stay as they are.
"""

from __future__ import annotations

import os
import random

from kit.chance import SEED, seed
from kit.victims import library, victims  # noqa: F401

RECORD = "STAGELENS_STRESS_RECORD"


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, help="the seed of all random choices (default: a new one)")
    parser.addoption("--record", action="store_true", help="write the counts to docs/verified/stress.json")


def pytest_configure(config):
    """Sets the options in the process that starts the session; its workers inherit the environment."""
    given = config.getoption("--seed")
    os.environ.setdefault(SEED, str(random.randrange(10**6) if given is None else given))
    if config.getoption("--record"):
        os.environ[RECORD] = "1"


def pytest_report_header():
    return f"stress: seed {seed()}; --seed {seed()} repeats it"


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"stress: seed {seed()}; --seed {seed()} repeats it")
