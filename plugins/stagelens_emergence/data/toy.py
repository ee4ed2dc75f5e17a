"""Single-location regression (2.1): sequences with one relevant token, and two kinds of repetition."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stagelens_emergence.config import Target


class SingleLocationBatch(NamedTuple):
    """Sequences `x` [n, T, d] and their targets `y` [n, d]."""

    x: Tensor
    y: Tensor


class RelevantMoments(NamedTuple):
    """What the expected loss needs of the data: `relevant` [d], the diagonal of Sigma_T (A.2)."""

    relevant: Tensor


class Draws(NamedTuple):
    """What the gradient on n sequences depends on: T + 2d numbers per sequence instead of T d.

    `relevant` [n, d] is the relevant token. `context` [n, d] ~ N(0, I/d) is the weighted sum of the other tokens,
    divided by the norm of their weights. `across` [n, T - B] ~ N(0, 1) is how the others differ along one direction.
    """

    relevant: Tensor
    context: Tensor
    across: Tensor


def target_weights(d: int, kind: Target, generator: torch.Generator) -> Tensor:
    """Returns W* [d, d] in float64: entries N(0, 1/d); for `unit`, columns scaled to norm 1 (Assumption 3)."""
    W = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5
    unit: Tensor = W / W.norm(dim=0)
    return unit if kind == "unit" else W


def relevant_moments(d: int, p: float) -> RelevantMoments:
    """Returns Sigma_T = diag(p + (1-p)/d, (1-p)/d, ...); the repeated token is e_1 (A.2, A.4)."""
    relevant = torch.full((d,), (1 - p) / d, dtype=torch.float64)
    relevant[0] += p
    return RelevantMoments(relevant)


def with_repeated(tokens: Tensor, repeated: Tensor) -> Tensor:
    """Returns `tokens` [n, d] with e_1, the repeated token (A.2), in the rows of `repeated` bool [n]."""
    return torch.where(repeated[:, None], torch.eye(1, tokens.shape[1], dtype=tokens.dtype), tokens)


def sample_relevant(n: int, d: int, p: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draws relevant tokens [n, d]: N(0, I/d), or with probability p the repeated token."""
    relevant: Tensor = torch.randn(n, d, generator=generator, dtype=dtype) / d**0.5
    return relevant if p == 0 else with_repeated(relevant, torch.rand(n, generator=generator, dtype=dtype) < p)


def sample_sequences(
    W_star: Tensor, T: int, B: int, p: float, n: int, generator: torch.Generator
) -> SingleLocationBatch:
    """Draws n sequences of x_t ~ N(0, I/d) whose last B tokens are copies of the relevant one."""
    d, dtype = len(W_star), W_star.dtype
    relevant = sample_relevant(n, d, p, generator, dtype)
    others = torch.randn(n, T - B, d, generator=generator, dtype=dtype) / d**0.5
    return SingleLocationBatch(torch.cat([others, relevant[:, None].expand(n, B, d)], dim=1), relevant @ W_star.T)


def sample_draws(d: int, T: int, B: int, p: float, n: int, generator: torch.Generator, dtype: torch.dtype) -> Draws:
    """Draws for n sequences what `losses.drawn_loss` needs of them."""
    relevant = sample_relevant(n, d, p, generator, dtype)
    context = torch.randn(n, d, generator=generator, dtype=dtype) / d**0.5
    return Draws(relevant, context, torch.randn(n, T - B, generator=generator, dtype=dtype))
