"""Compares exact descent on linear attention with a plain loop over the sequences, per step and seed.

Run with `python -m benchmarks.linear_icl`. Both start from the same weights and see the same P = 5,000 sequences. The
plain loop computes attention for every token of every sequence, with autograd and SGD. Times differ between machines,
so only the ratio of times taken in turns within one run is reported. The script exits with 1 if the ratio or the
agreement of the two curves misses its bar.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import numpy as np
import torch
from benchmarks.measure import Row, report
from torch import Tensor

from stagelens.base import generator
from stagelens_linear_icl.data import RegressionSequences, moments_of, random_covariance, sample_sequences
from stagelens_linear_icl.flow import descend
from stagelens_linear_icl.model import HeadWeights, initial_weights, stack

D, N, H, P = 4, 32, 5, 5000
LR, W_INIT = 0.4, 0.5
SEEDS = 6
PLAIN_STEPS, EXACT_STEPS = 5, 2000
TURNS = 5
RATIO_BAR = 300.0
AGREEMENT_BAR = 1e-9


class PlainLoop:
    """ATTN(X) of Eq. 2 for all tokens, batched over the sequences, under autograd and SGD."""

    def __init__(self, sequences: RegressionSequences, start: HeadWeights) -> None:
        self.X = sequences.tokens.mT  # [P, D+1, N+1]
        self.y = sequences.y[:, -1]
        v, k, q = (torch.from_numpy(part.copy()) for part in start)
        W_V, W_K, W_Q = torch.zeros(H, D + 1, D + 1).double(), torch.zeros(H, 1, D + 1).double(), None
        W_V[:, -1, -1] = v
        W_K[..., :-1] = k
        W_Q = torch.cat([q, torch.zeros(H, 1, 1).double()], dim=-1)
        self.parameters = [part.requires_grad_() for part in (W_V, W_K, W_Q)]
        self.masks = [part.detach() != 0 for part in self.parameters]  # the zero blocks stay zero, as in Eq. 2
        self.optimizer = torch.optim.SGD(self.parameters, lr=LR)

    def attention(self) -> Tensor:
        """X + sum_i 1/N W^V_i X X^T W^K_i^T W^Q_i X, [P, D+1, N+1]."""
        X = self.X
        W_V, W_K, W_Q = self.parameters
        out = X
        for i in range(H):
            scores = (W_K[i] @ X).mT @ (W_Q[i] @ X)  # [P, N+1, N+1]
            out = out + W_V[i] @ X @ scores / N
        return out

    def step(self) -> float:
        loss = (self.y - self.attention()[:, -1, -1]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter, mask in zip(self.parameters, self.masks, strict=True):
            parameter.grad.mul_(mask)
        self.optimizer.step()
        return loss.item()


def main() -> int:
    torch.set_num_threads(1)
    covariance = random_covariance(np.array([0.4, 0.3, 0.2, 0.1]), generator(0, "eigenvectors"))
    sequences = sample_sequences(covariance, N, P, generator(0, "train"))
    starts = [initial_weights(H, 1, D, W_INIT, seed) for seed in range(SEEDS)]
    began = perf_counter()
    moments = moments_of(sequences)
    preparing = perf_counter() - began

    plain = PlainLoop(sequences, starts[0])
    plain.step()
    ratios, losses = [], []
    for _ in range(TURNS):
        began = perf_counter()
        losses += [plain.step() for _ in range(PLAIN_STEPS)]
        slow = (perf_counter() - began) / PLAIN_STEPS
        began = perf_counter()
        descend(stack(starts), moments, LR, EXACT_STEPS, record=[EXACT_STEPS])
        fast = (perf_counter() - began) / (EXACT_STEPS * SEEDS)
        ratios.append(slow / fast)
    exact = descend(stack(starts[:1]), moments, LR, len(losses), record=range(1, len(losses) + 1)).loss[:, 0]
    apart = float(np.max(np.abs(exact / np.array(losses) - 1)))

    rows = [
        Row(
            f"plain loop / exact descent, per step and seed ({SEEDS} seeds at once)", median(ratios), at_least=RATIO_BAR
        ),
        Row("the moments, once", preparing / slow, unit="plain steps"),
        Row(
            f"largest difference of the losses over {len(losses)} steps", apart, at_most=AGREEMENT_BAR, unit="relative"
        ),
    ]
    return report(__file__, rows, f"D = {D}, N = {N}, {P:,} sequences")


if __name__ == "__main__":
    sys.exit(main())
