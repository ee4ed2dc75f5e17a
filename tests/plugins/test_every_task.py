"""Tests of every task and flow that is part of stagelens."""

from __future__ import annotations

import pytest

from stagelens.host.host import make_host
from stagelens.testing import check_task

TASKS = dict(make_host().tasks)


@pytest.mark.slow
@pytest.mark.parametrize("task_id", TASKS)
def test_every_task_keeps_its_promises(task_id):
    ref = TASKS[task_id]
    kind = ref.load()
    assert (kind.id, kind.title, tuple(kind.presets)) == (ref.id, ref.title, ref.presets)  # as listed before loading
    check_task(kind)
