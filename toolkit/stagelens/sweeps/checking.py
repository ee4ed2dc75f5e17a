"""Checks the sweep metrics before a sweep runs: each names something that its runs will have.

A finished grid point answers at once. Otherwise the first grid point is measured at its start, which shows every
series with its dims and labels. A metric that is only the task's own (`loss`, `transition1`, ...) needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stagelens.base import untouched_rng
from stagelens.experiments import Flow, Task
from stagelens.sweeps.measures import Measure, check_event, check_series
from stagelens.timelines import Timeline, curve_name, pack

if TYPE_CHECKING:
    from stagelens.experiments import Experiment
    from stagelens.sweeps.plan import SweepPlan


def check_measures(plan: SweepPlan, measures: Sequence[Measure]) -> None:
    """Raises an error if a metric names an event, series, dim or label that the runs of `plan` will not have."""
    first = plan.points[0]
    experiment = plan.kind(first.config, first.seed)
    for measure in measures:
        if measure.event:
            check_event(measure.event, experiment)
    named = [measure for measure in measures if measure.series not in ("", experiment.metric)]
    if not named:
        return
    finished = next((point for point in plan.points if plan.status(point) == "finished"), None)
    if finished is not None:
        from stagelens.runs import Run

        timeline, later = Run(plan.folder / finished.name, plan.host).timeline, set[str]()
    else:
        timeline, later = first_measurement(experiment, plan)
    for measure in named:
        if curve_name(measure.among(timeline).series, timeline).series not in later:
            check_series(timeline, measure)


def first_measurement(experiment: Experiment, plan: SweepPlan) -> tuple[Timeline, set[str]]:
    """Returns what a run measures at its start, and the series that may appear later: from the second measurement on.

    The later ones are those of the training, and the readings of applying probes, if not measured or omitted.
    """
    if isinstance(experiment, Flow):
        return flow_at_start(experiment), set()
    assert isinstance(experiment, Task)
    from stagelens.base import resolve_device
    from stagelens.experiments import Training, eval_batch
    from stagelens.recording import Recorder
    from stagelens.training import probe_names

    with untouched_rng():
        training = Training(experiment, str(resolve_device(plan.device)))
        names = probe_names(experiment, plan.probes, plan.host)
        batch = eval_batch(experiment, training.device)
        recorder = Recorder(training.model, names, batch, task=experiment, host=plan.host)
        recorder.measure(0, **training.scalars())
    timeline = recorder.timeline
    after_a_step = {"train_loss"} | ({"gradient_norm"} if experiment.config.clip else set())
    applying = [name for name in names if name not in recorder.skipped and name not in recorder.problems]
    every = {f"{name}/{reading}" for name in applying for reading in plan.host.probes[name].readings}
    return timeline, (every | after_a_step) - {*timeline, *recorder.skipped}


def flow_at_start(flow: Flow) -> Timeline:
    """Returns what `flow` records of its initial state, which has every series that it will have."""
    state = flow.initial()
    return Timeline([pack(0.0, [*flow.observables(0.0, state), *_of_series(flow, state)])])


def _of_series(flow: Flow, state: Any) -> list[Any]:
    """Returns what the flow records of all states together, for the first state alone."""
    from dataclasses import replace

    import numpy as np

    found = flow.series({name: np.asarray(values)[None] for name, values in state.items()})
    return [replace(one, values=one.array()[0], dims=one.dims[1:]) for one in found]
