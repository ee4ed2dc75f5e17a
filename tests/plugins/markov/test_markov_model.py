"""The minimal architecture: its formula, its hooks, and the solution written by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

import stagelens as sl
from stagelens_markov.config import MarkovConfig
from stagelens_markov.model import MinimalTransformer, pair_lookup, row_lookup
from stagelens_markov.tasks import Minimal


def small(d=4, w=3, T=3, heads=2, scale=0.7):
    model = MinimalTransformer(d, w, T, heads, scale, torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.blocks[0].attn.V.copy_(torch.randn(heads, d + w + T - 1, d, generator=torch.Generator().manual_seed(1)))
    return model


def by_hand(model, tokens, T):
    """sum_h V_h^T X softmax(x_k^T A_h x_q) over the keys up to the query, as a loop: [T, d]."""
    attn = model.blocks[0].attn
    n, d = len(tokens), attn.V.shape[-1]
    X = torch.zeros(n, d + n)
    for i, token in enumerate(tokens):
        X[i, token] = X[i, d + i] = 1
    rows = []
    for q in range(n - T, n):
        logits = torch.zeros(d)
        for A, V in zip(attn.A, attn.V, strict=True):
            a = torch.stack([X[k] @ A @ X[q] for k in range(q + 1)]).softmax(0)
            logits = logits + sum(a[k] * (V.T @ X[k]) for k in range(q + 1))
        rows.append(logits)
    return torch.stack(rows)


def test_the_logits_are_those_of_the_formula():
    model = small()
    tokens = torch.randint(4, (6, 5), generator=torch.Generator().manual_seed(2))
    found = model(tokens)
    assert found.shape == (6, 3, 4)
    for n in range(6):
        assert torch.allclose(found[n], by_hand(model, tokens[n].tolist(), 3), atol=1e-5)


def direct(model, tokens, T):
    """The same logits by einsums of one-hot inputs with A and V, [batch, T, d]."""
    attn = model.blocks[0].attn
    n, d = tokens.shape[1], attn.V.shape[-1]
    x = torch.cat([one_hot(tokens, d).float(), torch.eye(n).expand(len(tokens), n, n)], dim=-1)
    scores = torch.einsum("bki,hij,bqj->bhqk", x, attn.A, x[:, -T:])
    hidden = torch.ones(T, n, dtype=torch.bool).triu(n - T + 1)
    return torch.einsum("bhqk,bki,hid->bqd", scores.masked_fill(hidden, -torch.inf).softmax(-1), x, attn.V)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_lookups_give_the_loss_and_the_gradients_of_one_hot_products(heads):
    model = small(d=6, w=4, T=5, heads=heads)
    tokens = torch.randint(6, (30, 9), generator=torch.Generator().manual_seed(3))
    targets, inputs = tokens[:, -5:].flatten(), tokens[:, :-1]
    found = {}
    for name, logits in (("lookups", model(inputs)), ("direct", direct(model, inputs, 5))):
        model.zero_grad()
        loss = cross_entropy(logits.flatten(0, 1), targets)
        loss.backward()
        found[name] = [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    for ours, theirs in zip(found["lookups"], found["direct"], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_lookups_are_those_of_indexing_with_every_head_and_position():
    """The plain form, which the lookups replace for speed."""
    random = torch.Generator().manual_seed(5)
    table = torch.randn(2, 3, 6, 6, generator=random)  # [head, query, query token, key token]
    queries, keys = torch.randint(6, (4, 3), generator=random), torch.randint(6, (4, 5), generator=random)
    head, query = torch.arange(2)[:, None, None], torch.arange(3)[:, None]
    plain = table[head, query, queries[:, None, :, None], keys[:, None, None]]
    assert torch.equal(pair_lookup(table, queries, keys), plain) and plain.shape == (4, 2, 3, 5)
    rows = table[torch.arange(2)[:, None], torch.arange(3), queries[:, None]]
    assert torch.equal(row_lookup(table, queries), rows) and rows.shape == (4, 2, 3, 6)


def test_scores_are_sums_of_four_entries_of_A():
    model = small()
    attn, tokens = model.blocks[0].attn, torch.randint(4, (6, 5), generator=torch.Generator().manual_seed(2))
    found = attn.scores(tokens, model.hidden)  # [batch, head, query, key]
    for b, q, k in [(0, 0, 0), (3, 1, 3), (5, 2, 4)]:
        query, key = [tokens[b, 2 + q], 4 + 2 + q], [tokens[b, k], 4 + k]  # token and position, T = 3 of 5 keys
        expected = sum(attn.A[:, i, j] for i in key for j in query)
        assert torch.allclose(found[b, :, q, k], expected, atol=1e-6)


def test_hooks_on_single_heads_change_nothing():
    model = small()
    tokens = torch.randint(4, (6, 5), generator=torch.Generator().manual_seed(2))
    logits, cache = model.run_with_cache(tokens)
    assert torch.allclose(logits, model(tokens), atol=1e-6)
    assert torch.allclose(cache["blocks.0.attn.hook_z"].sum(2), logits, atol=1e-6)
    without = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z[:, :, :1])])
    assert torch.allclose(without, cache["blocks.0.attn.hook_z"][:, :, 0], atol=1e-6)


@pytest.mark.parametrize("d", [5, 12])
def test_heads_that_are_alike_get_the_same_gradient_to_the_last_bit(d):
    """If gradients differed by rounding, the heads would separate, and u = 0 would behave like a small u."""
    model = small(d=d, w=6, T=12, heads=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter))
    tokens = torch.randint(d, (97, 18), generator=torch.Generator().manual_seed(4))
    cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, -12:].flatten()).backward()
    for parameter in model.parameters():
        assert torch.equal(parameter.grad[0], parameter.grad[1]) and torch.equal(parameter.grad[0], parameter.grad[2])
        assert parameter.grad.abs().max() > 0


def test_a_restricted_context_masks_earlier_keys():
    model = MinimalTransformer(4, 3, 3, 2, 0.7, torch.Generator().manual_seed(0), context=2)
    torch.nn.init.normal_(model.blocks[0].attn.V, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(4, (50, 5), generator=torch.Generator().manual_seed(2))
    _, cache = model.run_with_cache(tokens)
    pattern = cache["blocks.0.attn.hook_pattern"]
    assert ((pattern > 0).sum(-1) == 2).all() and (pattern[:, :, 2, 3:] > 0).all()
    other = tokens.clone()
    other[:, 0] = (other[:, 0] + 1) % 4
    assert torch.equal(model(tokens), model(other))  # the first query, at key 2, does not see key 0


def test_it_starts_at_the_uniform_prediction_with_scores_of_the_given_scale():
    model = MinimalTransformer(4, 3, 3, 2, 0.05, torch.Generator().manual_seed(0))
    assert torch.equal(model(torch.zeros(1, 5, dtype=torch.int64)), torch.zeros(1, 3, 4))
    assert model.blocks[0].attn.A.abs().max() <= 0.05 and model.blocks[0].attn.A.std() > 0.02


def test_hooks_carry_transformer_lens_names_and_shapes():
    model = small()
    tokens = torch.randint(4, (6, 5))
    _, cache = model.run_with_cache(tokens)
    shapes = {name: tuple(cache[f"blocks.0.attn.{name}"].shape) for name in ("hook_pattern", "hook_attn_scores")}
    assert shapes == {"hook_pattern": (6, 2, 3, 5), "hook_attn_scores": (6, 2, 3, 5)}
    pattern = cache["blocks.0.attn.hook_pattern"]
    assert torch.allclose(pattern.sum(-1), torch.ones(6, 2, 3))
    assert (pattern[:, :, 0, 3:] == 0).all() and (pattern[:, :, 2] > 0).all()


def solved(task):
    """The model with the true solution written in: head k attends to I(k) and V_k = A*_k^T."""
    c, model = task.config, task.build_model()
    attn = model.blocks[0].attn
    with torch.no_grad():
        attn.A.zero_()
        attn.V.zero_()
        for k, interval in enumerate(c.intervals):
            attn.V[k, : c.d] = task.process.features[k].T
            for query in range(attn.A.shape[-1] - c.d):
                for lag in interval:
                    if query - lag + 1 >= 0:  # lag 1 is the query's own position
                        attn.A[k, c.d + query - lag + 1, c.d + query] = 60.0
    return model


def test_the_true_solution_has_no_excess_loss():
    task = Minimal(MarkovConfig(d=7, T=6), seed=2)
    model = solved(task)
    batch = task.sample(500, torch.Generator().manual_seed(0))
    excess = task.metrics(model(batch[:, :-1]), batch)["excess"]
    assert abs(excess) < 1e-3
    with torch.no_grad():
        model.blocks[0].attn.V[2].zero_()
    assert task.metrics(model(batch[:, :-1]), batch)["excess"] > 0.05


def test_the_true_solution_is_cooperative_and_covers_every_group():
    task = Minimal(MarkovConfig(d=7, T=6), seed=2)
    recorder = sl.Recorder(solved(task), ["head_specialization"], task.sample(50, torch.Generator()), task=task)
    recorder.measure(0)
    timeline = recorder.timeline
    assert timeline["head_specialization/coverage"].item() == 1
    phase = timeline["head_specialization/phase"]
    assert json.loads(phase.attrs["labels"])[int(phase.item())] == "cooperative"
    mass = timeline["head_specialization/mass"].sel(step=0, layer=0)
    for k in range(3):
        assert mass.sel(head=k, group=f"I({k + 1})").item() > 0.99
