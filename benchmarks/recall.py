"""The exact population loss of permutation recall against the sampled one: time per training step, as a ratio.

The two run in turns, so that whatever else the machine does slows both. The sampled loss is given as many sequences as
it needs for its standard error to be a hundredth of the first drop, and the default batch beside it.
"""

from __future__ import annotations

import time

import torch

from stagelens.seeds import generator
from stagelens.training import Training
from stagelens_recall import theory
from stagelens_recall.data import queries_of
from stagelens_recall.losses import answer_probability
from stagelens_recall.tasks import Simplified, SimplifiedConfig

ROUNDS, STEPS = 5, 10


def seconds_per_step(trainings: dict[str, Training]) -> dict[str, float]:
    """The least time of a step over all rounds, of each training."""
    best = dict.fromkeys(trainings, float("inf"))
    for turn in range(ROUNDS):
        for name, training in trainings.items():
            start = time.perf_counter()
            for step in range(turn * STEPS, (turn + 1) * STEPS):
                training.advance(step)
            best[name] = min(best[name], (time.perf_counter() - start) / STEPS)
    return best


def needed_batch(order: int, responses: int) -> int:
    """How many sequences bring the standard error of the sampled loss to a hundredth of the first drop."""
    task = Simplified(SimplifiedConfig(order=order, responses=responses, sampled=True))
    batch = task.sample(2000, generator(0, "benchmark"))
    with torch.no_grad():
        probability = answer_probability(task.build_model()(queries_of(batch, order)), batch, order)
    drop = theory.plateau_loss(order, responses, 0) - theory.plateau_loss(order, responses, 1)
    return int((100 * probability.std().item() / drop) ** 2) + 1


def main() -> None:
    for order in (3, 4):
        batch = needed_batch(order, 4)
        configs = {
            "exact": SimplifiedConfig(order=order),
            "sampled, 128": SimplifiedConfig(order=order, sampled=True, batch_size=128),
            f"sampled, {batch} (1% of the first drop)": SimplifiedConfig(order=order, sampled=True, batch_size=batch),
            "exact cross-entropy": SimplifiedConfig(order=order, loss="cross-entropy"),
        }
        times = seconds_per_step({name: Training(Simplified(config)) for name, config in configs.items()})
        print(f"order {order}: exact {1e3 * times['exact']:.2f} ms per step")
        for name, seconds in times.items():
            print(f"    {name}: {seconds / times['exact']:.2f} times the exact loss")


if __name__ == "__main__":
    main()
