"""The batch of a step depends on (seed, step) alone."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from kit.tasks import Regression
from stagelens.base.errors import UsageError
from stagelens.experiments.batches import Batches, eval_batch, map_tensors, move


def task(seed=0, **config):
    return Regression(Regression.Config(**config), seed)


def rows(batch):
    return [tuple(row) for row in batch[0].tolist()]


@pytest.mark.parametrize("train_size", [0, 20])
def test_a_batch_does_not_depend_on_the_batches_before(train_size):
    first, second = (Batches(task(train_size=train_size)) for _ in range(2))
    for step in range(9):
        first(step)
    torch.rand(5)
    assert torch.equal(first(5)[0], second(5)[0])
    assert torch.equal(first(11)[1], second(11)[1])


def test_steps_and_seeds_give_different_batches():
    drawn = [Batches(task(seed))(step)[0] for seed in (0, 1) for step in (0, 1)]
    assert len({rows((x,))[0] for x in drawn}) == 4


def test_each_pass_over_a_fixed_set_shows_each_sequence_once_in_a_new_order():
    batches = Batches(task(train_size=24, batch_size=8))
    passes = [[row for step in range(3 * number, 3 * number + 3) for row in rows(batches(step))] for number in (0, 1)]
    assert len(set(passes[0])) == 24
    assert set(passes[0]) == set(passes[1]) and passes[0] != passes[1]


def test_inputs_and_targets_stay_together():
    x, y = Batches(task(train_size=24))(7)
    assert torch.allclose(x @ torch.tensor([[1.0], [-2.0], [3.0]]), y)


def test_a_set_smaller_than_a_batch_is_a_mistake():
    with pytest.raises(UsageError, match="train_size 4 is smaller than batch_size 8"):
        Batches(task(train_size=4))


def test_the_evaluation_batch_is_fixed_and_no_training_batch():
    assert torch.equal(eval_batch(task())[0], eval_batch(task())[0])
    trained = {row for step in range(5) for row in rows(Batches(task())(step))}
    assert not trained & set(rows(eval_batch(task())))


class Pair(NamedTuple):
    tokens: torch.Tensor
    length: int


def test_tensors_are_reached_in_every_kind_of_batch():
    ones = torch.ones(2)
    batch = {"a": [ones, (ones, 3)], "b": Pair(ones, 4), "c": "text"}
    doubled = map_tensors(lambda tensor: 2 * tensor, batch)
    assert doubled["a"][0].tolist() == doubled["a"][1][0].tolist() == doubled["b"].tokens.tolist() == [2, 2]
    assert (doubled["a"][1][1], doubled["b"].length, doubled["c"]) == (3, 4, "text")
    assert move(batch, "meta")["b"].tokens.device.type == "meta"
