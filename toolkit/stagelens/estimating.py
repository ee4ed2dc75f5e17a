"""Estimates: how long a sweep will take, from points that are finished, or from a short look at one of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from stagelens.manifest import load_manifest
from stagelens.task import Task

if TYPE_CHECKING:
    from stagelens.experiment import Experiment
    from stagelens.points import SweepPlan

LOOK = 2.0  # seconds at most that a look at one point takes
STEPS = 50  # training steps at most in such a look


@dataclass(frozen=True)
class Estimate:
    """`seconds` of the points that are missing, on all workers together, and what that is based on."""

    seconds: float
    basis: str


def estimate(plan: SweepPlan, workers: int) -> Estimate:
    """From the median of the finished points, else from a timed look at the middle one of the missing."""
    statuses = [plan.status(point) for point in plan.points]
    finished = [point for point, status in zip(plan.points, statuses, strict=True) if status == "finished"]
    missing = [point for point, status in zip(plan.points, statuses, strict=True) if status != "finished"]
    if not missing:
        return Estimate(0.0, "nothing is missing")
    if finished:
        each = median(load_manifest(plan.folder / point.name).seconds for point in finished)
        basis = f"the median of {len(finished)} finished points, {each:.2g} s"
    else:
        point = missing[len(missing) // 2]
        each = _look(plan.kind(point.config, point.seed))
        basis = f"a short timed look at one point, {each:.2g} s"
    return Estimate(each * len(missing) / min(workers, len(missing)), basis)


def _look(experiment: Experiment) -> float:
    """Seconds that a whole run would take, from its first part."""
    return _look_at_training(experiment) if isinstance(experiment, Task) else _look_at_flow(experiment)


def _look_at_training(task: Task) -> float:
    """Its first steps, times how many there will be; its probes are not counted."""
    from stagelens.seeds import untouched_rng
    from stagelens.training import Training

    with untouched_rng():
        training = Training(task)
        training.advance(0)  # what is made once
        started, step = time.monotonic(), 0
        while step < STEPS and time.monotonic() - started < LOOK:
            step += 1
            training.advance(step)
        each = (time.monotonic() - started) / step
    return each * task.config.steps  # type: ignore[no-any-return]


def _look_at_flow(flow: Experiment) -> float:
    """The part of its time that is integrated within `LOOK` seconds."""
    from stagelens.flow import Flow, integrate

    assert isinstance(flow, Flow)
    started, reached = time.monotonic(), 0.0

    def watch(now: float) -> None:
        nonlocal reached
        reached = max(reached, now)
        if time.monotonic() - started > LOOK:
            raise _EnoughSeen

    try:
        integrate(flow, watch)
    except _EnoughSeen:
        return float((time.monotonic() - started) * flow.config.time / max(reached, 1e-12))
    return time.monotonic() - started


class _EnoughSeen(Exception):
    pass
