"""Sequences of independent tokens and the mixed target (Eq. 2): a 4-gram and an in-context 2-gram.

The paper counts positions from 1, the code from 0: `x[:, -3]` is x_(L-2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens_rich.theory import Tokens


def sample_tokens(n: int, L: int, D: int, tokens: Tokens, generator: torch.Generator) -> Tensor:
    """Returns n sequences of independent tokens, [n, L, D]: standard normal, or +1 and -1 with equal probability."""
    if tokens == "gaussian":
        return torch.randn(n, L, D, generator=generator)
    return 2.0 * torch.randint(0, 2, (n, L, D), generator=generator) - 1.0


def induction_head(x: Tensor, score: float) -> Tensor:
    """Returns f_IH2(x) [n, D] of x [n, L, D]: sum_s x_s sm(score x_L . x_(s-1)), s = 2..L-1 (Eq. 1)."""
    scores = score * (x[:, :-2] * x[:, -1:]).sum(-1, keepdim=True)  # [n, L - 2, 1]
    attended: Tensor = (scores.softmax(1) * x[:, 1:-1]).sum(1)
    return attended


def mixed_target(x: Tensor, alpha_star: float, score: float) -> Tensor:
    """Returns f*(x) [n, 2, D] of x [n, L, D]: the weighted 4-gram x_(L-2) and induction head (Eq. 2)."""
    parts = torch.stack([alpha_star * x[:, -3], induction_head(x, score)], dim=1)
    return parts / (1 + alpha_star)
