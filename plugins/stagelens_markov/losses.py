"""The loss of a predictor on the chain, and its distance from the chain and from Eq. 3's partial predictors.

`logits` [n, T, d] predict the tokens x_1..x_T of `tokens` [n, w + T].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens_markov.data import MarkovProcess, log_probabilities


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the mean cross-entropy at x_1..x_T, the tokens that the chain has drawn, []."""
    T = logits.shape[1]
    return cross_entropy(logits.flatten(0, 1), tokens[:, -T:].flatten())


def excess_loss(process: MarkovProcess, logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the loss minus that of the chain on the same tokens, []: an estimate of the loss minus the entropy."""
    drawn = tokens[:, -logits.shape[1] :, None]
    ideal = log_probabilities(process, tokens).gather(-1, drawn)
    return (ideal - logits.log_softmax(-1).gather(-1, drawn)).mean()


def nearest_predictor(process: MarkovProcess, logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the i of the predictor f_{A*_1:i} (Eq. 3) with the least KL divergence to the model, []; 0 is uniform."""
    intervals = range(len(process.intervals) + 1)
    predictors = torch.stack([log_probabilities(process, tokens, i) for i in intervals])
    divergence = (predictors.exp() * (predictors - logits.log_softmax(-1))).sum(-1).mean((1, 2))  # [i]
    return divergence.argmin()
