"""The attention probes on hand-made patterns."""

from __future__ import annotations

import pytest
import torch

import stagelens as sl
from stagelens.experiments.batches import eval_batch
from stagelens_emergence.config import KeyValueConfig, RegressionConfig
from stagelens_emergence.probes import attention_to, copying, selecting
from stagelens_emergence.tasks.recall import KeyValueRecall
from stagelens_emergence.tasks.regression import Regression

# k1 v1 k2 v2 q; the query is k2 in the first sequence and k1 in the second
PAIR = torch.tensor([[False, True], [True, False]])


def pattern(*entries: tuple[int, int, int, float]) -> torch.Tensor:
    """[2, 1, 5, 5] with the given (sequence, query, key, weight)."""
    found = torch.zeros(2, 1, 5, 5)
    for sequence, query, key, weight in entries:
        found[sequence, 0, query, key] = weight
    return found


def test_copying_is_the_attention_from_the_answering_value_to_its_key():
    by_hand = pattern((0, 3, 2, 0.8), (1, 1, 0, 0.4), (0, 1, 0, 0.9), (1, 3, 2, 0.9))
    assert copying(by_hand, PAIR).tolist() == pytest.approx([0.6])


def test_selecting_is_the_attention_from_the_query_to_the_value_that_answers():
    by_hand = pattern((0, 4, 3, 0.7), (1, 4, 1, 0.1), (0, 4, 1, 0.3), (1, 4, 3, 0.9))
    assert selecting(by_hand, PAIR).tolist() == pytest.approx([0.4])


def test_selecting_counts_all_copies_of_the_answer():
    by_hand = pattern((0, 4, 1, 0.5), (0, 4, 3, 0.5), (1, 4, 1, 0.5), (1, 4, 3, 0.5))
    assert selecting(by_hand, torch.ones(2, 2, dtype=torch.bool)).tolist() == pytest.approx([1.0])


def test_attention_to_the_relevant_token_is_that_of_the_last_query():
    by_hand = pattern((0, 4, 2, 0.6), (1, 4, 0, 0.2), (0, 3, 2, 1.0))
    relevant = torch.zeros(2, 5, dtype=torch.bool)
    relevant[0, 2] = relevant[1, 0] = True
    assert attention_to(by_hand, relevant).tolist() == pytest.approx([0.4])


def test_the_key_value_probe_agrees_with_the_model_s_cache():
    task = KeyValueRecall(KeyValueConfig(d_model=8, d_head=2, eval_size=16, B=2.0))
    model, batch = task.build_model(), eval_batch(task)
    recorder = sl.Recorder(model, ["key_value"], batch, task=task)
    recorder.measure(0)
    _, cache = model.run_with_cache(batch.tokens)
    where = (batch.tokens[:, :-1:2] == batch.tokens[:, -1:]).int().argmax(1)  # [n]
    rows = torch.arange(16)
    for layer in range(2):
        attention = cache["pattern", layer]  # [n, head, query, key]
        expected = attention[rows, :, 2 * where + 1, 2 * where].mean(0)
        found = recorder.timeline.series("key_value/copying")[0, layer]
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
        expected = attention[rows, :, -1, 2 * where + 1].mean(0)
        found = recorder.timeline.series("key_value/selecting")[0, layer]
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    right = model(batch.train_tokens)[:, -1].argmax(-1) == batch.train_answer
    assert recorder.timeline.scalar("key_value/train_accuracy")[1][0] == pytest.approx(right.float().mean().item())


def test_the_relevant_attention_of_a_new_model_is_uniform():
    task = Regression(RegressionConfig(T=10, d=4, d_model=8, d_head=2, eval_size=256))
    model = task.build_model()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.zero_()
    recorder = sl.Recorder(model, ["relevant_attention"], eval_batch(task), task=task)
    recorder.measure(0)
    assert recorder.timeline.series("relevant_attention/mass").ravel().tolist() == pytest.approx([0.1] * 8, rel=1e-5)


def test_each_probe_gives_the_reason_if_it_does_not_apply():
    recall = KeyValueRecall(KeyValueConfig(d_model=8, d_head=2, eval_size=4))
    recorder = sl.Recorder(recall.build_model(), ["relevant_attention"], eval_batch(recall), task=recall)
    assert "which token is relevant" in recorder.skipped["relevant_attention"]
    regression = Regression(RegressionConfig(T=4, d=2, d_model=8, d_head=2, eval_size=4))
    recorder = sl.Recorder(regression.build_model(), ["key_value"], eval_batch(regression), task=regression)
    assert "keys, values and a query" in recorder.skipped["key_value"]


def test_the_training_loss_under_autocast_is_not_rounded_to_half_precision():
    task = KeyValueRecall(KeyValueConfig(d_model=8, d_head=2, eval_size=16, B=2.0))
    model, batch = task.build_model(), eval_batch(task)
    with torch.autocast("cpu", torch.bfloat16):
        recorder = sl.Recorder(model, ["key_value"], batch, task=task)
        recorder.measure(0)
        with torch.no_grad():
            logits = model(batch.train_tokens)[:, -1]
    assert logits.dtype == torch.bfloat16
    expected = torch.nn.functional.cross_entropy(logits.double(), batch.train_answer).item()
    assert recorder.timeline["key_value/train_loss"].item() == pytest.approx(expected, rel=1e-6)
