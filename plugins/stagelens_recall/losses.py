"""The losses of the simplified model: exact means over the random map, and their sampled counterparts (2.3, A.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens_recall.data import maps_of

SPACING, LOWEST, HIGHEST = 0.4, -28.0, 40.0  # of the quadrature in v = log u; its error is below 1e-9
NODES = int((HIGHEST - LOWEST) / SPACING) + 1


def mean_dot_product(log_s: Tensor, asked: Tensor, responses: int) -> Tensor:
    """E over f of 1 - p_r = (1 - 1/|R|)(1 - s_q), a mean over queries; log_s [n, k!], asked bool [n, k!]."""
    missed = log_s.exp().masked_fill(asked, 0.0).sum(-1)  # 1 - s_q, without cancelling
    return (1 - 1 / responses) * missed.mean()


def mean_cross_entropy(log_s: Tensor, asked: Tensor, responses: int) -> Tensor:
    """E over f of -log p_r, a mean over queries; log_s [n, k!], asked bool [n, k!].

    p_r = s_q + the sum of s_t B_t over the other permutations, B_t independent and 1 with probability 1/|R|. With
    Frullani's integral log p = int (e^-u - e^-up) du/u, the mean acts on a product over t, and one integral is left:
    E log p = int (e^-u - e^(-u s_q) prod_t (1 - 1/|R| + e^(-u s_t)/|R|)) dv, u = e^v, by the trapezoidal rule.
    """
    s = log_s.exp()
    u = (LOWEST + SPACING * torch.arange(NODES, device=s.device, dtype=s.dtype)).exp()[:, None]  # [node, 1]
    s_q = (s * asked).sum(-1)  # [n]
    others = torch.log1p(torch.expm1(-u[..., None] * s.masked_fill(asked, 0.0)) / responses).sum(-1)  # [node, n]
    transform = torch.exp(others - u * s_q)  # E e^(-u p_r), [node, n]
    return -SPACING * (torch.exp(-u) - transform).sum(0).mean()


def answer_probability(log_s: Tensor, sequences: Tensor, order: int) -> Tensor:
    """p_r [n]: the attention log_s [n, k!] on permutations whose response in `sequences` [n, l + 1] is the answer."""
    hit = maps_of(sequences, order) == sequences[:, -1:]  # [n, k!]
    return (log_s.exp() * hit).sum(-1)


def loss_of(probability: Tensor, kind: str) -> Tensor:
    """The mean dot-product loss 1 - p_r or cross-entropy -log p_r of probability [n] (2.3)."""
    if kind == "dot-product":
        return (1 - probability).mean()
    return -probability.clamp_min(torch.finfo(probability.dtype).tiny).log().mean()
