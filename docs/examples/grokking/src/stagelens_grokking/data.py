"""The addition table, and its split into a training set and a held-out set."""

from __future__ import annotations

import torch
from torch import Tensor


def table(p: int) -> Tensor:
    """Returns all questions `a b =` with their answers a + b mod p: int [p^2, 4]. The sign `=` is token p."""
    a, b = torch.cartesian_prod(torch.arange(p), torch.arange(p)).T
    return torch.stack([a, b, torch.full_like(a, p), (a + b) % p], dim=1)


def split(p: int, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns a random `fraction` of the table to train on, and the rest: int [question, 4] each."""
    rows = table(p)[torch.randperm(p * p, generator=generator)]
    shown = round(fraction * len(rows))
    return rows[:shown], rows[shown:]
