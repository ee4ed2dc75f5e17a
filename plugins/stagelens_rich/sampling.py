"""The two losses of Stage II by drawing sequences: the check on the closed forms."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stagelens.base import generator
from stagelens_rich.data import sample_tokens
from stagelens_rich.theory import Setting

CHUNK = 50_000


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


class Point(NamedTuple):
    """Parameters of the second layer."""

    p: float
    g: float
    w: float
    h: float


def squared_errors(x: Tensor, at: Point, s: Setting) -> dict[str, Tensor]:
    """Half the squared error on each sequence of x [n, L]: of the 4-gram, and of the induction head both ways."""
    behind = torch.arange(s.L - 3, -1, -1, dtype=x.dtype)  # L - 1 - s for s = 2..L-1
    four_gram = at.g * x[:, :-2] @ (-at.p * behind).softmax(0) - s.g_star * x[:, -3]
    key, value = x[:, -1:] * x[:, :-2], x[:, 1:-1]  # x_L x_(s-1) and x_s
    found = {"4-gram": four_gram}
    for name, attend in (("softmax", _softmax), ("exponential", _exponential)):
        heads = [(value * attend(w**2 * key)).sum(1) for w in (at.w, s.w_star)]
        found[name] = at.h * heads[0] - s.h_star * heads[1]
    return {name: 0.5 * error.square() for name, error in found.items()}


def _softmax(z: Tensor) -> Tensor:
    return z.softmax(1)


def _exponential(z: Tensor) -> Tensor:
    """The simplification of C.3.2."""
    return z.exp() / z.shape[1]


def estimates(at: Point, s: Setting, n: int, seed: int = 0) -> dict[str, Estimate]:
    """L_G4, and L_IH2 with softmax and with exp(z)/(L-2) in its place, from n sequences drawn in chunks."""
    sums: dict[str, Tensor] = {}
    for chunk, start in enumerate(range(0, n, CHUNK)):
        x = sample_tokens(min(CHUNK, n - start), s.L, 1, s.tokens, generator(seed, "closed forms", chunk))[..., 0]
        for name, error in squared_errors(x, at, s).items():
            moments = torch.stack([error.double().sum(), error.double().square().sum()])
            sums[name] = sums.get(name, torch.zeros(2, dtype=torch.float64)) + moments
    means = {name: (total / n).tolist() for name, total in sums.items()}
    return {name: Estimate(a, ((b - a * a) / n) ** 0.5) for name, (a, b) in means.items()}
