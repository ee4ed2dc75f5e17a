"""induction on contexts of more than 128 positions: gaps, one of them near the whole context, and fixed positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from kit.probe_models import PATTERN, Written, induction_circuit, measured, omissions, tokens, transformer
from stagelens_probes.gaps import gapped_tokens
from stagelens_probes.induction import Induction

SIZES = [(129, 64), (200, 64), (300, 1000), (1024, 500)]
BY_GAP = "prefix_matching_by_gap"


@pytest.mark.parametrize(("size", "d_vocab"), SIZES)
def test_each_token_of_a_second_copy_occurred_once_before_after_another_gap(size, d_vocab):
    drawn = gapped_tokens(d_vocab, size, 2)
    assert drawn.tokens.shape == (2, size) and drawn.tokens.max() < d_vocab
    assert drawn.gaps[-1] > 0.86 * size and drawn.gaps == sorted(set(drawn.gaps))
    for row in drawn.tokens.tolist():
        for gap, queries, keys in zip(drawn.gaps, drawn.query.tolist(), drawn.key.tolist(), strict=True):
            for query, key in zip(queries, keys, strict=True):
                assert [k for k in range(query) if row[k] == row[query]] == [key - 1] and row[query] not in row[
                    query + 1 :
                ]
                assert abs(query - (key - 1) - gap) < len(queries)
    assert not torch.equal(*drawn.tokens)
    assert not torch.equal(drawn.tokens, gapped_tokens(d_vocab, size, 2, seed=1).tokens)


def after_the_last_occurrence(row):
    """The pattern [query, key] of an exact induction head; without an earlier occurrence it attends to position 0."""
    keys, last = [], {}
    for position, token in enumerate(row):
        keys.append(last.get(token, -1) + 1)
        last[token] = position
    return one_hot(torch.tensor(keys), len(row)).float()


@pytest.mark.parametrize(("size", "d_vocab", "sequences"), [(129, 64, 7), (300, 90, 3), (1030, 500, 1)])
def test_exact_heads_score_one_after_every_gap_and_uniform_heads_chance(size, d_vocab, sequences):
    drawn = gapped_tokens(d_vocab, size, sequences)
    exact = torch.stack([after_the_last_occurrence(row) for row in drawn.tokens.tolist()])
    uniform = torch.ones(size, size).tril() / torch.arange(1, size + 1)[:, None]
    pattern = torch.stack([exact, uniform.expand_as(exact)], 1)
    if size == 1030:
        pattern = pattern * torch.tensor([0.5, 1.0])[:, None, None]  # a sink takes the rest
    batch = torch.zeros(2, size, dtype=torch.long)
    found = measured(Written({PATTERN: pattern}, d_vocab=d_vocab, n_ctx=size), ByGap(), batch)
    np.testing.assert_allclose(found[BY_GAP][0, 0], 0.5 if size == 1030 else 1, atol=1e-6)
    np.testing.assert_allclose(found[f"{BY_GAP}_error"][0, 0], 0, atol=1e-6)
    np.testing.assert_allclose(found[BY_GAP][0, 1], found[f"{BY_GAP}_chance"][0], rtol=1e-5)
    by_hand = [np.mean([1 / (q + 1) for q in queries]) for queries in drawn.query.tolist()]
    np.testing.assert_allclose(found[f"{BY_GAP}_chance"][0], by_hand, rtol=1e-5)


class ByGap(Induction):
    """The gaps alone: a written pattern has one size."""

    def readings(self, reduced, context):
        return self._by_gap(context)


def test_no_head_of_a_fixed_lag_matches_more_than_one_run_of_a_gap():
    size, d_vocab = 200, 64
    query = torch.arange(size)
    pattern = one_hot((query[None, :] - query[:, None]).clamp(min=0), size).float()  # [lag, query, key]
    batch = torch.zeros(2, size, dtype=torch.long)
    found = measured(Written({PATTERN: pattern[None]}, d_vocab=d_vocab, n_ctx=size), ByGap(), batch)[BY_GAP][0]
    runs = gapped_tokens(d_vocab, size, 1).query.shape[1] // 2
    assert found.max() == pytest.approx(1 / runs) and runs >= 4
    assert (found.max(0) > 0).all()  # each gap is met by some lag


def test_an_induction_circuit_matches_across_every_gap_and_its_positional_head_across_none():
    model = induction_circuit(64, 160)
    found = measured(model, "induction", torch.randint(64, (2, 160), generator=torch.Generator().manual_seed(0)))
    np.testing.assert_allclose(found[BY_GAP][1, 0], 1, atol=1e-5)
    np.testing.assert_allclose(found[BY_GAP][0, 0], 0, atol=1e-5)  # attends to the previous position
    np.testing.assert_allclose(found[BY_GAP][1, 1], found[f"{BY_GAP}_chance"][1], rtol=1e-4)
    assert found["prefix_matching"][1, 0] == pytest.approx(1)


def test_the_standard_error_is_that_over_runs():
    size, d_vocab = 130, 64
    stream = torch.Generator().manual_seed(0)
    pattern = torch.randn(7, 2, size, size, generator=stream).tril().abs()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    found = measured(
        Written({PATTERN: pattern}, d_vocab=d_vocab, n_ctx=size), ByGap(), torch.zeros(2, size, dtype=torch.long)
    )
    drawn = gapped_tokens(d_vocab, size, 7)
    for gap, (queries, keys) in enumerate(zip(drawn.query, drawn.key, strict=True)):
        for head in range(2):
            runs = pattern[:, head, queries, keys].reshape(-1, 2).mean(1).numpy()
            assert found[BY_GAP][0, head, gap] == pytest.approx(runs.mean(), rel=1e-5)
            assert found[f"{BY_GAP}_error"][0, head, gap] == pytest.approx(
                runs.std(ddof=1) / len(runs) ** 0.5, rel=1e-4
            )


@pytest.mark.parametrize(
    ("length", "d_vocab", "says"), [(128, 70, "have 128 positions"), (129, 63, "63 tokens are too few")]
)
def test_short_sequences_and_small_vocabularies_have_no_gaps(length, d_vocab, says):
    model = transformer(n_ctx=140, d_vocab=d_vocab, n_layers=1)
    given, omitted = omissions(model, "induction", tokens(2, length, d_vocab))
    assert says in omitted[BY_GAP] and "prefix_matching" in given


def test_the_fixed_score_is_the_loss_at_500_minus_that_at_50():
    batch = tokens(3, 510, 11)
    logits = torch.randn(3, 510, 11, generator=torch.Generator().manual_seed(0))
    model = Written({PATTERN: torch.eye(64)[None, None]}, logits, d_vocab=11, n_ctx=64)
    found = measured(model, "induction", batch)
    losses = [cross_entropy(logits[:, t], batch[:, t + 1], reduction="none") for t in (50, 500)]
    scores = (losses[1] - losses[0]).numpy()
    assert found["icl_score_fixed"] == pytest.approx(scores.mean(), rel=1e-5)
    assert found["icl_score_fixed_error"] == pytest.approx(scores.std(ddof=1) / 3**0.5, rel=1e-4)
    given, omitted = omissions(
        Written({PATTERN: torch.eye(64)[None, None]}, logits[:, :500], d_vocab=11, n_ctx=64),
        "induction",
        batch[:, :500],
    )
    assert "icl_score" in given and "up to position 498" in omitted["icl_score_fixed"]


def test_how_many_sequences_are_drawn_is_a_setting():
    few, many = (measured(transformer(), Induction(sequences=n), tokens()) for n in (4, 64))
    assert (many["prefix_matching_error"] < few["prefix_matching_error"]).mean() > 0.7
