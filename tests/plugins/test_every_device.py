"""Every task, and every variant that draws or computes in another way, stays on its device."""

from __future__ import annotations

from typing import Any

import pytest

from kit.tiny import is_flow, task_ids, tiny_task
from stagelens.testing import check_task_device

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("emergence/toy", {"sampled": True}),
    ("emergence/regression", {"B": 2, "p": 0.5}),
    ("emergence/regression", {"position": "fixed", "feature": False}),
    ("emergence/recall", {"B": 2.0, "p": 0.5}),
    ("linear-icl/separate", {"P": 20}),
    ("linear-icl/separate", {"loss": "next-token"}),
    ("linear-icl/sequences", {"loss": "next-token", "attention": "softmax"}),
    ("markov/minimal", {"context": 3}),
    ("recall/simplified", {"sampled": True}),
    ("recall/simplified", {"loss": "cross-entropy"}),
    ("rich/toy", {"tokens": "boolean"}),
    ("rich/high-dim", {"exact": False, "optimizer": "gd"}),
    ("rich/high-dim", {"weights": "vector"}),
]
CASES = [(task_id, {}) for task_id in task_ids() if not is_flow(task_id)] + VARIANTS


@pytest.mark.parametrize(("task_id", "settings"), CASES, ids=str)
def test_a_task_runs_on_any_device(task_id: str, settings: dict[str, Any]) -> None:
    check_task_device(tiny_task(task_id, settings=settings))
