"""The loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import nll_loss


def next_token_loss(log_probabilities: Tensor, tokens: Tensor) -> Tensor:
    """Returns the mean of -log p of the next token, in nats.

    `log_probabilities` [n, position, k] are those at every position but the last of `tokens`, int [n, position + 1].
    """
    return nll_loss(log_probabilities.flatten(0, 1), tokens[:, 1:].flatten())
