"""Tasks: the contract of the class, and its reference in a plugin is true."""

from __future__ import annotations

import pytest

from stagelens.experiments.experiment import Experiment
from stagelens.host.host import make_host

TASKS = dict(make_host().tasks)


@pytest.mark.parametrize("task_id", TASKS)
def test_a_reference_agrees_with_its_class(task_id):
    reference = TASKS[task_id]
    kind = reference.load()
    assert issubclass(kind, Experiment)
    assert (kind.id, kind.title, tuple(kind.presets)) == (task_id, reference.title, reference.presets)
    assert {"quick", "paper"} <= set(kind.presets)
    for preset in kind.presets.values():
        kind.Config(**preset)
    undescribed = [name for name, field in kind.Config.model_fields.items() if not field.description]
    assert not undescribed, f"{task_id}: {undescribed}"
