"""The high-order Markov chain (Eq. 1) and its partial predictors (Eq. 3).

Lag 1 is the most recent token before the one that is predicted; Eq. 1 and Table 4 of the paper differ by one here,
and this is Table 4's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log10

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

DECADES = 6  # the importance of an interval lies this far from 1 at most


@dataclass(frozen=True)
class Process:
    """`features` A*_k [interval, d, d], scaled by importance; `intervals` I(k) as lags, most important first."""

    features: Tensor
    intervals: tuple[tuple[int, ...], ...]

    @property
    def order(self) -> int:
        """w, the number of past tokens that the next one depends on."""
        return max(max(interval) for interval in self.intervals)

    @property
    def d(self) -> int:
        """The size of the dictionary."""
        return self.features.shape[-1]


def make_process(
    d: int, scales: list[float], intervals: tuple[tuple[int, ...], ...], generator: torch.Generator
) -> Process:
    """Feature matrices drawn uniformly over orthogonal matrices, A*_k scaled by m_k = scales[k]."""
    gaussian = torch.randn(len(scales), d, d, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    signs = torch.diagonal(r, dim1=-2, dim2=-1).sign()  # without them QR is not uniform over the group
    orthogonal = q * signs[:, None, :]
    scaled = orthogonal * torch.tensor(scales, dtype=torch.float64)[:, None, None]
    return Process(scaled.float(), intervals)


def importance(m: float, b0: float, h: int) -> list[float]:
    """m_k = m^(h-k) b0 for k = 1..h (section B)."""
    return [b0 * m ** (h - k) for k in range(1, h + 1)]


def check_importance(m: float, b0: float, h: int) -> None:
    """Raises ValueError where the importance of the first or of the last interval is beyond what can be computed."""
    least, most = sorted([log10(b0), log10(b0) + (h - 1) * log10(m)])
    if least < -DECADES or most > DECADES:
        raise ValueError(
            f"m={m:g} and b0={b0:g} spread the importance of h={h} intervals over 1e{least:.0f}..1e{most:.0f}; "
            f"give values that keep it within 1e-{DECADES}..1e{DECADES}"
        )


def lag_tables(process: Process, first: int | None = None) -> Tensor:
    """[lag, token, outcome]: what the token at each lag adds to the logits, alpha_i A*_k e_token.

    With `first` = i only the intervals I(1)..I(i) count, which makes the predictor of Eq. 3.
    """
    tables = process.features.new_zeros(process.order, process.d, process.d)
    for feature, interval in list(zip(process.features, process.intervals, strict=True))[:first]:
        for lag in interval:
            tables[lag - 1] = feature.T / len(interval)  # alpha_i = 1 / |I(k)|
    return tables


def next_logits(tables: Tensor, past: Tensor) -> Tensor:
    """Logits [n, d] of the token after `past` [n, w] (oldest first), by one lookup per lag."""
    lags, d, _ = tables.shape
    rows = past.flip(-1) + d * torch.arange(lags, device=past.device)  # [n, lag]
    return embedding_bag(rows, tables.reshape(lags * d, d), mode="sum")


def sample_sequences(process: Process, T: int, n: int, generator: torch.Generator) -> Tensor:
    """n sequences x_{-w+1}, ..., x_0, x_1, ..., x_T of tokens, [n, w + T]: the first w uniform, the rest by Eq. 1."""
    w, d = process.order, process.d
    tables = lag_tables(process)
    tokens = torch.empty(n, w + T, dtype=torch.int64)
    tokens[:, :w] = torch.randint(d, (n, w), generator=generator)
    uniform = torch.rand(T, n, 1, generator=generator)
    for t in range(T):
        probabilities = next_logits(tables, tokens[:, t : t + w]).softmax(-1)
        below = probabilities.cumsum(-1) < uniform[t]  # inverse of the distribution function
        tokens[:, w + t] = below.sum(-1).clamp(max=d - 1)
    return tokens


def log_probabilities(process: Process, tokens: Tensor, first: int | None = None) -> Tensor:
    """Eq. 3: log f_{A*_{1:i}} at x_1..x_T, [n, T, d], from sequences [n, w + T]; `first` None means all intervals."""
    w = process.order
    windows = tokens[:, :-1].unfold(1, w, 1)  # [n, T, w]
    logits = next_logits(lag_tables(process, first).to(tokens.device), windows.flatten(0, 1))
    return logits.log_softmax(-1).reshape(*windows.shape[:2], process.d)
