"""The data and the strategies against known answers, and the checks that every plugin should pass."""

from __future__ import annotations

import math

import torch
from stagelens.testing import check_task

from stagelens_statistical_induction.data import draw_chains, sample_sequences
from stagelens_statistical_induction.losses import next_token_loss
from stagelens_statistical_induction.tasks import Chains
from stagelens_statistical_induction.theory import bigram, uniform, unigram


def test_a_chain_that_always_moves_on_gives_a_cycle() -> None:
    cycle = torch.eye(3).roll(1, dims=1)[None]  # 0 -> 1 -> 2 -> 0
    (tokens,) = sample_sequences(cycle, 7, torch.Generator().manual_seed(0))
    assert torch.equal((tokens[1:] - tokens[:-1]) % 3, torch.ones(6, dtype=torch.long))


def test_the_sequences_have_the_transitions_of_their_chain() -> None:
    generator = torch.Generator().manual_seed(0)
    (chain,) = draw_chains(1, 3, generator)
    tokens = sample_sequences(chain.expand(2000, 3, 3), 20, generator)
    for row in range(3):
        following = tokens[:, 1:][tokens[:, :-1] == row]
        found = following.bincount(minlength=3) / len(following)
        assert torch.allclose(found, chain[row], atol=4 / math.sqrt(len(following)))


def test_the_strategies_count() -> None:
    tokens = torch.tensor([[0, 1, 0, 1, 1]])
    assert torch.allclose(uniform(tokens, 2).exp(), torch.full((1, 5, 2), 0.5))
    assert torch.allclose(unigram(tokens, 2)[0, -1].exp(), torch.tensor([3 / 7, 4 / 7]))  # two 0, three 1, plus one
    assert torch.allclose(bigram(tokens, 2)[0, 2].exp(), torch.tensor([1 / 3, 2 / 3]))  # 0 was followed by 1 once
    assert torch.allclose(bigram(tokens, 2)[0, -1].exp(), torch.tensor([2 / 4, 2 / 4]))  # 1: by 0 once, by 1 once


def test_bigrams_predict_better_than_unigrams_and_these_better_than_nothing() -> None:
    tokens = Chains(Chains.Config()).sample(500, torch.Generator().manual_seed(0))
    losses = [float(next_token_loss(f(tokens[:, :-1], 3), tokens)) for f in (bigram, unigram, uniform)]
    assert losses == sorted(losses) and math.isclose(losses[-1], math.log(3), rel_tol=1e-5)


def test_the_task() -> None:
    skipped = check_task(Chains, {"length": 12, "batch_size": 4, "eval_size": 8})
    assert "kl_to_references" not in skipped and "head_specialization" not in skipped
