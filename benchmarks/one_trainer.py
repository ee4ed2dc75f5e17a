"""Compares the vectorized trainer with the trainer for a single seed, on one seed: time per step, and weights.

The vectorized trainer runs its step as a flat list of operations, without autograd. On the smallest models it takes a
sixth of the time and gives the same weights, bit for bit. The project keeps both trainers for three reasons:

- A transformer with dropout draws other random numbers under `torch.vmap`. So older runs could not be resumed bit for
  bit, and `model_at` would return other models.
- On such a transformer vectorizing is no faster.
- The vectorized trainer refuses optimizers that are not elementwise, ReduceLROnPlateau, compiled steps, and batches
  that are not all tensors.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from benchmarks.ensembles import steps
from benchmarks.measure import Row, in_turns, ratio, report

from stagelens.experiments import Training, make_config
from stagelens.host import make_host
from stagelens.training.stacking import Stacked

TASKS = ("markov/minimal", "markov/full", "linear-icl/separate", "recall/simplified", "rich/toy", "emergence/toy")
MANY = 20  # steps after which the weights are compared


def training(kind: Any) -> Training:
    return Training(kind(make_config(kind.Config, kind.presets, "quick", []), 0))


def difference(kind: Any) -> float:
    """Returns the largest difference of a weight after `MANY` steps, relative to the largest weight."""
    alone, member = training(kind), training(kind)
    stacked = Stacked([member])
    for step in range(MANY):
        alone.advance(step)
        stacked.advance(step)
    pairs = list(zip(alone.model.parameters(), member.model.parameters(), strict=True))
    scale = max(float(one.detach().abs().max()) for one, _ in pairs)
    return max(float((one - other).detach().abs().max()) for one, other in pairs) / scale


def main() -> int:
    torch.set_num_threads(1)
    host, rows = make_host(), []
    for task in TASKS:
        kind = host.task(task).load()
        times = in_turns({"alone": steps(training(kind)), "stack": steps(Stacked([training(kind)]))}, repeats=9)
        rows.append(Row(f"{task}: a step of a stack of one / of the trainer of one", ratio(times, "stack", "alone")))
        rows.append(Row(f"{task}: largest difference of the weights after {MANY} steps", difference(kind), unit="rel."))
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
