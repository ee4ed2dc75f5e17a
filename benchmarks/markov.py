"""Compares training steps of `markov/minimal` by lookups with steps by direct einsums of one-hot inputs.

Run with `python -m benchmarks.markov`. Both start from the same weights, see the same batches and take AdamW steps.
They run in turns, so that other load on the machine slows both. The paper's size (batches of 3,000 sequences, 50
tokens) and the quick preset's are measured. It exits with 1 if lookups are slower or the losses differ by over 1e-5.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import torch
from benchmarks.measure import Row, report
from torch import Tensor
from torch.nn.functional import one_hot

from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training
from stagelens_markov.tasks import Minimal

ROUNDS = {"paper": 6, "quick": 40}
RATIO_BAR = 1.0
AGREEMENT_BAR = 1e-5


class Direct(Minimal):
    """The same task, with logits by einsums of one-hot inputs with A_k and V_k."""

    def loss(self, model: torch.nn.Module, batch: Tensor) -> Tensor:
        tokens, T = batch[:, :-1], self.config.T
        attn = model.blocks[0].attn
        n, d = tokens.shape[1], self.config.d
        position = torch.eye(n).expand(len(tokens), n, n)
        x = torch.cat([one_hot(tokens, d).float(), position], dim=-1)  # [batch, key, token and position]
        scores = torch.einsum("bki,hij,bqj->bhqk", x, attn.A, x[:, -T:])
        pattern = scores.masked_fill(model.hidden, -torch.inf).softmax(-1)
        values = torch.einsum("bki,hid->bkhd", x, attn.V)
        logits = torch.einsum("bhqk,bkhd->bqd", pattern, values)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, -T:].flatten())


def compare(preset: str) -> tuple[float, float]:
    """Returns the ratio of times per training step, direct / lookups, and the largest difference of the losses."""
    config = make_config(Minimal.Config, Minimal.presets, preset, ["train_size=9000"])  # drawn once, not at each step
    trainings = {kind: Training(kind(config)) for kind in (Direct, Minimal)}
    ratios, apart = [], 0.0
    for step in range(ROUNDS[preset]):
        seconds = {}
        for kind, training in trainings.items():
            began = perf_counter()
            training.advance(step)
            seconds[kind] = perf_counter() - began
        ratios.append(seconds[Direct] / seconds[Minimal])
        apart = max(apart, abs(trainings[Direct].loss.item() - trainings[Minimal].loss.item()))
    return median(ratios[1:]), apart


def main() -> int:
    torch.set_num_threads(1)
    rows = []
    for preset in ROUNDS:
        ratio, apart = compare(preset)
        rows += [
            Row(f"{preset}: direct einsum / lookups, per training step", ratio, at_least=RATIO_BAR),
            Row(f"{preset}: largest difference of the losses", apart, at_most=AGREEMENT_BAR, unit=""),
        ]
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
