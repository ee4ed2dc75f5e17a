"""A plugin whose probes and tasks break their contracts from step 5 on."""

from __future__ import annotations

import random
import sys
import time
from typing import Any, ClassVar

import numpy as np
import torch

import stagelens as sl
from kit.tasks import Regression, RegressionConfig
from stagelens.recording.probes import Probe

FROM = 5


class Bad(Probe):
    """Returns the mean of an activation, and misbehaves in `act`."""

    gives = ("value",)
    hooks = ("hook_middle",)
    default = False

    def reduce(self, activation: Any, site: Any, context: Any) -> Any:
        return activation.mean()

    def readings(self, reduced: Any, context: Any) -> Any:
        if context.step >= FROM:
            self.act(context)
        (value,) = reduced.values()
        yield sl.Reading("value", value)

    def act(self, context: Any) -> None: ...


class Raises(Bad):
    name = "raises"

    def act(self, context: Any) -> None:
        raise RuntimeError("out of\ntune")


class RaisesInHook(Bad):
    name = "raises_in_hook"

    def reduce(self, activation: Any, site: Any, context: Any) -> Any:
        return activation.mean() if context.step < FROM else activation.no_such_thing


class Exits(Bad):
    name = "exits"

    def act(self, context: Any) -> None:
        sys.exit(7)


class GivesNan(Bad):
    name = "gives_nan"

    def readings(self, reduced: Any, context: Any) -> Any:
        yield sl.Reading("value", 1.0 if context.step < FROM else float("nan"))


class ChangesShape(Bad):
    name = "changes_shape"

    def readings(self, reduced: Any, context: Any) -> Any:
        yield sl.Reading("value", np.ones(2 if context.step < FROM else 3), ("k",))


class Sleeps(Bad):
    name = "sleeps"

    def act(self, context: Any) -> None:
        time.sleep(3600)


class Loops(Bad):
    name = "loops"

    def act(self, context: Any) -> None:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue


class LoopsInHook(Bad):
    name = "loops_in_hook"

    def reduce(self, activation: Any, site: Any, context: Any) -> Any:
        while context.step >= FROM:
            activation = activation + 0
        return activation.mean()


class Leaks(Bad):
    """Keeps 36 MiB of each measurement: more than the C library ever takes from memory that was freed before."""

    name = "leaks"

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def act(self, context: Any) -> None:
        self.kept.append(torch.full((9 * 2**20,), float(context.step)))


class Draws(Bad):
    name = "draws"

    def act(self, context: Any) -> None:
        torch.rand(3)


class DrawsInHook(Bad):
    name = "draws_in_hook"

    def reduce(self, activation: Any, site: Any, context: Any) -> Any:
        return activation.mean() + (0 * torch.rand(()) if context.step >= FROM else 0)


class DrawsNumpy(Bad):
    name = "draws_numpy"

    def act(self, context: Any) -> None:
        np.random.rand(3)  # noqa: NPY002


class DrawsPython(Bad):
    name = "draws_python"

    def act(self, context: Any) -> None:
        random.random()


class Seeds(Bad):
    name = "seeds"

    def act(self, context: Any) -> None:
        torch.manual_seed(0)


class Changes(Bad):
    name = "changes"

    def act(self, context: Any) -> None:
        context.model.first.add_(0.1)


class ChangesData(Bad):
    name = "changes_data"

    def act(self, context: Any) -> None:
        context.model.second.data[0] = 3.0


class ChangesInHook(Bad):
    name = "changes_in_hook"

    def reduce(self, activation: Any, site: Any, context: Any) -> Any:
        if context.step >= FROM:
            context.model.second.data.mul_(2)
        return activation.mean()


PROBES = (
    *(Raises, RaisesInHook, Exits, GivesNan, ChangesShape, Sleeps, Loops, LoopsInHook, Leaks),
    *(Draws, DrawsInHook, DrawsNumpy, DrawsPython, Seeds, Changes, ChangesData, ChangesInHook),
)


class BadConfig(RegressionConfig):
    at: int = 20  # the step at which it happens
    what: str = "nan"


class BadTask(Regression):
    """Its loss becomes nan, infinite, or has an infinite gradient at step `at`."""

    id = "bad/loss"
    title = "a loss that does not stay finite"
    Config = BadConfig
    calls: ClassVar[int] = 0

    def loss(self, model: Any, batch: Any) -> Any:
        loss = super().loss(model, batch)
        if model.training:
            type(self).calls += 1
            if self.calls == self.config.at + 1:
                edge = (model.first - model.first.detach()).sum()
                loss = {"nan": loss * float("nan"), "inf": loss / 0, "gradient": loss + edge.sqrt()}[self.config.what]
        return loss


@sl.hookimpl
def stagelens_register_probes() -> list[type[Probe]]:
    return [*PROBES]


@sl.hookimpl
def stagelens_register_tasks() -> list[type[Any]]:
    return [Regression, BadTask]
