"""induction, on a two-layer model built by hand whose heads are known exactly, and against TransformerLens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.head_detector import detect_head

import stagelens as sl
from kit.probe_models import (
    PATTERN,
    PositionalToy,
    Written,
    induction_circuit,
    measured,
    next_token_loss,
    omissions,
    refusal,
    squared_loss,
    tokens,
    transformer,
)
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import make_config
from stagelens_markov.tasks import Full, Minimal
from stagelens_probes.induction import Induction, icl_score
from stagelens_probes.repeats import repeated_tokens
from stagelens_probes.token_pass import NOT_ON_TOKENS

V, P = 64, 66  # tokens, positions: TransformerLens' detector wants sequences shorter than n_ctx, and ours have 64
SCORES = ("prefix_matching", "previous_token", "duplicate_token")
COPYING = ("copying", "copying_chance", "copying_folded", "copying_folded_chance")
LONG = ("prefix_matching_by_gap", "icl_score_fixed")  # of contexts that are longer than those here
SIZES = [(7, 4), (7, 9), (8, 5), (8, 100), (9, 20), (11, 6), (16, 7), (16, 50), (17, 12), (27, 7), (64, 99), (200, 40)]


@pytest.fixture(scope="module")
def model():
    return induction_circuit(V, P)


@pytest.fixture(scope="module")
def readings(model):
    return measured(model, "induction", torch.zeros(1, 4, dtype=torch.long))


def test_the_heads_are_what_they_were_built_to_be(readings):
    uniform = float(readings["prefix_matching_chance"][0])
    np.testing.assert_allclose(readings["prefix_matching"], [[0, 0], [1, uniform]], atol=1e-6)
    np.testing.assert_allclose(readings["duplicate_token"], [[0, 0.5], [0, uniform]], atol=1e-6)  # itself, and it
    assert readings["previous_token"][0, 0] == pytest.approx(1)
    assert readings["previous_token"][1, 1] == pytest.approx(np.mean([1 / (q + 1) for q in range(1, 64)]), rel=1e-5)
    # W_V W_O is 0 in token space, 0, 10 and -1 times the identity.
    np.testing.assert_allclose(readings["copying"], [[0, 0], [1, -1]], atol=1e-6)


@pytest.mark.parametrize(
    ("reading", "detector"),
    [
        ("prefix_matching", "induction_head"),
        ("duplicate_token", "duplicate_token_head"),
        ("previous_token", "previous_token_head"),
    ],
)
@pytest.mark.parametrize("trained", [True, False], ids=["built", "random"])
def test_it_agrees_with_the_head_detector(model, monkeypatch, reading, detector, trained):
    """The detector divides by all n queries of the sequence, ours by the m queries that have such a key.

    Each row of attention sums to 1, and each of the m rows names one key. Let a be our mean attention on it. Then
    - "mul" = sum of attention on the keys / sum of attention = a m / n.
    - "abs" = 1 - sum |attention - named| / n. A row that names a key is off by 2 (1 - a), one that names none by 1. So
      "abs" = 1 - (2 m (1 - a) + n - m) / n = (m / n) (2 a - 1). The detector rounds it to three digits.

    The vocabulary is large enough for all filler to be distinct, so that only the segment repeats.
    """
    model = model if trained else transformer(d_vocab=V, n_ctx=P, init_scale=5.0)
    ours = measured(model, "induction", tokens(d_vocab=V))
    drawn, by_mul, by_abs = repeated_tokens(V, P), [], []
    for row, length in zip(drawn.tokens, drawn.length.tolist(), strict=True):
        monkeypatch.setattr(model, "to_tokens", lambda text, row=row: row[None])  # there is no tokenizer
        m, n = (len(row) - 1 if reading == "previous_token" else length), len(row)
        by_mul.append(detect_head(model, "", detector, error_measure="mul") * n / m)
        by_abs.append((detect_head(model, "", detector, error_measure="abs") * n / m + 1) / 2)
    mul, absolute = torch.stack(by_mul), torch.stack(by_abs)  # [sequence, layer, head]
    np.testing.assert_allclose(ours[reading], mul.mean(0), atol=2e-6)
    np.testing.assert_allclose(ours[reading], absolute.mean(0), atol=1.1e-3)  # rounding of 5e-4, times n / 2 m
    np.testing.assert_allclose(ours[f"{reading}_error"], mul.std(0) / 8**0.5, atol=2e-6)


@pytest.mark.parametrize(("n_ctx", "d_vocab"), SIZES)
def test_segments_repeat_once_and_have_several_lengths(n_ctx, d_vocab):
    for seed in range(3):
        drawn = repeated_tokens(d_vocab, n_ctx, seed)
        assert drawn.tokens.shape == (8, min(n_ctx, 64)) and drawn.tokens.max() < d_vocab
        for row, S, start in zip(drawn.tokens.tolist(), drawn.length.tolist(), drawn.offset.tolist(), strict=True):
            segment, second = row[start : start + S], row[start + S : start + 2 * S]
            assert segment == second and len(set(segment)) == S and start >= 1
            assert not set(segment) & set(row[:start] + row[start + 2 * S :])  # the filler has other tokens
        assert torch.equal(drawn.tokens, repeated_tokens(d_vocab, n_ctx, seed).tokens)
        assert not torch.equal(drawn.tokens, repeated_tokens(d_vocab, n_ctx, seed + 1).tokens)
    assert len(set(drawn.length.tolist())) >= 2
    if min((n_ctx - 1) // 2, d_vocab - 1) >= 8:
        assert len(set(drawn.length.tolist())) >= 5 and len(set(drawn.offset.tolist())) >= 3


@pytest.mark.parametrize(("n_ctx", "d_vocab"), SIZES)
def test_no_head_of_a_fixed_lag_scores_above_half(n_ctx, d_vocab):
    """Head L attends to q - L, every L; if there is no such key, to position 0 or to itself."""
    n = min(n_ctx, 64)
    query = torch.arange(n)
    lagged = query[None, :] - query[:, None]  # [lag, query]
    key = torch.cat([lagged.clamp(min=0), torch.where(lagged < 0, query, lagged)])  # [head, query]
    pattern = torch.nn.functional.one_hot(key, n).float()  # [head, query, key]
    for seed in range(3):
        found = measured(Written({PATTERN: pattern[None]}, d_vocab=d_vocab, n_ctx=n_ctx), Induction(seed))
        assert found["prefix_matching"].max() <= 0.5 and found["duplicate_token"].max() <= 0.5
        assert found["previous_token"].argmax() == 1 and found["previous_token"][0, 1] == 1
        if n >= 16 and d_vocab > 8:
            assert max(found["prefix_matching"].max(), found["duplicate_token"].max()) <= 0.25


@pytest.mark.parametrize(("n_ctx", "d_vocab"), SIZES)
def test_exact_heads_score_one_and_a_uniform_head_scores_chance(n_ctx, d_vocab):
    """Patterns made from the tokens alone: after the last earlier occurrence of this token, at it, or at all alike."""
    for seed in range(3):
        drawn = repeated_tokens(d_vocab, n_ctx, seed).tokens.tolist()
        n = len(drawn[0])
        pattern = torch.zeros(8, 3, n, n)
        for row, line in enumerate(drawn):
            for q, token in enumerate(line):
                before = [k for k in range(q) if line[k] == token]
                pattern[row, 0, q, before[-1] + 1 if before else 0] = 1
                pattern[row, 1, q, before[-1] if before else 0] = 1
                pattern[row, 2, q, : q + 1] = 1 / (q + 1)
        found = measured(Written({PATTERN: pattern}, d_vocab=d_vocab, n_ctx=n_ctx), Induction(seed))
        np.testing.assert_allclose(found["prefix_matching"][0, :2], [1, 0], atol=1e-6)
        np.testing.assert_allclose(found["duplicate_token"][0, :2], [0, 1], atol=1e-6)
        np.testing.assert_allclose(found["prefix_matching_error"][0, :2], 0, atol=1e-6)
        for score in SCORES:
            np.testing.assert_allclose(found[score][0, 2], found[f"{score}_chance"][0], rtol=1e-5)
        assert found["previous_token_chance"][0] == pytest.approx(np.mean([1 / (q + 1) for q in range(1, n)]), rel=1e-5)


def test_chance_of_a_bidirectional_model_is_one_key_of_all():
    uniform = {PATTERN: torch.full((1, 2, 20, 20), 0.05)}
    found = measured(Written(uniform, d_vocab=9, n_ctx=20, attention_dir="bidirectional"), "induction")
    for score in SCORES:
        np.testing.assert_allclose(found[score], 0.05, rtol=1e-5)
        np.testing.assert_allclose(found[f"{score}_chance"], 0.05, rtol=1e-5)


@pytest.mark.parametrize(
    ("n_ctx", "d_vocab", "says"), [(6, 9, "n_ctx = 6, 7 is the least"), (40, 3, "3 tokens are too few")]
)
def test_a_model_too_small_for_two_lengths_still_has_the_other_readings(n_ctx, d_vocab, says):
    batch = tokens(length=5, d_vocab=d_vocab)
    given, omitted = omissions(transformer(n_ctx=n_ctx, d_vocab=d_vocab), "induction", batch)
    assert given == {*COPYING, "icl_score", "icl_score_error"} and set(omitted) == {*SCORES, *LONG}
    assert all(says in omitted[score] for score in SCORES)


@pytest.mark.filterwarnings("ignore:HookedTransformer is deprecated:DeprecationWarning")
@pytest.mark.parametrize("sink", [0.0, 4.0])
def test_with_an_attention_sink_the_attention_itself_is_reported(sink):
    config = HookedTransformerConfig(
        n_layers=2, n_heads=2, d_model=16, d_head=8, n_ctx=20, d_vocab=30, act_fn="relu", d_mlp=16, seed=0,
        use_attention_sinks=True, device="cpu",
    )  # fmt: skip
    model = HookedTransformer(config)
    for block in model.blocks:
        block.attn.sinks.data.fill_(sink)
    drawn = repeated_tokens(30, 20)
    _, cache = model.run_with_cache(drawn.tokens)
    found = measured(model, "induction", tokens(d_vocab=30))
    for layer in range(2):
        pattern = cache["pattern", layer]
        assert pattern.sum(-1).max() < 0.98
        previous = pattern.diagonal(-1, -2, -1).mean((0, 2))
        np.testing.assert_allclose(found["previous_token"][layer], previous.detach(), rtol=1e-5)
        by_row = [
            pattern[row, :, torch.arange(o + S, o + 2 * S), torch.arange(o + 1, o + S + 1)].mean(-1)
            for row, (S, o) in enumerate(zip(drawn.length.tolist(), drawn.offset.tolist(), strict=True))
        ]
        np.testing.assert_allclose(found["prefix_matching"][layer], torch.stack(by_row).mean(0).detach(), rtol=1e-5)


def test_unnormalized_attention_counts_by_its_size():
    n = 16
    linear = torch.zeros(1, 1, n, n)
    linear[:, :, range(1, n), range(n - 1)] = -3.0
    linear[:, :, range(1, n), range(1, n)] = 1.0
    written = Written({PATTERN: linear}, d_vocab=9, n_ctx=n)
    assert measured(written, "induction")["previous_token"].item() == pytest.approx(0.75)


def test_icl_score_is_late_minus_early():
    assert icl_score(torch.tensor([4.0, 2, 9, 9, 9, 9, 1, 0])).item() == 0.5 - 3
    assert icl_score(torch.tensor([4.0, 2, 1])).item() == 1 - 4


def test_icl_score_is_of_the_batch():
    model, batch = transformer().double(), tokens()
    losses = model(batch, return_type="loss", loss_per_token=True).mean(0)
    assert measured(model, "induction", batch)["icl_score"] == pytest.approx(icl_score(losses).item())


def test_a_model_that_learns_in_context_has_a_negative_icl_score(model):
    batch = repeated_tokens(V, 40).tokens  # the second copies are predicted by the built induction head
    losses = model(batch, return_type="loss", loss_per_token=True).mean(0)
    found = measured(model, "induction", torch.randint(V, (16, 20)).repeat(1, 2))["icl_score"]
    assert found < -2
    assert measured(model, "induction", batch)["icl_score"] == pytest.approx(icl_score(losses).item(), rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_ideal_predictor_of_the_markov_task_learns_nothing_in_context(seed):
    """Its losses differ where the task scores nothing, by 4.9 nats here; where it scores, they are equal."""
    task = Full(make_config(Full.Config, Full.presets, "quick", ["eval_size=4000"]), seed)
    batch = eval_batch(task)
    ideal = list(task.references().values())[-1](batch)  # log-probabilities of the scored positions
    logits = torch.zeros(len(batch), batch.shape[1] - 1, ideal.shape[-1])
    logits[:, 0, 0] = 30.0  # an unscored position, confidently wrong
    logits[:, task.queries()] = ideal[:, -logits[:, task.queries()].shape[1] :]
    n = logits.shape[1]
    model = Written({PATTERN: torch.eye(n)[None, None]}, logits, d_vocab=ideal.shape[-1], n_ctx=n)
    recorder = sl.Recorder(model, probes=["induction", "loss_by_position"], batch=batch, task=task)
    recorder.measure(0)
    assert not recorder.problems and "induction/icl_score" not in recorder.skipped
    by_position = recorder.timeline["loss_by_position/loss"].values
    noise = 4 / 4000**0.5  # nats: four standard errors of a mean whose terms spread by less than 1
    assert abs(recorder.timeline["induction/icl_score"].item()) < noise and np.ptp(by_position) < 2 * noise


@pytest.mark.parametrize(("scored", "given"), [(3, False), (4, True), (9, True)])
def test_icl_score_needs_four_scored_positions(scored, given):
    recorder = sl.Recorder(transformer(), probes=["induction"], batch=tokens())
    recorder.context.queries = slice(9 - scored, 9)
    recorder.measure(0)
    assert ("induction/icl_score" in recorder.timeline) == given
    assert given or "scores 3 positions, and at least 4" in recorder.skipped["induction/icl_score"]


def test_without_next_tokens_there_is_no_icl_score(model):
    loss = lambda model, batch: next_token_loss(model, batch[0])  # noqa: E731
    given, omitted = omissions(model, "induction", (tokens(d_vocab=V), 0), loss=loss)
    assert set(omitted) == {"icl_score", "copying_folded", *LONG} and "copying" in given
    assert "not tokens" in omitted["icl_score"] and "not tokens" in omitted["icl_score_fixed"]


def test_a_bidirectional_model_is_measured_too():
    given, omitted = omissions(transformer(causal=False), "induction", tokens())
    assert {*SCORES, "copying"} <= given and "bidirectional" in omitted["icl_score"]


def test_a_model_whose_outcomes_are_not_its_tokens_has_no_copying():
    given, omitted = omissions(transformer(d_out=3), "induction", tokens())
    assert "prefix_matching" in given
    assert "3 outcomes are not its 11 tokens" in omitted["copying"] and "3 outcomes" in omitted["icl_score"]


def test_a_model_without_the_matrices_says_which():
    written = Written({PATTERN: torch.eye(8)[None, None]}, d_vocab=9, n_ctx=8)
    _, omitted = omissions(written, "induction")
    assert omitted["copying"] == "the model has no W_E, W_U, W_V, W_O"


def test_the_reason_is_given_if_it_does_not_apply():
    vectors = torch.randn(2, 10, 4)
    assert "no vocabulary" in refusal(transformer(d_in=4, d_out=4), "induction", vectors, loss=squared_loss)
    assert "no vocabulary" in refusal(PositionalToy(), "induction", torch.randn(2, 6, 4))
    assert "hook_pattern" in refusal(Written({}, d_vocab=5, n_ctx=8), "induction")
    fixed = Written({PATTERN: torch.eye(5)[None, None]}, d_vocab=9, n_ctx=8)
    _, omitted = omissions(fixed, "induction")
    assert all("has 5 queries and 5 keys for 8 tokens" in omitted[score] for score in SCORES)


def test_a_model_that_cannot_run_on_such_tokens_omits_the_scores_in_a_plain_sentence():
    class Fixed(Written):
        def forward(self, batch):
            if isinstance(batch, torch.Tensor):
                raise ValueError("mat1 and mat2 shapes cannot be multiplied (8x8 and 5x5)")
            return super().forward(batch)

    model = Fixed({PATTERN: torch.eye(5)[None, None]}, d_vocab=9, n_ctx=8)
    _, omitted = omissions(model, "induction")
    assert all(omitted[score] == NOT_ON_TOKENS and "mat1" not in omitted[score] for score in SCORES)


def test_a_model_with_fewer_queries_than_keys_still_has_an_icl_score():
    task = Minimal(make_config(Minimal.Config, Minimal.presets, "quick", ["eval_size=64"]), 0)
    model, batch = task.build_model(), eval_batch(task)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    recorder = sl.Recorder(model, probes=["induction"], batch=batch, loss=task.loss)
    recorder.context.queries = task.queries()
    recorder.measure(0)
    assert not recorder.problems and all("prefix matching needs" in recorder.skipped[f"induction/{s}"] for s in SCORES)
    with torch.no_grad():
        logits = model(batch[:, :-1]).double().log_softmax(-1)
    losses = -logits.gather(-1, batch[:, -logits.shape[1] :, None])[..., 0]  # [sequence, position]
    quarter = losses.shape[1] // 4
    scores = (losses[:, -quarter:].mean(1) - losses[:, :quarter].mean(1)).numpy()
    assert recorder.timeline["induction/icl_score"].item() == pytest.approx(scores.mean(), rel=1e-4, abs=1e-6)
    error = scores.std(ddof=1) / len(scores) ** 0.5
    assert recorder.timeline["induction/icl_score_error"].item() == pytest.approx(error, rel=1e-4)


def test_the_error_of_icl_score_is_that_over_sequences(model):
    batch = tokens(6, 20, V)
    found = measured(model, "induction", batch)
    single = [measured(model, "induction", row[None])["icl_score"] for row in batch]
    assert found["icl_score"] == pytest.approx(np.mean(single), rel=1e-4, abs=1e-5)
    assert found["icl_score_error"] == pytest.approx(np.std(single, ddof=1) / 6**0.5, rel=1e-3)


def test_one_sequence_has_no_error():
    given, omitted = omissions(transformer(), "induction", tokens(1))
    assert "icl_score" in given and "one sequence" in omitted["icl_score_error"]


def test_another_seed_draws_other_tokens():
    recorder = sl.Recorder(transformer(), probes=[Induction(seed=7)], batch=tokens())
    other = sl.Recorder(transformer(), probes=[Induction()], batch=tokens())
    assert not np.array_equal(recorder.measure(0)[0].values, other.measure(0)[0].values)
