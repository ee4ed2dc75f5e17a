"""Sequences of random Markov chains."""

from __future__ import annotations

import torch
from torch import Tensor

SETTLED = 64  # powers of a transition matrix after which its rows are the stationary distribution


def draw_chains(n: int, k: int, generator: torch.Generator) -> Tensor:
    """Returns `n` transition matrices [n, k, k]; each row is uniform on the simplex, Dirichlet(1, ..., 1)."""
    weights = -torch.rand(n, k, k, generator=generator).clamp_min(1e-12).log()  # exponential, normalized below
    return weights / weights.sum(-1, keepdim=True)


def sample_sequences(chains: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Returns a sequence of each of the `chains` [n, k, k]: int [n, length]. The first token is stationary."""
    stationary = torch.linalg.matrix_power(chains, SETTLED)[:, 0]  # [n, k]
    tokens = [_draw(stationary, generator)]
    rows = torch.arange(len(chains))
    for _ in range(length - 1):
        tokens.append(_draw(chains[rows, tokens[-1]], generator))
    return torch.stack(tokens, dim=1)


def _draw(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Returns one outcome of each row of `probabilities` [n, k]: int [n]."""
    uniform = torch.rand(len(probabilities), 1, generator=generator)
    return (probabilities.cumsum(-1) < uniform).sum(-1).clamp_max(probabilities.shape[-1] - 1)
