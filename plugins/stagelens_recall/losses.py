"""The losses: exact means over the random map, and losses of sampled sequences (2.3, A.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens_recall.data import maps_of

# The trapezoidal rule in v = log u that `mean_cross_entropy` uses; its error is below 1e-9.
SPACING = 0.4  # distance of two nodes
LOWEST, HIGHEST = -28.0, 40.0  # range of v
NODES = int((HIGHEST - LOWEST) / SPACING) + 1


def mean_dot_product(log_s: Tensor, asked: Tensor, responses: int) -> Tensor:
    """Returns the mean of 1 - p_r over maps f and queries: (1 - 1/|R|)(1 - s_q).

    `log_s` [n, k!] is log-attention; `asked` bool [n, k!] marks the permutation that is the query.
    """
    missed = log_s.exp().masked_fill(asked, 0.0).sum(-1)  # 1 - s_q, without cancellation
    return (1 - 1 / responses) * missed.mean()


def mean_cross_entropy(log_s: Tensor, asked: Tensor, responses: int) -> Tensor:
    """Returns the mean of -log p_r over maps f and queries; log_s [n, k!], asked bool [n, k!].

    p_r is s_q plus the sum of s_t B_t over the other permutations; the B_t are independent, and 1 with probability
    1/|R|. Frullani's integral log p = int (e^-u - e^-up) du/u moves the mean onto a product over t. One integral
    remains: E log p = int (e^-u - e^(-u s_q) prod_t (1 - 1/|R| + e^(-u s_t)/|R|)) dv with u = e^v.
    """
    s = log_s.exp()
    u = (LOWEST + SPACING * torch.arange(NODES, device=s.device, dtype=s.dtype)).exp()[:, None]  # [node, 1]
    s_q = (s * asked).sum(-1)  # [n]
    others = torch.log1p(torch.expm1(-u[..., None] * s.masked_fill(asked, 0.0)) / responses).sum(-1)  # [node, n]
    transform = torch.exp(others - u * s_q)  # E e^(-u p_r), [node, n]
    return -SPACING * (torch.exp(-u) - transform).sum(0).mean()


def answer_probability(log_s: Tensor, sequences: Tensor, order: int) -> Tensor:
    """Returns p_r [n]: the attention on permutations whose response is the answer.

    `log_s` [n, k!] is log-attention; `sequences` [n, l + 1] end with the answer.
    """
    hit = maps_of(sequences, order) == sequences[:, -1:]  # [n, k!]
    return (log_s.exp() * hit).sum(-1)


def answer_loss(log_p: Tensor, kind: str) -> Tensor:
    """Returns the mean dot-product loss 1 - p_r, or the cross-entropy -log p_r, of log p_r [n] (2.3)."""
    return (1 - log_p.exp()).mean() if kind == "dot-product" else -log_p.mean()
