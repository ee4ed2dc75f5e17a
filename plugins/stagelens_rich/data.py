"""Sequences of independent tokens and the mixed target (Eq. 2): a 4-gram and an in-context 2-gram.

Positions are counted from 1 in the text and from 0 here: `x[:, -3]` is x_(L-2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens_rich.theory import Tokens


def sample_tokens(n: int, L: int, D: int, tokens: Tokens, generator: torch.Generator) -> Tensor:
    """n sequences of independent tokens, [n, L, D]: standard normal, or +1 and -1 with equal chance."""
    if tokens == "gaussian":
        return torch.randn(n, L, D, generator=generator)
    return 2.0 * torch.randint(0, 2, (n, L, D), generator=generator) - 1.0


def induction_head(x: Tensor, score: float) -> Tensor:
    """f_IH2 of x [n, L, D], [n, D]: sum_s x_s sm(score x_L . x_(s-1)), s = 2..L-1 (Eq. 1)."""
    scores = score * (x[:, :-2] * x[:, -1:]).sum(-1, keepdim=True)  # [n, L - 2, 1]
    attended: Tensor = (scores.softmax(1) * x[:, 1:-1]).sum(1)
    return attended


def mixed_target(x: Tensor, alpha_star: float, score: float) -> Tensor:
    """f*(X) of x [n, L, D], [n, 2, D]: the 4-gram x_(L-2) and the induction head, with their weights (Eq. 2)."""
    parts = torch.stack([alpha_star * x[:, -3], induction_head(x, score)], dim=1)
    return parts / (1 + alpha_star)
