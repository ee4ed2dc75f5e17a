"""Seeds trained together in float64, to the last digits: momentum, groups of parameters, schedulers of schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import stagelens as sl
from kit.tiny import host, in_float64, tiny_task
from stagelens.experiments import Training
from stagelens.training.stackable import why_not
from stagelens.training.stacking import Stacked

TASK, STEPS, SEEDS = "recall/original", 16, (5, 0, 2)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Every second parameter with a rate and a decay of its own."""
    parameters = list(model.parameters())
    return [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.003, "weight_decay": 0.1}]


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "momentum": lambda m: optim.SGD(m.parameters(), lr=0.03, momentum=0.9, dampening=0.1, weight_decay=1e-3),
    "nesterov": lambda m: optim.SGD(groups(m), lr=0.01, momentum=0.8, nesterov=True),
    "amsgrad": lambda m: optim.Adam(groups(m), lr=1e-3, amsgrad=True, betas=(0.8, 0.95)),
    "centred": lambda m: optim.RMSprop(m.parameters(), lr=5e-4, centered=True, momentum=0.5),
}
SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "momentum": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=STEPS + 1),  # momentum too
    "nesterov": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingWarmRestarts(o, 5)],
        milestones=[4],
    ),
    "amsgrad": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "centred": lambda o: None,
}


def variant(name: str) -> type[sl.Task]:
    base = in_float64(host().task(TASK).load())
    names = [parameter for parameter, _ in tiny_task(TASK, base).build_model().named_parameters()]
    phases = [("first", 5, names[::2]), ("second", 6, names[1::2] or names), ("all", STEPS, ["*"])]
    members = {
        "optimizer": lambda self, model: OPTIMIZERS[name](model),
        "scheduler": lambda self, optimizer: SCHEDULERS[name](optimizer),
        "phases": lambda self: [sl.TrainingPhase(phase, steps, tuple(some)) for phase, steps, some in phases],
    }
    return type("Variant", (base,), members)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_seeds_together_are_seeds_alone_to_the_last_digits(name: str) -> None:
    kind = variant(name)
    alone, members = ([Training(tiny_task(TASK, kind, seed, {"clip": 0.05})) for seed in SEEDS] for _ in range(2))
    assert not why_not(members)
    stacked = Stacked(members)
    for step in range(STEPS):
        for trainer in (stacked, *alone):
            trainer.advance(step)
    stacked.settle()
    for one, other in zip(members, alone, strict=True):
        for parameter, value in other.model.named_parameters():
            found = dict(one.model.named_parameters())[parameter]
            assert float((found - value).detach().abs().max() / value.detach().abs().max()) < 1e-12
        for key, number in other.scalars().items():
            assert float(one.scalars()[key]) == pytest.approx(float(number), rel=1e-12)
    assert not torch.equal(*(next(iter(one.model.parameters())) for one in members[:2]))
