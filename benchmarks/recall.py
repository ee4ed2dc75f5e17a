"""Compares the exact population loss of permutation recall with the sampled loss: the ratio of times per training step.

The two run in turns, so that other load on the machine slows both. The sampled loss is timed with two
batch sizes: the default, and the one at which its standard error is a hundredth of the first drop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from benchmarks.measure import Row, in_turns, ratio, report

from stagelens.base import generator
from stagelens.experiments.training import Training
from stagelens_recall import theory
from stagelens_recall.config import SimplifiedConfig
from stagelens_recall.data import queries_of
from stagelens_recall.losses import answer_probability
from stagelens_recall.tasks.simplified import Simplified

ROUNDS, STEPS = 9, 10


def steps_of(config: SimplifiedConfig) -> Callable[[], None]:
    """Returns a function that takes the next training steps at each call."""
    training, numbers = Training(Simplified(config)), iter(range(10**9))

    def some() -> None:
        for _ in range(STEPS):
            training.advance(next(numbers))

    return some


def needed_batch(order: int, responses: int) -> int:
    """Returns the number of sequences with which the standard error of the loss is a hundredth of the first drop."""
    task = Simplified(SimplifiedConfig(order=order, responses=responses, sampled=True))
    batch = task.sample(2000, generator(0, "benchmark"))
    with torch.no_grad():
        probability = answer_probability(task.build_model()(queries_of(batch, order)), batch, order)
    drop = theory.plateau_loss(order, responses, 0) - theory.plateau_loss(order, responses, 1)
    return int((100 * probability.std().item() / drop) ** 2) + 1


def main() -> int:
    torch.set_num_threads(1)
    rows = []
    for order in (3, 4):
        batch = needed_batch(order, 4)
        configs = {
            "exact": SimplifiedConfig(order=order),
            "sampled, 128 sequences": SimplifiedConfig(order=order, sampled=True, batch_size=128),
            f"sampled, {batch:,} sequences": SimplifiedConfig(order=order, sampled=True, batch_size=batch),
            "exact cross-entropy": SimplifiedConfig(order=order, loss="cross-entropy"),
        }
        times = in_turns({name: steps_of(config) for name, config in configs.items()}, ROUNDS, warm_up=1)
        rows += [
            Row(f"order {order}: {name} / exact, per step", ratio(times, name, "exact"))
            for name in configs
            if name != "exact"
        ]
    return report(__file__, rows, "the larger batch brings the sampled loss within 1% of the first drop")


if __name__ == "__main__":
    sys.exit(main())
