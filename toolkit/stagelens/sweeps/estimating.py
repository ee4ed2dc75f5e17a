"""Estimates of the time that a sweep takes: from finished grid points, or by timing the start of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from stagelens.experiments import Task
from stagelens.runs import Manifest, load_manifest

if TYPE_CHECKING:
    from stagelens.experiments import Experiment, Schedule, Trainer, Training
    from stagelens.host import Host
    from stagelens.sweeps.plan import SweepPlan

TIMING = 2.0  # seconds at most for timing the steps, and for timing the measurements
STEPS = 50  # steps or measurements that are timed, at most


@dataclass(frozen=True)
class Estimate:
    """The time in `seconds` that all workers need for the missing grid points, and the basis of the estimate."""

    seconds: float
    basis: str


def estimate(plan: SweepPlan, workers: int) -> Estimate:
    """Estimates from the median time of the finished grid points, else by timing the middle one of the missing jobs."""
    jobs = plan.jobs()
    if not jobs:
        return Estimate(0.0, "nothing is missing")
    missing = sum(len(job.seeds) for job in jobs)
    finished = [load_manifest(plan.folder / point.name) for point in plan.points if plan.status(point) == "finished"]
    if finished:
        each = median(_share(manifest, finished) for manifest in finished)
        basis = f"the median of {len(finished)} finished points, {each:.2g} s"
    else:
        job = jobs[len(jobs) // 2]
        config = next(point.config for point in plan.points if point.name == job.names[0])
        experiments = [plan.kind(config, seed) for seed in job.seeds]
        each = seconds_of(experiments, plan.probes, plan.host, plan.device) / len(job.seeds)
        basis = f"timing the start of one point with its probes, {each:.2g} s"
    return Estimate(each * missing / min(workers, len(jobs)), basis)


def _share(manifest: Manifest, finished: Sequence[Manifest]) -> float:
    """Returns the seconds that one run took. Seeds that were trained together share their time equally."""
    start = datetime.fromisoformat(manifest.created)
    end = start + timedelta(seconds=manifest.seconds)
    alike = [other for other in finished if (other.task, other.config) == (manifest.task, manifest.config)]
    same = sum(abs(start - datetime.fromisoformat(other.created)) < (end - start) / 2 for other in alike)
    return manifest.seconds / max(1, same)


def seconds_of(
    experiments: Sequence[Experiment], probes: Sequence[str] | None, host: Host, device: str = "auto"
) -> float:
    """Estimates the seconds that runs of `experiments` (one task with several seeds) take, by timing their first part.

    `probes` are the chosen ones (None: those of the task). Figures and reports are not included.
    """
    first = experiments[0]
    if not isinstance(first, Task):
        return sum(map(_time_flow, experiments))
    return _time_training([one for one in experiments if isinstance(one, Task)], probes, host, device)


def _time_training(tasks: Sequence[Task], probes: Sequence[str] | None, host: Host, device: str) -> float:
    """Times the first steps and measurements, and multiplies by how many there will be."""
    from stagelens.base import resolve_device, untouched_rng
    from stagelens.experiments import Training
    from stagelens.training import Stacked, why_not

    task, steps = tasks[0], int(tasks[0].config.steps)
    with untouched_rng():
        trainings = [Training(one, str(resolve_device(device))) for one in tasks]
        together = len(tasks) > 1 and not why_not(trainings)
        measuring = _each_measurement(trainings[0], probes, host)
        stepping = _each_step(Stacked(trainings) if together else trainings[0])
    count = steps * stepping * (1 if together else len(tasks))
    return count + _measurements(task.schedule(), steps) * measuring * len(tasks)


def _measurements(schedule: Schedule, steps: int) -> float:
    """Estimates the number of measurements.

    A changing loss causes up to `refine` times the planned number. How it changes is unknown before the run, so this
    returns the geometric mean of both.
    """
    return float(min(steps + 1, len(schedule.planned(steps)) * schedule.refine**0.5))


def _each_step(trainer: Trainer) -> float:
    """Returns the seconds of one training step."""
    trainer.advance(0)  # the first step also allocates
    return _timed(trainer.advance)


def _each_measurement(training: Training, probes: Sequence[str] | None, host: Host) -> float:
    """Returns the seconds of one measurement with these probes."""
    from stagelens.experiments import eval_batch
    from stagelens.recording import Recorder
    from stagelens.training import probe_names

    batch = eval_batch(training.task, training.device)
    names = probe_names(training.task, probes, host)
    recorder = Recorder(training.model, names, batch, task=training.task, host=host)
    recorder.measure(0, **training.scalars())
    return _timed(lambda step: recorder.measure(step, **training.scalars()))


def _timed(call: Callable[[int], Any]) -> float:
    """Returns the seconds of one call, averaged over at most `STEPS` calls and `TIMING` seconds."""
    started, step = time.monotonic(), 0
    while step < STEPS and time.monotonic() - started < TIMING:
        step += 1
        call(step)
    return (time.monotonic() - started) / step


def _time_flow(flow: Experiment) -> float:
    """Estimates the seconds of a flow from the part that is integrated within `TIMING` seconds."""
    from stagelens.experiments import Flow, integrate

    assert isinstance(flow, Flow)
    started, reached = time.monotonic(), 0.0

    def watch(now: float) -> None:
        nonlocal reached
        reached = max(reached, now)
        if time.monotonic() - started > TIMING:
            raise _EnoughTimed

    try:
        integrate(flow, watch)
    except _EnoughTimed:
        return float((time.monotonic() - started) * flow.config.time / max(reached, 1e-12))
    return time.monotonic() - started


class _EnoughTimed(Exception):
    pass
