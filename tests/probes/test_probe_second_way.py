"""Computes the readings of the attention probes and of qk_alignment a second time, with plain loops."""

from __future__ import annotations

import math
from statistics import mean, stdev

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.probe_models import lens_model, measured, next_token_loss, tokens, transformer
from stagelens_probes.repeats import repeated_tokens

SHAPES = {  # of the model, and (sequences, positions, tokens) of the batch
    "usual": ({}, (5, 10, 11)),
    "one sequence": ({}, (1, 10, 11)),
    "two positions": ({}, (4, 2, 11)),
    "context of two": ({"n_ctx": 2}, (4, 2, 11)),
    "two tokens": ({"d_vocab": 2}, (3, 7, 2)),
    "heads of one dimension": ({"d_head": 1}, (4, 9, 11)),
    "many heads": ({"n_heads": 9, "n_layers": 1}, (3, 6, 11)),
    "rotary, shared keys": (
        {"positional_embedding_type": "rotary", "rotary_dim": 4, "n_heads": 4, "n_key_value_heads": 2},
        (4, 10, 11),
    ),
    "rms, one layer": ({"normalization_type": "RMS", "n_layers": 1}, (6, 8, 11)),
}


def made(name):
    changes, (n, length, d_vocab) = SHAPES[name]
    model = lens_model(**changes).double()
    return model, tokens(n, length, d_vocab)


def patterns(model, batch):
    _, cache = model.run_with_cache(batch)
    return [cache[f"blocks.{layer}.attn.hook_pattern"].tolist() for layer in range(model.cfg.n_layers)]


def over_samples(by_sequence):
    """Mean and standard error over sequences of the mean over queries; of one sequence, over its queries."""
    samples = [mean(queries) for queries in by_sequence] if len(by_sequence) > 1 else by_sequence[0]
    return mean(samples), stdev(samples) / math.sqrt(len(samples)) if len(samples) > 1 else math.nan


def of_rows(pattern, head, number):
    """`number` (weights of the seen keys, sequence, query) of each query that sees two keys, by sequence."""
    return [[number(rows[head][q][: q + 1], b, q) for q in range(1, len(rows[head]))] for b, rows in enumerate(pattern)]


def entropy(weights):
    return -sum(w * math.log(w) for w in weights if w > 0)


SPARSITY = {
    "entropy": lambda w, b, q: entropy(w),
    "effective_keys": lambda w, b, q: math.exp(entropy(w)),
    "top_mass": lambda w, b, q: max(w),
    "sparsity": lambda w, b, q: 1 - entropy(w) / math.log(len(w)),
    "first_key_mass": lambda w, b, q: w[0],
}


@pytest.mark.parametrize("name", SHAPES)
def test_sparsity_is_that_of_loops_over_sequences_queries_and_keys(name):
    model, batch = made(name)
    found = measured(model, "attention_sparsity", batch, loss=next_token_loss)
    for layer, pattern in enumerate(patterns(model, batch)):
        for head in range(model.cfg.n_heads):
            for reading, number in SPARSITY.items():
                value, error = over_samples(of_rows(pattern, head, number))
                assert found[reading][layer, head] == pytest.approx(value, abs=1e-9), reading
                if not math.isnan(error):
                    assert found[f"{reading}_error"][layer, head] == pytest.approx(error, abs=1e-9), reading
            entropies, error = over_samples(of_rows(pattern, head, SPARSITY["entropy"]))
            assert found["perplexity"][layer, head] == pytest.approx(math.exp(entropies))
            n = batch.shape[1] - 1  # queries that see two keys
            for third in range(3):
                queries = [q for q in range(1, n + 1) if 3 * (q - 1) // n == third]
                if n >= 3:
                    by_query = of_rows(pattern, head, SPARSITY["sparsity"])
                    value, _ = over_samples([[row[q - 1] for q in queries] for row in by_query])
                    assert found["sparsity_by_third"][layer, head, third] == pytest.approx(value, abs=1e-9)
        seen = mean(1 / (q + 1) for q in range(1, batch.shape[1]))
        assert found["first_key_mass_chance"][layer] == pytest.approx(seen)


GROUPS = ["previous token", "own token", "same token earlier", "induction target", "first token"]


def is_in(group, row, q, k):
    return {
        "previous token": k == q - 1,
        "own token": k == q,
        "same token earlier": k < q and row[k] == row[q],
        "induction target": 1 <= k <= q and row[k - 1] == row[q],
        "first token": k == 0,
    }[group]


@pytest.mark.parametrize("name", SHAPES)
def test_masses_chance_and_leaders_are_those_of_loops(name):
    model, batch = made(name)
    found = measured(model, "head_specialization", batch)
    rows, n = batch.tolist(), batch.shape[1]

    def keys(group, b, q):
        if group == "rest":
            return [k for k in range(q + 1) if not any(is_in(one, rows[b], q, k) for one in GROUPS)]
        return [k for k in range(q + 1) if is_in(group, rows[b], q, k)]

    every = [(b, q) for b in range(len(rows)) for q in range(1, n)]
    named = [*GROUPS, "rest"]
    chance = [mean(len(keys(group, b, q)) / (q + 1) for b, q in every) for group in named]
    reach = [mean(bool(keys(group, b, q)) for b, q in every) for group in named]
    np.testing.assert_allclose(found["mass_chance"], [chance] * model.cfg.n_layers, atol=1e-9)
    for layer, pattern in enumerate(patterns(model, batch)):
        for head in range(model.cfg.n_heads):
            gained = {}
            for index, group in enumerate(named):
                mass, error = over_samples(
                    of_rows(pattern, head, lambda w, b, q, group=group: sum(w[k] for k in keys(group, b, q)))
                )
                assert found["mass"][layer, head, index] == pytest.approx(mass, abs=1e-9)
                if not math.isnan(error):
                    assert found["mass_error"][layer, head, index] == pytest.approx(error, abs=1e-9)
                if chance[index]:
                    assert found["lift"][layer, head, index] == pytest.approx(mass / chance[index])
                samples = len(rows) if len(rows) > 1 else n - 1
                beyond = T_975.get(samples - 1, math.inf) * error if samples > 1 else 0.0
                above = mass - chance[index]
                room = reach[index] - chance[index]
                if group != "rest" and room > 0 and above > beyond and above / room > 0.05:
                    gained[index] = above / room
            leader = max(gained, key=gained.__getitem__) if gained else len(GROUPS)
            assert found["leader"][layer, head] == leader, (layer, head, gained)


T_975 = {2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 8: 2.306004}  # of Student's t, from a printed table


@pytest.mark.parametrize("name", ["usual", "rotary, shared keys", "many heads", "heads of one dimension"])
def test_induction_scores_are_those_of_loops_over_its_sequences(name):
    model, batch = made(name)
    found = measured(model, "induction", batch)
    drawn = repeated_tokens(11, 10)
    rows = drawn.tokens.tolist()
    for layer, pattern in enumerate(patterns(model, drawn.tokens)):
        for head in range(model.cfg.n_heads):
            scores = {"prefix_matching": [], "previous_token": [], "duplicate_token": []}
            for row, attention in zip(rows, pattern, strict=True):
                here = {reading: [] for reading in scores}
                for q in range(len(row)):
                    before = [k for k in range(q) if row[k] == row[q]]
                    second = len(before) == 1 and q - before[0] > 1 and in_second(row, q)
                    if second:
                        here["prefix_matching"].append(attention[head][q][before[0] + 1])
                        here["duplicate_token"].append(attention[head][q][before[0]])
                    if q:
                        here["previous_token"].append(attention[head][q][q - 1])
                for reading, values in here.items():
                    scores[reading].append(mean(values))
            for reading, values in scores.items():
                assert found[reading][layer, head] == pytest.approx(mean(values)), reading
                assert found[f"{reading}_error"][layer, head] == pytest.approx(stdev(values) / 8**0.5), reading


def in_second(row, q):
    """True if position q is in the second copy: its run of repeats is as long as the distance to the first one."""
    for S in range(2, len(row)):
        for start in range(1, len(row) - 2 * S + 1):
            segment = row[start : start + S]
            rest = row[:start] + row[start + 2 * S :]
            if segment == row[start + S : start + 2 * S] and len({*segment}) == S and not {*segment} & {*rest}:
                return start + S <= q < start + 2 * S
    raise AssertionError("no segment repeats")


def turned(d, rotary_dim, seed):
    """A matrix [d, d] that commutes with TransformerLens' rotations. It turns and stretches the planes (i, i + half).

    It mixes dimensions that are not rotated.
    """
    stream = torch.Generator().manual_seed(seed)
    M, half = torch.zeros(d, d, dtype=torch.float64), rotary_dim // 2
    M[rotary_dim:, rotary_dim:] = torch.randn(
        d - rotary_dim, d - rotary_dim, generator=stream, dtype=torch.float64
    ) + torch.eye(d - rotary_dim)
    for i in range(half):
        a, b = torch.randn(2, generator=stream, dtype=torch.float64).tolist()
        M[i, i] = M[i + half, i + half] = a
        M[i, i + half], M[i + half, i] = b, -b
    return M


@pytest.mark.parametrize("rotary_dim", [4, 2])
@pytest.mark.parametrize("shared", [None, 2])
def test_rotary_scores_do_not_change_under_a_change_of_basis_that_commutes_with_the_rotations(rotary_dim, shared):
    changes = {"n_heads": 4, "d_head": 4} | ({"n_key_value_heads": shared} if shared else {})
    model = lens_model(positional_embedding_type="rotary", rotary_dim=rotary_dim, **changes).double()
    batch = tokens(9)
    before, logits = measured(model, "qk_alignment", batch), model(batch)
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            own = {name: getattr(block.attn, f"_{name}" if shared else name) for name in ("W_K", "b_K")}
            for key_head in range(len(own["W_K"])):
                M = turned(4, rotary_dim, seed=10 * layer + key_head)
                inverse = torch.linalg.inv(M).mT
                own["W_K"][key_head] @= inverse
                own["b_K"][key_head] @= inverse
                each = 4 // len(own["W_K"])
                for head in range(key_head * each, (key_head + 1) * each):
                    block.attn.W_Q[head] @= M
                    block.attn.b_Q[head] @= M
    after = measured(model, "qk_alignment", batch)
    torch.testing.assert_close(model(batch), logits)
    for name in ("score_spectrum", "score_top", "score_top_error", "score_rank", "score_rank_error"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert np.abs(after["effective_rank"] - before["effective_rank"]).max() > 0.05


SCATTERED = {
    "attention_sparsity": ["entropy", "effective_keys", "top_mass", "sparsity", "first_key_mass", "perplexity"],
    "head_specialization": ["mass"],
    "qk_alignment": ["score_top", "score_rank"],
    "loss_by_position": ["loss"],
}


@pytest.mark.parametrize("probe", SCATTERED)
def test_standard_errors_are_the_scatter_over_independent_batches(probe):
    """The rms of 120 standard errors over the standard deviation of 120 readings, for most heads within 20%."""
    model = lens_model(d_vocab=30)
    stream = torch.Generator().manual_seed(7)
    recorder = sl.Recorder(model, [probe], torch.randint(30, (16, 10), generator=stream), loss=next_token_loss)
    batch = recorder.context.batch
    for step in range(120):
        batch.copy_(torch.randint(30, batch.shape, generator=stream))
        recorder.context.constants.clear()  # they belong to the batch
        recorder.measure(step)
    for name in SCATTERED[probe]:
        values, errors = (recorder.timeline.series(f"{probe}/{name}{part}") for part in ("", "_error"))
        scatter, claimed = values.std(0, ddof=1), np.sqrt((errors**2).mean(0))
        there = scatter > 1e-6
        ratio = claimed[there] / scatter[there]
        assert abs(np.median(ratio) - 1) < 0.2 and ratio.min() > 0.5 and ratio.max() < 2, (name, ratio)


INIT = [
    {"n_heads": 2, "d_model": 16, "n_ctx": 8},
    {"n_heads": 4, "d_model": 8, "n_ctx": 20, "n_layers": 1, "d_vocab": 40},
    {"n_heads": 1, "d_model": 12, "n_ctx": 14, "positions": "sinusoidal"},
]


@pytest.mark.parametrize("changes", INIT, ids=str)
def test_random_models_are_at_chance_on_average(changes):
    """Every head of 30 random models: mean reading minus chance level, in units of its standard error over models."""
    beyond = {"first_key_mass": [], "prefix_matching": [], "previous_token": [], "duplicate_token": [], "copying": []}
    batch = tokens(4, changes["n_ctx"], changes.get("d_vocab", 11))
    for seed in range(30):
        recorder = sl.Recorder(transformer(**changes | {"seed": seed}), ["attention_sparsity", "induction"], batch)
        found = {r.name.partition("/")[2]: r.values for r in recorder.measure(0)}
        for name, values in beyond.items():
            chance = found[f"{name}_chance"]
            values.append(float((found[name] - chance.reshape(*chance.shape, *[1] * (2 - chance.ndim))).mean()))
    for name, values in beyond.items():
        assert abs(mean(values)) < 4 * stdev(values) / 30**0.5 + 1e-3, (name, mean(values))
