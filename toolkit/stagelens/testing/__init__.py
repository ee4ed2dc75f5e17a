"""testing: checks for the tests of plugin authors: the contracts of a task, a probe and a claim, in one call each.

    from stagelens.testing import check_claim, check_probe, check_task

    def test_the_task():
        check_task(MyTask)

Each raises an AssertionError with the reason. With `pytest_plugins = ["stagelens.testing.fixtures"]` in a
`conftest.py`, tests can also use the fixtures `lab` and `host`.
"""

from __future__ import annotations

from stagelens.testing.claims import check_claim
from stagelens.testing.devices import check_task_device
from stagelens.testing.probes import check_probe
from stagelens.testing.tasks import check_task

__all__ = ["check_claim", "check_probe", "check_task", "check_task_device"]
