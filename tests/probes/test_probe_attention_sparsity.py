"""attention_sparsity, on patterns whose numbers can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from probe_models import measured, refusal, tokens, transformer, written_pattern
from torch.nn.functional import one_hot

import stagelens as sl

LN2, LN3 = np.log(2), np.log(3)

# rows that see 1, 2 and 3 keys; the first has no choice and does not count
CAUSAL = [[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
CAUSAL_READINGS = {
    "entropy": (LN2 + 1.5 * LN2) / 2,
    "effective_keys": (2 + 2**1.5) / 2,
    "top_mass": 0.5,
    "sparsity": (0 + 1 - 1.5 * LN2 / LN3) / 2,
}


def single(values: dict) -> dict:
    return {name: array.item() for name, array in values.items()}


def test_a_causal_pattern_written_by_hand():
    assert single(measured(written_pattern(CAUSAL), "attention_sparsity")) == pytest.approx(CAUSAL_READINGS)


def test_unnormalized_attention_counts_by_its_size_whatever_its_sign_and_scale():
    linear = torch.tensor([[7.0, 0, 0], [-3, 3, 0], [1, -1, -2]])
    assert single(measured(written_pattern(linear), "attention_sparsity")) == pytest.approx(CAUSAL_READINGS)


def test_what_stands_at_hidden_keys_does_not_count():
    junk = torch.tensor(CAUSAL) + torch.full((3, 3), 9.0).triu(1)
    assert single(measured(written_pattern(junk), "attention_sparsity")) == pytest.approx(CAUSAL_READINGS)


def test_a_bidirectional_model_has_every_key_visible_to_every_query():
    model = written_pattern([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1.0]], attention_dir="bidirectional")
    readings = single(measured(model, "attention_sparsity"))
    assert readings["entropy"] == pytest.approx(LN2 / 3)
    assert readings["effective_keys"] == pytest.approx((1 + 2 + 1) / 3)
    assert readings["top_mass"] == pytest.approx((1 + 0.5 + 1) / 3)
    assert readings["sparsity"] == pytest.approx((1 + 1 - LN2 / LN3 + 1) / 3)


def test_a_local_window_bounds_the_visible_keys():
    pattern = [[1.0, 0, 0], [0.5, 0.5, 0], [0.0, 0.5, 0.5]]  # uniform over a window of two
    model = written_pattern(pattern, use_local_attn=True, attn_types=["local"], window_size=2)
    assert single(measured(model, "attention_sparsity"))["sparsity"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("changes", [{}, {"attn_types": ["global", "local"], "window_size": 3}])
def test_the_visible_keys_are_those_that_transformer_lens_attends_to(changes):
    from transformer_lens import HookedTransformer

    cfg = dict(n_layers=2, d_model=8, n_ctx=7, d_head=4, n_heads=2, d_vocab=5, attn_only=True, **changes)
    with pytest.warns(DeprecationWarning):
        model = HookedTransformer(cfg | {"use_local_attn": bool(changes)})
    scene = sl.Recorder(model, probes=[], batch=tokens(2, 7, 5)).scene
    _, cache = model.run_with_cache(scene.batch)
    for layer in range(2):
        pattern = cache["pattern", layer]
        assert torch.equal(pattern[0, 0] > 0, scene.visible(pattern, layer))


def test_a_query_without_any_weight_is_uniform():
    readings = single(measured(written_pattern([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]), "attention_sparsity"))
    assert readings["sparsity"] == pytest.approx(0, abs=1e-6)
    assert readings["effective_keys"] == pytest.approx(2.5)


def test_with_fewer_queries_than_keys_the_last_query_sees_all_keys():
    readings = single(measured(written_pattern([[0.25, 0.25, 0.25, 0.25]]), "attention_sparsity"))
    assert readings["effective_keys"] == pytest.approx(4)


def test_only_the_queries_that_the_task_scores_count():
    recorder = sl.Recorder(written_pattern(CAUSAL), probes=["attention_sparsity"], batch=0)
    recorder.scene.queries = slice(-1, None)
    entropy = recorder.measure(0)[0].values
    assert entropy.item() == pytest.approx(1.5 * LN2)


def test_it_agrees_with_scipy_on_random_patterns():
    pattern = torch.rand(4, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tril()
    pattern /= pattern.sum(-1, keepdim=True)
    entropy = scipy.stats.entropy(pattern.numpy()[:, :, 1:], axis=-1)  # [batch, head, query]
    expected = {
        "entropy": entropy.mean((0, 2)),
        "effective_keys": np.exp(entropy).mean((0, 2)),
        "top_mass": pattern.numpy()[:, :, 1:].max(-1).mean((0, 2)),
        "sparsity": (1 - entropy / np.log(np.arange(2, 7))).mean((0, 2)),
    }
    found = measured(written_pattern(pattern), "attention_sparsity")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name][0], values, rtol=1e-12)


def test_one_hot_attention_is_sparsity_one():
    pattern = one_hot(torch.tensor([0, 0, 2, 1]), 4).float()
    readings = single(measured(written_pattern(pattern), "attention_sparsity"))
    assert readings == pytest.approx({"entropy": 0, "effective_keys": 1, "top_mass": 1, "sparsity": 1})


def test_it_says_why_where_no_query_has_a_choice():
    assert "sees two keys" in refusal(written_pattern([[1.0]]), "attention_sparsity")


def test_its_dims_are_layer_and_head():
    recorder = sl.Recorder(transformer(), probes=["attention_sparsity"], batch=tokens())
    recorder.measure(0)
    series = recorder.timeline["attention_sparsity/entropy"]
    assert series.dims == ("step", "layer", "head") and series.shape == (1, 2, 3)
