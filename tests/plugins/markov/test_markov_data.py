"""The Markov chain: Eq. 1's frequencies, the feature matrices, and Eq. 3's predictors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch.utils._python_dispatch import TorchDispatchMode

from stagelens_markov.data import MarkovProcess, importance, log_probabilities, make_process, sample_sequences

INTERVALS = ((1, 2), (3,))


@pytest.fixture(scope="module")
def process():
    return make_process(4, [1.5, 0.8], INTERVALS, torch.Generator().manual_seed(0))


def by_hand(process, past, first=None):
    """Eq. 1 for one past (the most recent token last), as a loop: softmax of sum_k A*_k times the mean over I(k)."""
    logits = torch.zeros(process.d, dtype=torch.float64)
    for k, interval in enumerate(process.intervals[:first]):
        for lag in interval:
            one_hot = torch.zeros(process.d, dtype=torch.float64)
            one_hot[past[-lag]] = 1
            logits += process.features[k].double() @ one_hot / len(interval)
    return logits.softmax(-1)


def test_features_are_orthogonal_up_to_their_importance(process):
    for feature, scale in zip(process.features.double(), (1.5, 0.8), strict=True):
        assert torch.allclose(feature @ feature.T, scale**2 * torch.eye(4, dtype=torch.float64), atol=1e-6)


def test_importance_is_a_power_of_m():
    assert importance(m=2.0, b0=3.0, h=3) == [12.0, 6.0, 3.0]


def test_features_are_uniform_over_rotations_and_reflections():
    """Haar: the first entry of an orthogonal 3 x 3 matrix has mean 0 and variance 1/3, and both determinants occur."""
    drawn = torch.stack(
        [make_process(3, [1.0], ((1,),), torch.Generator().manual_seed(seed)).features[0] for seed in range(2000)]
    ).double()
    for row, column in ((0, 0), (1, 2), (2, 2)):
        entry = drawn[:, row, column]
        assert abs(entry.mean()) < 4 * (1 / 3 / 2000) ** 0.5
        assert abs(entry.var() - 1 / 3) < 4 * (4 / 45 / 2000) ** 0.5  # x^2 has variance 1/5 - 1/9
    assert abs((torch.linalg.det(drawn) > 0).double().mean() - 0.5) < 4 * (0.25 / 2000) ** 0.5


def test_transitions_have_the_frequencies_of_equation_1(process):
    tokens = sample_sequences(process, T=5, n=100_000, generator=torch.Generator().manual_seed(1))
    assert tokens.shape == (100_000, 3 + 5) and tokens.dtype == torch.int64
    statistic, freedom = 0.0, 0
    for t in (3, 7):  # the first token that the chain draws, and the last
        past, drawn = tokens[:, t - 3 : t], tokens[:, t]
        code = (past * torch.tensor([16, 4, 1])).sum(-1)
        for value in range(64):
            here = drawn[code == value]
            probabilities = by_hand(process, [value // 16, value // 4 % 4, value % 4])
            expected = len(here) * probabilities
            assert expected.min() > 5
            counts = torch.bincount(here, minlength=4)
            statistic += float(((counts - expected) ** 2 / expected).sum())
            freedom += 3
    assert chi2.sf(statistic, freedom) > 1e-4


def test_the_first_tokens_are_uniform(process):
    tokens = sample_sequences(process, T=1, n=40_000, generator=torch.Generator().manual_seed(2))[:, :3]
    frequency = torch.bincount(tokens.flatten(), minlength=4) / tokens.numel()
    assert (frequency - 0.25).abs().max() < 4 * (0.25 * 0.75 / tokens.numel()) ** 0.5


def test_the_same_generator_gives_the_same_sequences(process):
    one, other = (sample_sequences(process, 4, 10, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("first", [1, 2, None])
def test_equation_3_against_a_loop(process, first):
    tokens = sample_sequences(process, T=4, n=5, generator=torch.Generator().manual_seed(4))
    found = log_probabilities(process, tokens, first)
    assert found.shape == (5, 4, 4)
    for n in range(5):
        for t in range(4):
            expected = by_hand(process, tokens[n, : 3 + t].tolist(), first)
            assert torch.allclose(found[n, t].double().exp(), expected, atol=1e-6)


def test_lag_1_is_the_most_recent_token():
    """With one interval of lag 1 the next token depends on the last one alone; with lag 2, on the one before."""
    features = 50 * torch.eye(3)[None]
    for interval, expected in (((1,), 2), ((2,), 0)):
        process = MarkovProcess(features, (interval,))
        tokens = torch.tensor([[0, 2, 1]])[:, -process.order - 1 :]
        assert log_probabilities(process, tokens)[0, 0].argmax() == expected


def test_predictors_that_know_more_are_nearer_to_the_chain(process):
    tokens = sample_sequences(process, T=20, n=2000, generator=torch.Generator().manual_seed(5))
    losses = [-log_probabilities(process, tokens, i).gather(-1, tokens[:, 3:, None]).mean().item() for i in (1, 2)]
    assert np.log(4) > losses[0] > losses[1]


class Count(TorchDispatchMode):
    """Counts the operations of torch."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


def test_sampling_costs_the_same_operations_for_any_number_of_sequences():
    """No loop over sequences: ten thousand of the paper's size take a fraction of a second."""
    process = make_process(50, [30.0, 17.0, 10.0], ((1, 2), (3, 4), (5, 6)), torch.Generator().manual_seed(0))
    counts = []
    for n in (2, 50):
        with Count() as count:
            sample_sequences(process, 20, n, torch.Generator().manual_seed(1))
        counts.append(count.calls)
    assert 20 <= counts[0] == counts[1]
