"""The losses: on sequences, and in closed form for tokens of D dimensions (Eq. 7, and Eq. 10 with matrices)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens_rich.data.toy import mixed_target


def partial_losses(output: Tensor, x: Tensor, alpha_star: float, score: float) -> Tensor:
    """Returns L_G4 and L_IH2 per dimension, [2], of an output [n, 2, D] on tokens x [n, L, D] (after Eq. 3)."""
    error = output - mixed_target(x, alpha_star, score)
    return 0.5 * error.square().sum(-1).mean(0) / x.shape[-1]


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the mean cross-entropy in nats of logits [n, L, vocab] for the next of tokens [n, L + 1]."""
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def mean_exponential(B: Tensor) -> Tensor:
    """Returns E exp(x^T B y) = det(I - B^T B)^(-1/2) for standard normal x, y; B [D, D] has norm below 1 (Lemma 7).

    A vector B [D] is the diagonal of a matrix.
    """
    if B.dim() == 1:
        return torch.exp(-0.5 * torch.log1p(-(B**2)).sum())
    identity = torch.eye(len(B), dtype=B.dtype, device=B.device)
    found: Tensor = torch.exp(-0.5 * torch.linalg.slogdet(identity - B.T @ B).logabsdet)
    return found


def closed_form(layer: Any, alpha_star: float, score: float, L: int) -> Tensor:
    """Returns (L_G4, L_IH2) per dimension of a token, [2], of a second layer whose first layer has learned."""
    g_star, h_star = alpha_star / (1 + alpha_star), 1 / (1 + alpha_star)
    lag = torch.arange(L - 2, dtype=layer.p.dtype, device=layer.p.device)
    attention = (-layer.p * lag).softmax(0)  # newest first
    missed = layer.w_V1 * attention - g_star * (lag == 0)
    matrices = layer.W_Q.dim() == 2
    A = layer.W_Q.T @ layer.W_K if matrices else layer.W_Q * layer.W_K
    target = score * (torch.eye(len(A), dtype=A.dtype, device=A.device) if matrices else torch.ones_like(A))
    own = (1 - 4 * score**2) ** (-len(A) / 2)  # E(2 target)
    h, E = layer.w_V2, mean_exponential
    induction = 0.5 * (h_star**2 * own + h**2 * E(2 * A)) - h * h_star * E(A + target)
    return torch.stack([0.5 * missed.square().sum(), induction / (L - 2)])
