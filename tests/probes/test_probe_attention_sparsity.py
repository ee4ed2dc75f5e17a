"""attention_sparsity on patterns whose readings can be computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn.functional import one_hot

import stagelens as sl
from kit.probe_models import (
    PATTERN,
    Written,
    lens_model,
    measured,
    omissions,
    refusal,
    tokens,
    transformer,
    written_pattern,
)

LN2, LN3 = np.log(2), np.log(3)

# rows that see 1, 2 and 3 keys; the first has no choice and does not count
CAUSAL = [[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
CAUSAL_READINGS = {
    "entropy": (LN2 + 1.5 * LN2) / 2,
    "effective_keys": (2 + 2**1.5) / 2,
    "top_mass": 0.5,
    "sparsity": (0 + 1 - 1.5 * LN2 / LN3) / 2,
    "first_key_mass": (0.5 + 0.25) / 2,
    "first_key_mass_chance": (1 / 2 + 1 / 3) / 2,
    "perplexity": math.exp(1.25 * LN2),
    "entropy_error": 0.25 * LN2,  # of two numbers: half of their difference
    "effective_keys_error": (2**1.5 - 2) / 2,
    "top_mass_error": 0.0,
    "sparsity_error": (1 - 1.5 * LN2 / LN3) / 2,
    "first_key_mass_error": 0.125,
    "perplexity_error": math.exp(1.25 * LN2) * 0.25 * LN2,
}


def single(values: dict) -> dict:
    return {name: array.item() for name, array in values.items() if array.size == 1}


def test_a_causal_pattern_written_by_hand():
    assert single(measured(written_pattern(CAUSAL), "attention_sparsity")) == pytest.approx(CAUSAL_READINGS)


def test_unnormalized_attention_counts_by_its_size_whatever_its_sign_and_scale():
    linear = torch.tensor([[7.0, 0, 0], [-3, 3, 0], [1, -1, -2]])
    assert single(measured(written_pattern(linear), "attention_sparsity")) == pytest.approx(CAUSAL_READINGS)


def test_entries_at_masked_keys_do_not_count():
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


LOCAL = {"attn_types": ["global", "local"], "window_size": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        LOCAL | {"use_local_attn": True},
        LOCAL | {"use_local_attn": False},  # TransformerLens' attention is then global
        {"attention_dir": "bidirectional"},
        LOCAL | {"use_local_attn": True, "attention_dir": "bidirectional"},
        {"use_attention_sinks": True},
        {"n_heads": 4, "n_key_value_heads": 2},
        {"positional_embedding_type": "rotary", "rotary_dim": 4},
    ],
    ids=str,
)
def test_the_visible_keys_are_those_that_transformer_lens_attends_to(changes):
    model = lens_model(**changes)
    context = sl.Recorder(model, probes=[], batch=tokens()).context
    _, cache = model.run_with_cache(context.batch)
    for layer in range(2):
        pattern = cache["pattern", layer]
        assert torch.equal((pattern > 0).any(0).any(0), context.visible(pattern, layer))


def test_a_window_that_was_set_after_the_model_was_built_counts():
    model = lens_model()
    model.cfg.window_size, model.blocks[1].attn.attn_type = 2, "local"
    context = sl.Recorder(model, probes=[], batch=tokens()).context
    _, cache = model.run_with_cache(context.batch)
    for layer in range(2):
        assert torch.equal(cache["pattern", layer][0, 0] > 0, context.visible(cache["pattern", layer], layer))


@pytest.mark.parametrize("n_heads", [1, 2, 3])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("changes", [{}, {"use_local_attn": True, "window_size": 3}, {"use_attention_sinks": True}])
def test_uniform_attention_is_not_sparse_at_any_layer_and_head(n_layers, n_heads, changes):
    local = {"attn_types": ["local"] * n_layers} if "window_size" in changes else {}
    model = lens_model(n_layers=n_layers, n_heads=n_heads, **changes | local)
    for block in model.blocks:
        block.attn.W_Q.data.zero_()
        block.attn.b_Q.data.zero_()
    found = measured(model, "attention_sparsity", tokens())
    assert found["sparsity"].shape == (n_layers, n_heads)
    np.testing.assert_allclose(found["sparsity"], 0, atol=1e-6)
    seen = np.minimum(np.arange(2, 11), changes.get("window_size", 10))  # keys of queries 1..9
    np.testing.assert_allclose(found["effective_keys"], seen.mean(), rtol=1e-6)
    np.testing.assert_allclose(found["top_mass"], (1 / seen).mean(), rtol=1e-6)


def test_an_attention_sink_is_not_a_key():
    """Normalized over the keys, a softmax with a sink equals the softmax without it, so the readings are the same."""
    model = lens_model(use_attention_sinks=True, n_layers=1).double()
    with_sink = measured(model, "attention_sparsity", tokens())
    model.blocks[0].attn.sinks.data.fill_(-torch.inf)
    without = measured(model, "attention_sparsity", tokens())
    for name, values in without.items():
        np.testing.assert_allclose(with_sink[name], values, atol=1e-12, err_msg=name)


def test_a_query_without_any_weight_is_uniform():
    readings = single(measured(written_pattern([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]), "attention_sparsity"))
    assert readings["sparsity"] == pytest.approx(0, abs=1e-6)
    assert readings["effective_keys"] == pytest.approx(2.5)


def test_with_fewer_queries_than_keys_the_last_query_sees_all_keys():
    readings = single(measured(written_pattern([[0.25, 0.25, 0.25, 0.25]]), "attention_sparsity"))
    assert readings["effective_keys"] == pytest.approx(4)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_only_the_queries_that_the_task_scores_count_in_the_last_layer_and_all_in_earlier_ones(n_layers):
    layers = {f"blocks.{layer}.attn.hook_pattern": torch.tensor([[CAUSAL]]) for layer in range(n_layers)}
    recorder = sl.Recorder(Written(layers), probes=["attention_sparsity"], batch=0)
    recorder.context.queries = slice(-1, None)
    entropy = recorder.measure(0)[0].values[:, 0]  # [layer]
    assert entropy[:-1] == pytest.approx([CAUSAL_READINGS["entropy"]] * (n_layers - 1))
    assert entropy[-1] == pytest.approx(1.5 * LN2)


def test_the_last_layer_is_the_models_and_not_the_last_one_with_attention():
    after = {"blocks.0.attn.hook_pattern": torch.tensor([[CAUSAL]]), "blocks.1.hook_mlp_out": torch.zeros(1)}
    recorder = sl.Recorder(Written(after), probes=["attention_sparsity"], batch=0)
    recorder.context.queries = slice(-1, None)
    assert recorder.measure(0)[0].values.item() == pytest.approx(CAUSAL_READINGS["entropy"])


class Masked(Written):
    """Queries that see every second key, as the model itself says."""

    given: Any = None

    def visible_keys(self, layer, n_query, n_key):
        return self.given if self.given is not None else (torch.arange(n_key) % 2 == 0).expand(n_query, n_key)


def test_a_model_can_define_the_keys_that_its_queries_see():
    model = Masked({PATTERN: torch.tensor([[[[0.5, 0, 0.5], [0.5, 0, 0.5], [1, 0, 0]]]])}, attention_dir="causal")
    assert single(measured(model, "attention_sparsity"))["sparsity"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("given", [torch.ones(3, 3), torch.ones(2, 3, dtype=torch.bool), [[True] * 3] * 3])
def test_a_mask_of_another_shape_or_type_is_refused(given):
    model = Masked({PATTERN: torch.tensor([[CAUSAL]])})
    model.given = given
    recorder = sl.Recorder(model, probes=["attention_sparsity"], batch=0)
    recorder.measure(0)
    problem = recorder.problems["attention_sparsity"]
    assert "visible_keys(0, 3, 3) of Masked gave" in problem and "bool tensor [query, key] of shape [3, 3]" in problem


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
    exact = {"entropy": 0, "effective_keys": 1, "top_mass": 1, "sparsity": 1, "perplexity": 1, "first_key_mass": 1 / 3}
    assert {name: readings[name] for name in exact} == pytest.approx(exact)


def test_a_reason_is_given_if_no_query_sees_two_keys():
    assert "sees two keys" in refusal(written_pattern([[1.0]]), "attention_sparsity")


def test_its_dims_are_layer_and_head():
    recorder = sl.Recorder(transformer(), probes=["attention_sparsity"], batch=tokens())
    recorder.measure(0)
    series = recorder.timeline["attention_sparsity/entropy"]
    assert series.dims == ("step", "layer", "head") and series.shape == (1, 2, 3)


@pytest.mark.parametrize(("length", "sequences", "there"), [(5, 1, False), (6, 1, False), (7, 1, True), (4, 2, True)])
def test_the_error_of_a_third_needs_two_samples_in_each(length, sequences, there):
    """The first query sees one key and does not count: of 6 queries each third has two."""
    pattern = torch.rand(sequences, 1, length, length, generator=torch.Generator().manual_seed(0)).tril()
    given, omitted = omissions(written_pattern(pattern / pattern.sum(-1, keepdim=True)), "attention_sparsity")
    assert "sparsity_by_third" in given and "sparsity_error" in given
    assert ("sparsity_by_third_error" in given) == there == ("sparsity_by_third_error" not in omitted)
    if there:
        found = measured(written_pattern(pattern / pattern.sum(-1, keepdim=True)), "attention_sparsity")
        assert np.isfinite(found["sparsity_by_third_error"]).all()
    else:
        assert "six queries of one" in omitted["sparsity_by_third_error"]
