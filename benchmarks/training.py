"""Compares a training step of our models with plain PyTorch by hand and with TransformerLens' own forward pass.

A step is forward, backward and update on a batch in memory, for the shapes of the tasks at quick size. Three
implementations are compared, all with the task's loss and optimizer:

- ours: all of `Training.advance`;
- plain: the same architecture and weights with packed QKV, fused attention and native layer norms; its optimizer is
  measured with torch's defaults, and fused like ours;
- TransformerLens' own forward pass.

If the loss reads only the last position, the first two skip the rest of the last layer. TransformerLens computes
all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.measure import Row, in_turns, ratio, report
from benchmarks.plain import Plain
from torch import nn
from transformer_lens import HookedTransformer

from stagelens.experiments.training import Training, fused
from stagelens.host.host import make_host

TASKS = ("emergence/recall", "emergence/regression", "markov/full", "recall/transformer", "rich/text")
CLEARLY = ("emergence/recall", "emergence/regression")
STEPS = 5  # in one measurement of a few milliseconds


class ExplicitForward(nn.Module):
    """The model with TransformerLens' own forward pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return HookedTransformer.forward(self.model, inputs)


def loop(task: Any, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Callable[[], None]:
    """A plain training step, a few times."""

    def steps() -> None:
        for _ in range(STEPS):
            loss = task.loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            if task.config.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), task.config.clip)
            optimizer.step()

    return steps


def compared(name: str) -> dict[str, Callable[[], None]]:
    """Returns the implementations, each with its own model from the same weights, on the same batch."""
    kind = make_host().task(name).load()
    task = kind(kind.Config(**kind.presets["quick"]))
    training = Training(task)
    batch = training.batches(0)
    training.batches = lambda _: batch
    yardstick, check = Plain(training.model), task.build_model()
    with torch.no_grad():
        apart = (task.loss(yardstick.eval(), batch) - task.loss(check.eval(), batch)).abs().item()
    assert apart < 1e-4, f"{name}: the plain model is not the same: the losses differ by {apart}"
    explicit, other = ExplicitForward(task.build_model().train()), Plain(training.model).train()

    def ours() -> None:
        for step in range(STEPS):
            training.advance(step)

    return {
        "ours": ours,
        "plain": loop(task, yardstick.train(), task.optimizer(yardstick), batch),
        "plain, fused update": loop(task, other, fused(task.optimizer(other)), batch),
        "TransformerLens": loop(task, explicit, task.optimizer(explicit), batch),
    }


def main() -> int:
    rows = []
    for name in TASKS:
        times = in_turns(compared(name))
        rows += [
            Row(f"{name}: ours / plain", ratio(times, "ours", "plain"), at_most=1.15),
            Row(f"{name}: ours / plain, fused update", ratio(times, "ours", "plain, fused update"), at_most=1.15),
            Row(
                f"{name}: TransformerLens / ours",
                ratio(times, "TransformerLens", "ours"),
                at_least=1.4 if name in CLEARLY else 1.0,
            ),
        ]
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
