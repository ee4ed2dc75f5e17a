"""Key-value recall: the sequences of C.1, the task's contract, and its error messages."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import stagelens as sl
from stagelens.base.errors import UsageError
from stagelens.experiments.batches import Batches, eval_batch
from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training
from stagelens_emergence.config import KeyValueConfig
from stagelens_emergence.data.transformers import answering_pair, sample_recall
from stagelens_emergence.tasks.recall import KeyValueRecall

SMALL = {"d_model": 8, "d_head": 2, "batch_size": 4, "eval_size": 8}


def drawn(n: int, pairs: int, tokens: int, **kwargs):
    return sample_recall(n, pairs, tokens, torch.Generator().manual_seed(0), **kwargs)


# --- the sequences ---


@pytest.mark.parametrize(("pairs", "tokens"), [(1, 2), (4, 16), (5, 5)])
def test_without_repetition_each_key_occurs_once_and_the_query_is_one_of_them(pairs, tokens):
    batch = drawn(300, pairs, tokens)
    keys = batch.tokens[:, :-1:2]
    assert batch.tokens.shape == (300, 2 * pairs + 1)
    assert all(len(set(row)) == pairs for row in keys.tolist())
    assert (answering_pair(batch.tokens).sum(1) == 1).all()
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < tokens


@pytest.mark.parametrize("B", [None, 1.0, 2.5, 4.0])
def test_the_map_is_injective_and_the_answer_is_the_value_of_the_query(B):
    batch = drawn(300, 4, 16, B=B)
    for row, answer in zip(batch.tokens.tolist(), batch.answer.tolist(), strict=True):
        pairs = {(k, v) for k, v in zip(row[:-1:2], row[1::2], strict=True)} | {(row[-1], answer)}
        keys, values = {k for k, _ in pairs}, {v for _, v in pairs}
        assert len(pairs) == len(keys) == len(values)


def test_the_query_is_the_key_of_each_pair_with_probability_b_over_n_independently():
    pairs, B, n = 4, 1.5, 40_000
    placed = answering_pair(drawn(n, pairs, 16, B=B).tokens).float()
    fraction = B / pairs
    assert placed.mean(0).tolist() == pytest.approx([fraction] * pairs, abs=0.01)  # 4 standard errors
    both = (placed.T @ placed / n)[~torch.eye(pairs, dtype=torch.bool)]
    assert both.tolist() == pytest.approx([fraction**2] * len(both), abs=0.01)
    assert (placed.sum(1) == 0).float().mean() == pytest.approx((1 - fraction) ** pairs, abs=0.01)


def test_the_other_keys_are_drawn_uniformly_and_without_replacement():
    n, pairs, tokens = 20_000, 3, 6
    batch = drawn(n, pairs, tokens, B=1.0)
    keys, query = batch.tokens[:, :-1:2], batch.tokens[:, -1:]
    others = keys != query
    for row, other in zip(keys[:500].tolist(), others[:500].tolist(), strict=True):
        named = [key for key, is_other in zip(row, other, strict=True) if is_other]
        assert len(set(named)) == len(named)
    distance = ((keys - query) % tokens)[others]  # uniform over the five others
    assert (distance.bincount(minlength=tokens) / len(distance)).tolist() == pytest.approx([0] + [0.2] * 5, abs=0.01)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_the_query_distribution_has_c1s_masses(p):
    tokens = 8
    query = drawn(40_000, 2, tokens, p=p).tokens[:, -1]
    expected = [(p / 2 if token < 2 else 0) + (1 - p) / tokens for token in range(tokens)]
    assert (query.bincount(minlength=tokens) / len(query)).tolist() == pytest.approx(expected, abs=0.01)


def test_the_position_of_a_single_query_is_uniform():
    placed = answering_pair(drawn(20_000, 5, 8).tokens).float().mean(0)
    assert placed.tolist() == pytest.approx([0.2] * 5, abs=0.015)


def test_what_is_drawn_depends_on_the_generator_alone():
    one, again = drawn(5, 3, 9, B=2.0, p=0.5), drawn(5, 3, 9, B=2.0, p=0.5)
    assert torch.equal(one.tokens, again.tokens)
    assert torch.equal(one.answer, again.answer)


# --- the task ---


def test_a_new_model_is_at_chance():
    task = KeyValueRecall(KeyValueConfig(**SMALL))
    assert task.loss(task.build_model(), eval_batch(task)).item() == pytest.approx(math.log(16))


def test_it_is_evaluated_without_repetition_and_trained_with_it():
    task = KeyValueRecall(KeyValueConfig(**SMALL | {"eval_size": 64}, pairs=4, B=4.0, p=1.0))
    batch = eval_batch(task)
    assert (answering_pair(batch.tokens).sum(1) == 1).all()
    assert answering_pair(batch.train_tokens).all()
    assert (batch.train_tokens[:, -1] < 2).all()
    step = task.batches("cpu")(3)
    assert answering_pair(step.tokens).all()
    assert isinstance(task.batches("cpu"), Batches)


def test_a_head_that_copies_in_the_first_layer_is_sparse_though_the_loss_reads_the_query_alone():
    """From each value to its key and uniform elsewhere: 1 at the values, 0 at the keys and at the query."""
    task = KeyValueRecall(KeyValueConfig(**SMALL))
    model, batch = task.build_model(), eval_batch(task)
    length = batch.tokens.shape[1]
    uniform = torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None]
    value = torch.arange(length) % 2 == 1
    copying = torch.where(value[:, None], torch.eye(length).roll(-1, 1), uniform)
    for layer in range(2):
        model.add_hook(f"blocks.{layer}.attn.hook_pattern", lambda pattern, hook: copying.expand_as(pattern))
    recorder = sl.Recorder(model, ["attention_sparsity"], batch, task=task)
    recorder.measure(0)
    sparsity = recorder.timeline["attention_sparsity/sparsity"][0]  # [layer, head]
    pairs = length // 2
    np.testing.assert_allclose(sparsity[0], pairs / (2 * pairs), atol=1e-6)  # of the queries that see two keys
    np.testing.assert_allclose(sparsity[1], 0, atol=1e-6)  # the last layer, at the query


def test_one_pair_is_learned_by_copying_the_only_value():
    task = KeyValueRecall(KeyValueConfig(pairs=1, tokens=4, d_model=16, d_head=4, lr=1e-2, batch_size=32, steps=150))
    training = Training(task)
    for step in range(150):
        training.advance(step)
    batch = eval_batch(task)
    assert task.metrics(training.model(batch.tokens), batch)["accuracy"] > 0.95
    assert task.loss(training.model, batch) < 0.3


def test_the_paper_preset_is_table_1():
    config = make_config(KeyValueConfig, KeyValueRecall.presets, "paper", [])
    sizes = (
        config.layers,
        config.heads,
        config.d_model,
        config.d_head,
        config.mlp_factor,
        config.batch_size,
        config.lr,
    )
    assert sizes == (4, 4, 256, 64, 4, 32, 1e-4)
    assert (config.pairs, config.tokens, config.B, config.p) == (32, 256, None, 0.0)


# --- mistakes ---

WRONG = {
    "pairs=17": "pairs=17 different keys are too many for tokens=16; give pairs <= 16",
    "pairs=16,B=2": "give pairs <= 15",
    "B=9": "cannot occur B=9 times among pairs=8 keys",
    "B=0": "greater than 0",
    "p=1.5": "p=1.5 is not a probability",
    "p=-0.1": "p=-0.1 is not a probability",
    "tokens=1": "tokens=1 is too few",
    "pairs=0": "greater than or equal to 1",
}


@pytest.mark.parametrize("settings", WRONG)
def test_a_mistake_gets_one_line(settings):
    with pytest.raises(UsageError, match=re.escape(WRONG[settings])) as raised:
        make_config(KeyValueConfig, KeyValueRecall.presets, "quick", settings.split(","))
    assert "\n" not in str(raised.value)
