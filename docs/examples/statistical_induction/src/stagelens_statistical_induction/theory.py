"""Three strategies to predict the next token of a Markov chain from the tokens so far.

Each takes tokens, int [n, position], and returns log-probabilities [n, position, k]: at position t, of token t + 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def uniform(tokens: Tensor, k: int) -> Tensor:
    """Returns 1 / k for every token: what a model knows before it is trained."""
    return torch.full((*tokens.shape, k), -math.log(k), device=tokens.device)


def unigram(tokens: Tensor, k: int) -> Tensor:
    """Returns the frequencies of the tokens so far, each count plus one."""
    counts = one_hot(tokens, k).cumsum(1) + 1.0  # [n, position, k]
    return (counts / counts.sum(-1, keepdim=True)).log()


def bigram(tokens: Tensor, k: int) -> Tensor:
    """Returns the frequencies of the tokens that followed the current one so far, each count plus one.

    With rows from Dirichlet(1, ..., 1) and a first token that says nothing about them, no predictor is better.
    """
    pairs = (
        one_hot(tokens[:, :-1], k)[..., :, None] * one_hot(tokens[:, 1:], k)[..., None, :]
    )  # [n, position - 1, k, k]
    before = torch.zeros_like(pairs[:, :1])
    counts = torch.cat([before, pairs.cumsum(1)], dim=1) + 1.0  # [n, position, k, k]: pairs that ended by t
    row = counts.gather(2, tokens[..., None, None].expand(-1, -1, 1, k)).squeeze(2)  # [n, position, k]
    return (row / row.sum(-1, keepdim=True)).log()


STRATEGIES = {"uniform": uniform, "unigram": unigram, "bigram": bigram}
