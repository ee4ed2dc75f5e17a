"""The high-order Markov chain (Eq. 1) and its partial predictors (Eq. 3).

Lag 1 is the token just before the predicted one, as in Table 4 of the paper; Eq. 1 counts from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log10

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from stagelens.experiments import haar

MAX_POWER = 6  # the importance of an interval is at most 10^6 and at least 10^-6


@dataclass(frozen=True)
class MarkovProcess:
    """The chain: `features` A*_k [interval, d, d], scaled by importance, and `intervals` I(k) as lists of lags."""

    features: Tensor
    intervals: tuple[tuple[int, ...], ...]

    @property
    def order(self) -> int:
        """w, the number of past tokens that the next token depends on."""
        return max(max(interval) for interval in self.intervals)

    @property
    def d(self) -> int:
        """The size of the dictionary."""
        return self.features.shape[-1]


def make_process(
    d: int, scales: list[float], intervals: tuple[tuple[int, ...], ...], generator: torch.Generator
) -> MarkovProcess:
    """Draws a chain with Haar-distributed feature matrices, A*_k scaled by m_k = scales[k]."""
    scaled = haar(d, generator, len(scales)) * torch.tensor(scales, dtype=torch.float64)[:, None, None]
    return MarkovProcess(scaled.float(), intervals)


def importance(m: float, b0: float, h: int) -> list[float]:
    """Returns m_k = m^(h-k) b0 for k = 1..h (section B)."""
    return [b0 * m ** (h - k) for k in range(1, h + 1)]


def check_importance(m: float, b0: float, h: int) -> None:
    """Raises ValueError if the importance of the first or the last interval is too large or too small to compute."""
    least, most = sorted([log10(b0), log10(b0) + (h - 1) * log10(m)])
    if least < -MAX_POWER or most > MAX_POWER:
        raise ValueError(
            f"m={m:g} and b0={b0:g} spread the importance of h={h} intervals over 1e{least:.0f}..1e{most:.0f}; "
            f"give values that keep it within 1e-{MAX_POWER}..1e{MAX_POWER}"
        )


def lag_tables(process: MarkovProcess, first: int | None = None) -> Tensor:
    """Returns what the token at each lag adds to the logits, alpha_i A*_k e_token, [lag, token, outcome].

    With `first` = i only the intervals I(1)..I(i) count, which gives the predictor of Eq. 3.
    """
    tables = process.features.new_zeros(process.order, process.d, process.d)
    for feature, interval in list(zip(process.features, process.intervals, strict=True))[:first]:
        for lag in interval:
            tables[lag - 1] = feature.T / len(interval)  # alpha_i = 1 / |I(k)|
    return tables


def next_logits(tables: Tensor, past: Tensor) -> Tensor:
    """Returns the logits [n, d] of the token after `past` [n, w] (oldest first), by one lookup per lag."""
    lags, d, _ = tables.shape
    rows = past.flip(-1) + d * torch.arange(lags, device=past.device)  # [n, lag]
    return embedding_bag(rows, tables.reshape(lags * d, d), mode="sum")


def sample_sequences(process: MarkovProcess, T: int, n: int, generator: torch.Generator) -> Tensor:
    """Draws sequences x_{-w+1}, ..., x_0, x_1, ..., x_T, [n, w + T]: the first w tokens uniform, the rest by Eq. 1."""
    w, d = process.order, process.d
    tables = lag_tables(process)
    tokens = torch.empty(n, w + T, dtype=torch.int64)
    tokens[:, :w] = torch.randint(d, (n, w), generator=generator)
    uniform = torch.rand(T, n, 1, generator=generator)
    for t in range(T):
        probabilities = next_logits(tables, tokens[:, t : t + w]).softmax(-1)
        below = probabilities.cumsum(-1) < uniform[t]  # inverse transform sampling
        tokens[:, w + t] = below.sum(-1).clamp(max=d - 1)
    return tokens


def log_probabilities(process: MarkovProcess, tokens: Tensor, first: int | None = None) -> Tensor:
    """Eq. 3: returns log f_{A*_{1:i}} at x_1..x_T, [n, T, d], of sequences [n, w + T]; `first` is i, None for all."""
    w = process.order
    windows = tokens[:, :-1].unfold(1, w, 1)  # [n, T, w]
    logits = next_logits(lag_tables(process, first).to(tokens.device), windows.flatten(0, 1))
    return logits.log_softmax(-1).reshape(*windows.shape[:2], process.d)
