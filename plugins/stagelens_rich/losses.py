"""The population loss in closed form for tokens of D dimensions: Eq. 7, and Eq. 10 with matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def mean_exponential(B: Tensor) -> Tensor:
    """E exp(x^T B y) = det(I - B^T B)^(-1/2) for standard normal x, y and B [D, D] of norm below 1 (Lemma 7)."""
    identity = torch.eye(len(B), dtype=B.dtype, device=B.device)
    found: Tensor = torch.exp(-0.5 * torch.linalg.slogdet(identity - B.T @ B).logabsdet)
    return found


def closed_form(layer: Any, alpha_star: float, score: float, L: int) -> Tensor:
    """(L_G4, L_IH2) per dimension of a token, [2], of the second layer, while the first looks at the previous token."""
    g_star, h_star = alpha_star / (1 + alpha_star), 1 / (1 + alpha_star)
    lag = torch.arange(L - 2, dtype=layer.p.dtype, device=layer.p.device)
    attention = (-layer.p * lag).softmax(0)  # newest first
    missed = layer.w_V1 * attention - g_star * (lag == 0)
    A = layer.W_Q.T @ layer.W_K
    target = score * torch.eye(len(A), dtype=A.dtype, device=A.device)
    own = (1 - 4 * score**2) ** (-len(A) / 2)  # E(2 target)
    h, E = layer.w_V2, mean_exponential
    induction = 0.5 * (h_star**2 * own + h**2 * E(2 * A)) - h * h_star * E(A + target)
    return torch.stack([0.5 * missed.square().sum(), induction / (L - 2)])
