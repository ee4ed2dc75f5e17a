"""The whole table of additions, and its division into what is shown and what is held back."""

from __future__ import annotations

import torch
from torch import Tensor


def table(p: int) -> Tensor:
    """All questions `a b =` with their answer a + b mod p: int [p^2, 4]. The sign `=` is token p."""
    a, b = torch.cartesian_prod(torch.arange(p), torch.arange(p)).T
    return torch.stack([a, b, torch.full_like(a, p), (a + b) % p], dim=1)


def split(p: int, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The table at random in two: `fraction` of it to train on, and the rest."""
    rows = table(p)[torch.randperm(p * p, generator=generator)]
    shown = round(fraction * len(rows))
    return rows[:shown], rows[shown:]
