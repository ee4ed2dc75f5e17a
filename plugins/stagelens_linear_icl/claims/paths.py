"""The descents and flows that the claims measure, from many seeds.

Most claims need no training run, because descent on the exact loss takes microseconds per step. Where a statement is
about the gradient flow, or its last drop waits for a head that starts tiny, the flow is integrated to a late `END`. A
small start is w_init = 0.005: the smaller it is, the more heads grow one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from stagelens.experiments import Floats
from stagelens_linear_icl.config import SeparateConfig
from stagelens_linear_icl.data import RegressionMoments
from stagelens_linear_icl.flow import WeightPath, descend, flow_path, gradient_flow, record_steps
from stagelens_linear_icl.losses import loss_of
from stagelens_linear_icl.model import product, stack
from stagelens_linear_icl.tasks import Separate

SMALL = 0.005  # w_init of a small start
END = 1e7  # time of a flow, in units of tau: thirty times what the seeds 0 to 5 need until all drops are over
SAMPLED = {"w_init": SMALL, "P": 5000}  # P as in Fig. 1, by the authors' code


def separate(**settings: Any) -> Separate:
    """Returns the exact task with these settings."""
    return Separate(Separate.Config.model_validate(settings))


def descents(task: Separate, seeds: Iterable[int]) -> dict[int, WeightPath]:
    """Runs exact descent from the starts of `seeds`, all together, and records it finely enough to follow a drop."""
    seeds = list(seeds)
    lr, steps = task.config.lr, task.config.steps
    found = descend(stack([task.start(seed) for seed in seeds]), task.moments, lr, steps, fine_steps(steps))
    return {seed: found.path(task, index) for index, seed in enumerate(seeds)}


def fine_steps(steps: int) -> set[int]:
    """Returns the steps to record: every tenth, and more in the beginning."""
    return {*range(0, steps + 1, 10), *record_steps(steps)}


def training_descents(settings: dict[str, Any], seeds: Iterable[int]) -> dict[int, WeightPath]:
    """Runs descent on the training loss of P sequences, all seeds together, each with sequences of its own."""
    config = SeparateConfig.model_validate(settings)
    tasks = {seed: Separate(config, seed) for seed in seeds}
    parts = zip(*(task.moments for task in tasks.values()), strict=True)
    moments = RegressionMoments(*map(torch.stack, parts))  # each with a leading dim of seeds
    start, record = stack([task.start() for task in tasks.values()]), fine_steps(config.steps)
    found = descend(start, moments, config.lr, config.steps, record)
    return {seed: found.path(task, index) for index, (seed, task) in enumerate(tasks.items())}


def population_path(path: WeightPath) -> WeightPath:
    """Returns the same weights with the loss of the population."""
    return replace(path, loss=loss_of(product(path.weights), path.problem.population))


def flows(task: Separate, seeds: Iterable[int]) -> dict[int, WeightPath]:
    """Integrates the flow of the population loss from the starts of `seeds`, until all drops should be over."""
    return {seed: flow_path(task, task.start(seed), late_times(task.config.w_init)) for seed in seeds}


def late_times(w_init: float) -> Floats:
    """Returns the times at which a flow is recorded: plateaus last like 1 / w_init, so later for smaller starts."""
    longer = SMALL / w_init
    return np.append(0.0, np.geomspace(100 * longer, END * longer, 20_000))


@cache
def small_starts(seeds: tuple[int, ...]) -> dict[int, WeightPath]:
    """Returns flows of Fig. 1 from small starts. L1, L2, L3, L5 and L12 share them."""
    return flows(separate(w_init=SMALL), seeds)


def training_flows(settings: dict[str, Any], seeds: Iterable[int]) -> dict[int, WeightPath]:
    """Integrates the flow of the training loss of P sequences, which every seed has of its own."""
    found = {}
    for seed in seeds:
        task = Separate(Separate.Config.model_validate(settings), seed)
        times = late_times(task.config.w_init)
        weights = gradient_flow(task.start(), task.moments, times, 1e-8, 1e-11)
        found[seed] = WeightPath(task, times, loss_of(product(weights), task.moments), weights)
    return found
