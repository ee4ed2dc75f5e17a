"""What a task is, and that what a plugin says of it is true."""

from __future__ import annotations

import pytest
import torch

from stagelens import Group
from stagelens.base.errors import UsageError
from stagelens.experiments.experiment import Experiment
from stagelens.host.host import make_host

TASKS = dict(make_host().tasks)


@pytest.mark.parametrize("task_id", TASKS)
def test_a_reference_says_what_its_class_says(task_id):
    reference = TASKS[task_id]
    kind = reference.load()
    assert issubclass(kind, Experiment)
    assert (kind.id, kind.title, tuple(kind.presets)) == (task_id, reference.title, reference.presets)
    assert {"quick", "paper"} <= set(kind.presets)
    for preset in kind.presets.values():
        kind.Config(**preset)
    undescribed = [name for name, field in kind.Config.model_fields.items() if not field.description]
    assert not undescribed, f"{task_id}: {undescribed}"


def test_groups_by_offset_and_by_position():
    mask = Group(offsets=(0, 2), positions=(1,)).mask(4, 4)
    assert mask.int().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]]


def test_with_fewer_queries_than_keys_the_last_query_stands_at_the_last_key():
    whole = Group(offsets=(1,)).mask(5, 5)
    assert torch.equal(Group(offsets=(1,)).mask(2, 5), whole[-2:])


def test_negative_positions_count_from_the_last_key():
    assert torch.equal(Group(positions=(-1, -4)).mask(4, 4), Group(positions=(3, 0)).mask(4, 4))
    assert torch.equal(Group(positions=(-2,)).mask(1, 5), Group(positions=(3,)).mask(1, 5))


@pytest.mark.parametrize("position", [4, -5, 99])
def test_a_position_that_is_no_key_is_refused(position):
    with pytest.raises(UsageError, match=rf"position {position} was given, but there are 4 keys"):
        Group(positions=(0, position)).mask(4, 4)


def test_a_group_is_in_the_layers_that_it_names_or_in_all():
    assert [Group(offsets=(1,), layers=(0, 2)).is_in(layer) for layer in (0, 1, 2, None)] == [True, False, True, False]
    assert all(Group(offsets=(1,)).is_in(layer) for layer in (0, 1, None))
