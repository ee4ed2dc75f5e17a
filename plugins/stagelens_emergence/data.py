"""Single-location regression (2.1): sequences, one relevant token, and the two kinds of repetition."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Target = Literal["unit", "gaussian"]


class Sequences(NamedTuple):
    """`x` [n, T, d], and `y` [n, d] that is to be predicted of each."""

    x: Tensor
    y: Tensor


class Moments(NamedTuple):
    """All that the expected loss needs of the data: `relevant` [d], the diagonal of Sigma_T (A.2)."""

    relevant: Tensor


class Draws(NamedTuple):
    """What the gradient on n sequences depends on, T + 2d numbers each instead of T d.

    `relevant` [n, d] is the relevant token, `context` [n, d] ~ N(0, I/d) the sum of the others in units of its size,
    and `across` [n, T - B] ~ N(0, 1) how the others differ along one direction.
    """

    relevant: Tensor
    context: Tensor
    across: Tensor


def check_data(T: int, d: int, B: int, p: float) -> None:
    """Says what is wrong with the data's numbers."""
    for name, value, what in (("T", T, "tokens in a sequence"), ("d", d, "dimensions of a token")):
        if value < 2:
            raise ValueError(f"{what}: {name}={value} should be at least 2")
    if not 1 <= B <= T:
        raise ValueError(f"the relevant token stands 1 to T={T} times in a sequence, and B={B} is not such a number")
    if not 0 <= p <= 1:
        raise ValueError(f"p={p:g} is not a probability; give a number from 0 to 1")


def target_weights(d: int, kind: Target, generator: torch.Generator) -> Tensor:
    """W* [d, d]: entries N(0, 1/d), for `unit` with columns of norm 1 (Assumption 3); float64."""
    W = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5
    unit: Tensor = W / W.norm(dim=0)
    return unit if kind == "unit" else W


def relevant_moments(d: int, p: float) -> Moments:
    """Sigma_T = diag(p + (1-p)/d, (1-p)/d, ...): the repeated token is the first basis vector (A.2, A.4)."""
    relevant = torch.full((d,), (1 - p) / d, dtype=torch.float64)
    relevant[0] += p
    return Moments(relevant)


def sample_relevant(n: int, d: int, p: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """[n, d]: N(0, I/d), or with probability p the first basis vector."""
    relevant: Tensor = torch.randn(n, d, generator=generator, dtype=dtype) / d**0.5
    if p == 0:
        return relevant
    repeated = torch.rand(n, 1, generator=generator, dtype=dtype) < p
    return torch.where(repeated, torch.eye(1, d, dtype=dtype), relevant)


def sample_sequences(W_star: Tensor, T: int, B: int, p: float, n: int, generator: torch.Generator) -> Sequences:
    """n sequences of x_t ~ N(0, I/d), whose last B tokens are one and the same."""
    d, dtype = len(W_star), W_star.dtype
    relevant = sample_relevant(n, d, p, generator, dtype)
    others = torch.randn(n, T - B, d, generator=generator, dtype=dtype) / d**0.5
    return Sequences(torch.cat([others, relevant[:, None].expand(n, B, d)], dim=1), relevant @ W_star.T)


def sample_draws(d: int, T: int, B: int, p: float, n: int, generator: torch.Generator, dtype: torch.dtype) -> Draws:
    """The draws of n sequences."""
    relevant = sample_relevant(n, d, p, generator, dtype)
    context = torch.randn(n, d, generator=generator, dtype=dtype) / d**0.5
    return Draws(relevant, context, torch.randn(n, T - B, generator=generator, dtype=dtype))
