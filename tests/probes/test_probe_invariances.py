"""Transformations that must not change the readings, or must change them in a known way."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from kit.probe_models import Written, measured, tokens, transformer

K, Q, PATTERN = (f"blocks.0.attn.{name}" for name in ("hook_k", "hook_q", "hook_pattern"))
PROBES = ("attention_sparsity", "head_specialization", "qk_alignment")
OF_ATTENTION = (
    "entropy",
    "effective_keys",
    "top_mass",
    "sparsity",
    "first_key_mass",
    "perplexity",
    "sparsity_by_third",
)
PER_HEAD = {"mass", "mass_error", "lift", "leader", *OF_ATTENTION, *(f"{name}_error" for name in OF_ATTENTION)}
PER_HEAD |= {"explained", "effective_rank", "rank", "key_query", "key_query_chance", "leading"}
PER_HEAD |= {"score_spectrum", "score_top", "score_top_error", "score_rank", "score_rank_error"}
ERRORS = tuple(f"{probe}_error" for probe in (*OF_ATTENTION, "mass"))  # standard errors over sequences
OF_SAMPLE_SIZE = ("score_top_error", "score_top_chance", "score_rank_error", "score_rank_chance")
OF_SAMPLE_SIZE += ("leader", "coverage", "phase")  # a group leads if its mass is beyond its standard error


@st.composite
def activations(draw):
    """A layer of any size, causal or not, normalized or not: pattern, keys and queries."""
    batch, heads, length = draw(st.integers(1, 3)), draw(st.integers(2, 4)), draw(st.integers(2, 6))
    stream = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    scores = draw(st.sampled_from([0.1, 1.0, 20.0])) * torch.randn(batch, heads, length, length, generator=stream)
    causal = draw(st.booleans())
    linear = draw(st.booleans())
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    if linear:
        pattern = scores.tril() if causal else scores
    else:
        pattern = (scores.masked_fill(hidden, -torch.inf) if causal else scores).softmax(-1)
    keys, queries = (torch.randn(batch, length, heads, 3, generator=stream) for _ in range(2))
    direction = "causal" if causal else "bidirectional"
    return {PATTERN: pattern.double(), K: keys.double(), Q: queries.double()}, direction


def readings(layer, direction):
    model = Written(layer, attention_dir=direction)
    return {f"{p}/{name}": v for p in PROBES for name, v in measured(model, p).items()}


@settings(max_examples=15)
@given(activations(), st.randoms(use_true_random=False))
def test_permuting_heads_permutes_the_readings(given_layer, rng):
    layer, direction = given_layer
    order = list(range(layer[PATTERN].shape[1]))
    rng.shuffle(order)
    permuted = {PATTERN: layer[PATTERN][:, order], K: layer[K][:, :, order], Q: layer[Q][:, :, order]}
    before, after = readings(layer, direction), readings(permuted, direction)
    for name, values in before.items():
        expected = values[:, order] if name.partition("/")[2] in PER_HEAD else values
        np.testing.assert_allclose(after[name], expected, atol=1e-9, err_msg=name)


@settings(max_examples=15)
@given(activations())
def test_duplicating_the_batch_changes_nothing(given_layer):
    layer, direction = given_layer
    doubled = {name: torch.cat([value, value]) for name, value in layer.items()}
    before, after, n = readings(layer, direction), readings(doubled, direction), len(layer[PATTERN])
    for name, values in before.items():
        if name.endswith(
            ERRORS
        ):  # as if the copies were further sequences; of one sequence, the queries are the sample
            values = values * ((n - 1) / (2 * n - 1)) ** 0.5 if n > 1 else np.zeros_like(values)
        if not name.endswith(OF_SAMPLE_SIZE):
            np.testing.assert_allclose(after[name], values, atol=1e-9, err_msg=name)


@settings(max_examples=15)
@given(activations())
def test_readings_stay_in_their_ranges(given_layer):
    layer, direction = given_layer
    found = readings(layer, direction)
    n_key, eps = layer[PATTERN].shape[-1], 1e-9
    for name in ("attention_sparsity/sparsity", "attention_sparsity/top_mass", "head_specialization/mass"):
        assert (found[name] >= -eps).all() and (found[name] <= 1 + eps).all(), name
    for name in ("head_specialization/overlap", "head_specialization/coverage", "qk_alignment/explained"):
        assert (found[name] >= -eps).all() and (found[name] <= 1 + eps).all(), name
    assert (found["qk_alignment/key_query"] >= -eps).all() and (found["qk_alignment/key_query"] <= 1 + eps).all()
    assert (found["attention_sparsity/effective_keys"] >= 1 - eps).all()
    assert (found["attention_sparsity/effective_keys"] <= n_key + eps).all()
    assert (found["qk_alignment/effective_rank"] <= 3 + eps).all()
    np.testing.assert_allclose(found["head_specialization/mass"].sum(-1), 1)
    np.testing.assert_allclose(found["qk_alignment/explained"].sum(-1), 1)
    np.testing.assert_allclose(np.linalg.norm(found["qk_alignment/leading"], axis=-1), 1)


@settings(max_examples=15)
@given(st.permutations(range(3)))
def test_permuting_a_transformers_heads_permutes_its_induction_scores(order):
    model, permuted = transformer().double(), transformer().double()
    for block in permuted.blocks:
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            parameter = getattr(block.attn, name)
            parameter.data = parameter.data[list(order)]
    before, after = (measured(m, "induction", tokens()) for m in (model, permuted))
    for name in ("prefix_matching", "previous_token", "duplicate_token", "copying"):
        np.testing.assert_allclose(after[name], before[name][:, list(order)], atol=1e-9)
        assert (before[name] <= 1).all() and (before[name] >= (-1 if name == "copying" else 0)).all()
