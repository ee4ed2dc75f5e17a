"""The loss, and the accuracy."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def answer_loss(logits: Tensor, batch: Tensor) -> Tensor:
    """Returns the cross-entropy of the answer, in nats.

    `logits` [question, position, answer] are read at the sign `=`, the last position; `batch` is int [question, 4].
    """
    return cross_entropy(logits[:, -1], batch[:, -1])


def accuracy(logits: Tensor, batch: Tensor) -> Tensor:
    """Returns the fraction of the questions whose answer has the largest logit."""
    return (logits[:, -1].argmax(-1) == batch[:, -1]).float().mean()
