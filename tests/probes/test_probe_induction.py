"""induction, on a two-layer model built by hand whose heads are known exactly, and against TransformerLens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from probe_models import (
    PATTERN,
    PositionalToy,
    Written,
    measured,
    next_token_loss,
    refusal,
    squared_loss,
    tokens,
    transformer,
)
from transformer_lens import FactoredMatrix
from transformer_lens.head_detector import detect_head

import stagelens as sl
from stagelens_probes.induction import Induction, copying_scores, icl_score, repeated_tokens

V, P = 8, 20  # tokens, positions: S = 8, and TransformerLens' detector wants sequences shorter than n_ctx
HALF = V
SHARP = 1e4  # attention scores are 0 or so large that softmax is one-hot to the last digit


@pytest.fixture(scope="module")
def model():
    """The residual stream is [token, position, previous token], each one-hot.

    Layer 0: head 0 attends to the previous position and writes its token; head 1 attends to equal tokens.
    Layer 1: head 0 attends to where the previous token equals this one, and copies the token there (induction);
    head 1 attends alike to all and writes minus the tokens it reads.
    """
    model = transformer(
        n_layers=2, n_heads=2, d_model=2 * V + P, d_head=P, n_ctx=P, d_vocab=V, d_mlp=None, normalization="none"
    )
    token, position, previous = slice(0, V), slice(V, V + P), slice(V + P, 2 * V + P)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, token] = torch.eye(V)
        model.pos_embed.W_pos[:, position] = torch.eye(P)
        model.unembed.W_U[token] = torch.eye(V)
        first, second = (block.attn for block in model.blocks)
        first.W_Q[0, position] = SHARP * torch.eye(P).roll(1, 0)  # position i asks for i - 1
        first.W_Q[0, V] = 0  # position 0 has none before it, and attends to itself
        first.W_K[0, position] = torch.eye(P)
        first.W_V[0, token, :V] = torch.eye(V)
        first.W_O[0, :V, previous] = torch.eye(V)
        first.W_Q[1, token, :V] = SHARP * torch.eye(V)
        first.W_K[1, token, :V] = torch.eye(V)
        second.W_Q[0, token, :V] = SHARP * torch.eye(V)
        second.W_K[0, previous, :V] = torch.eye(V)
        second.W_V[0, token, :V] = torch.eye(V)
        second.W_O[0, :V, token] = 10 * torch.eye(V)
        second.W_V[1, token, :V] = torch.eye(V)
        second.W_O[1, :V, token] = -torch.eye(V)
    return model


@pytest.fixture(scope="module")
def readings(model):
    return measured(model, "induction", torch.zeros(1, 4, dtype=torch.long))


def uniform(queries: range) -> float:
    """Mean over queries of 1 / visible keys."""
    return float(np.mean([1 / (q + 1) for q in queries]))


def test_the_heads_are_what_they_were_built_to_be(readings):
    second_half = range(HALF, 2 * HALF)
    # Position 0 reads itself as its own previous token, so the first repeated token finds two places: 1 and 0.
    np.testing.assert_allclose(
        readings["prefix_matching"], [[0, 0], [(HALF - 0.5) / HALF, uniform(second_half)]], atol=1e-6
    )
    assert readings["previous_token"][0, 0] == pytest.approx(1)
    assert readings["previous_token"][1, 1] == pytest.approx(uniform(range(1, 2 * HALF)))
    # Equal tokens: the query itself and its duplicate, half each. Of the induction head: place 0, as above.
    np.testing.assert_allclose(readings["duplicate_token"], [[0, 0.5], [0.5 / HALF, uniform(second_half)]], atol=1e-6)
    # W_V W_O is 0 in token space, 0, 10 and -1 times the identity.
    np.testing.assert_allclose(readings["copying"], [[0, 0], [1, -1]], atol=1e-6)


@pytest.mark.parametrize(
    ("reading", "detector", "queries"),
    [
        ("prefix_matching", "induction_head", HALF),
        ("duplicate_token", "duplicate_token_head", HALF),
        ("previous_token", "previous_token_head", 2 * HALF - 1),
    ],
)
@pytest.mark.parametrize("trained", [True, False], ids=["built", "random"])
def test_it_agrees_with_the_head_detector(model, monkeypatch, reading, detector, queries, trained):
    """The detector divides by all n = 2S queries of the sequence, ours by the m queries that have such a key.

    Each row of attention sums to 1 and each of the m rows names one key, so with our mean attention a on it
    "mul" = sum of attention on the keys / sum of attention = a m / n, and
    "abs" = 1 - sum |attention - named| / n: a row that names a key is off by 2 (1 - a), one that names none by 1, so
            1 - (2 m (1 - a) + n - m) / n = (m / n) (2 a - 1), which the detector rounds to three digits.
    """
    model = model if trained else transformer(d_vocab=V, n_ctx=P, init_scale=5.0)
    ours = measured(model, "induction", torch.zeros(1, 4, dtype=torch.long))[reading]
    n, m = 2 * HALF, queries
    found = {"mul": [], "abs": []}
    for row in repeated_tokens(V, P):
        monkeypatch.setattr(model, "to_tokens", lambda text, row=row: row[None])  # there is no tokenizer
        for measure, scores in found.items():
            scores.append(detect_head(model, "", detector, error_measure=measure))
    mul, absolute = (torch.stack(found[measure]).mean(0).numpy() for measure in ("mul", "abs"))
    np.testing.assert_allclose(mul, ours * m / n, atol=1e-6)
    np.testing.assert_allclose(absolute, m / n * (2 * ours - 1), atol=5.1e-4)


def test_the_tokens_repeat_and_are_distinct_within_a_half():
    drawn = repeated_tokens(d_vocab=50, n_ctx=21)
    assert drawn.shape == (4, 20)
    assert torch.equal(drawn[:, :10], drawn[:, 10:])
    assert all(len(set(row.tolist())) == 10 for row in drawn[:, :10])
    assert torch.equal(drawn, repeated_tokens(d_vocab=50, n_ctx=21))
    assert not torch.equal(drawn, repeated_tokens(d_vocab=50, n_ctx=21, seed=1))
    assert repeated_tokens(d_vocab=3, n_ctx=100).shape == (4, 6)  # no more than the vocabulary has
    assert repeated_tokens(d_vocab=9999, n_ctx=9999).shape == (4, 64)


def test_copying_is_that_of_the_whole_circuit():
    model = transformer().double()
    probe = measured(model, "induction", tokens())["copying"]
    for layer, block in enumerate(model.blocks):
        for head in range(3):
            circuit = model.W_E @ block.attn.W_V[head] @ block.attn.W_O[head] @ model.W_U  # [d_vocab, d_vocab]
            eigenvalues = np.linalg.eigvals(circuit.detach().numpy())
            expected = eigenvalues.sum().real / np.abs(eigenvalues).sum()
            assert probe[layer, head] == pytest.approx(expected)
            lens = FactoredMatrix(model.W_E @ block.attn.W_V[head], block.attn.W_O[head] @ model.W_U).eigenvalues
            assert probe[layer, head] == pytest.approx((lens.sum().real / lens.abs().sum()).item())


def test_copying_stays_between_minus_one_and_one():
    w = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    around = torch.eye(5)
    np.testing.assert_allclose(copying_scores(around, w, w.transpose(1, 2)), 1, rtol=1e-6)
    np.testing.assert_allclose(copying_scores(around, w, -w.transpose(1, 2)), -1, rtol=1e-6)
    assert copying_scores(around, 0 * w, w.transpose(1, 2)).tolist() == [0, 0, 0, 0]


def test_unnormalized_attention_counts_by_its_size(model):
    n = 2 * HALF
    linear = torch.zeros(4, 1, n, n)
    linear[:, :, range(1, n), range(n - 1)] = -3.0
    linear[:, :, range(1, n), range(1, n)] = 1.0
    written = Written({PATTERN: linear}, d_vocab=V, n_ctx=P)
    assert measured(written, "induction")["previous_token"].item() == pytest.approx(0.75)


def test_icl_score_is_late_minus_early():
    assert icl_score(torch.tensor([4.0, 2, 9, 9, 9, 9, 1, 0])).item() == 0.5 - 3
    assert icl_score(torch.tensor([4.0, 2, 1])).item() == 1 - 4


def test_icl_score_is_of_the_batch_where_the_batch_is_tokens():
    model, batch = transformer().double(), tokens()
    losses = model(batch, return_type="loss", loss_per_token=True).mean(0)
    assert measured(model, "induction", batch)["icl_score"] == pytest.approx(icl_score(losses).item())


def test_icl_score_is_of_the_repeated_tokens_where_the_batch_has_no_next_tokens(model):
    batch = (tokens(d_vocab=V), 0)
    loss = lambda model, batch: next_token_loss(model, batch[0])  # noqa: E731
    losses = model(repeated_tokens(V, P), return_type="loss", loss_per_token=True).mean(0)
    found = measured(model, "induction", batch, loss=loss)["icl_score"]
    assert found == pytest.approx(icl_score(losses).item()) and found < -1


def test_a_bidirectional_model_is_measured_too():
    found = measured(transformer(causal=False), "induction", tokens())
    assert {"prefix_matching", "copying"} <= set(found) and "icl_score" not in found


def test_a_model_whose_outcomes_are_not_its_tokens_has_no_copying():
    found = measured(transformer(d_out=3), "induction", tokens())
    assert "prefix_matching" in found and "copying" not in found and "icl_score" not in found


def test_a_large_vocabulary_never_makes_a_large_matrix():
    model = transformer(d_vocab=20_000, d_mlp=None)  # d_vocab^2 would be 1.6 GB
    assert measured(model, "induction", tokens())["copying"].shape == (2, 3)


def test_it_says_why_not():
    vectors = torch.randn(2, 10, 4)
    assert "no vocabulary" in refusal(transformer(d_in=4, d_out=4), "induction", vectors, loss=squared_loss)
    assert "no vocabulary" in refusal(PositionalToy(), "induction", torch.randn(2, 6, 4))
    assert "n_ctx = 3" in refusal(transformer(n_ctx=3), "induction", tokens(length=3))
    assert "hook_pattern" in refusal(Written({}, d_vocab=5, n_ctx=8), "induction")
    fixed = Written({PATTERN: torch.eye(5)[None, None]}, d_vocab=9, n_ctx=8)
    assert "(1, 1, 5, 5) on 8 tokens" in refusal(fixed, "induction")


def test_a_model_that_cannot_run_on_such_tokens_is_skipped_with_its_own_message():
    class Fixed(Written):
        def forward(self, batch):
            if isinstance(batch, torch.Tensor):
                raise ValueError("five positions, please")
            return super().forward(batch)

    model = Fixed({PATTERN: torch.eye(5)[None, None]}, d_vocab=9, n_ctx=8)
    assert "five positions, please" in refusal(model, "induction")


def test_another_seed_draws_other_tokens():
    recorder = sl.Recorder(transformer(), probes=[Induction(seed=7)], batch=tokens())
    other = sl.Recorder(transformer(), probes=[Induction()], batch=tokens())
    assert not np.array_equal(recorder.measure(0)[0].values, other.measure(0)[0].values)
