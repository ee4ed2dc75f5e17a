"""The recorder: runs a set of probes on a model at chosen steps, inside any training loop."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from stagelens.base import UsageError, place_in, untouched_buffers
from stagelens.experiments import Batch, Group, Task, own
from stagelens.models import Forward, Watched, watch
from stagelens.recording.checking import check_measurable
from stagelens.recording.context import Loss, ProbeContext, Site
from stagelens.recording.guard import Guard, Misbehaved, ModelChanged, evaluating
from stagelens.recording.limits import contained
from stagelens.recording.probes import DoesNotApply, Omitted, Probe
from stagelens.recording.shared_pass import Metrics, Observed, observe, read, values_of
from stagelens.timelines import Column, Measurement, Reading, Timeline, check_same, column_of, pack, placed, plain_step

if TYPE_CHECKING:
    from stagelens.host import Host

Sink = Callable[[Measurement, Sequence[Reading]], None]


class Recorder:
    """Measures `model` with `probes` on one fixed `batch`, in one forward pass for all of them.

    The recorder copies `batch` and `directions`, so a loop may reuse or change its own tensors in place.

        recorder = sl.Recorder(model, probes=["attention_sparsity"], batch=tokens)
        ...                                    # in the training loop:
        recorder.measure(step, loss=loss)
        ...
        recorder.timeline["attention_sparsity/effective_keys"]

    Parameters, buffers, gradients, hooks, train/eval mode and all random states are left as found. A probe that does
    not apply is in `skipped` with its reason, and so is a single reading (`probe/reading`) that a probe omits; a probe
    that fails is in `problems`, and the others continue. With `strict` the recorder also stops probes that hang
    or leak memory, and checks at every measurement, not at the first alone, that no parameter changed.
    """

    def __init__(
        self,
        model: nn.Module,
        probes: Sequence[str | Probe | type[Probe]] | None = None,
        batch: Batch = None,
        *,
        loss: Loss | None = None,
        task: Task | None = None,
        groups: Mapping[str, Group] | None = None,
        directions: Mapping[str, Tensor] | None = None,
        references: Mapping[str, Callable[[Batch], Tensor]] | None = None,
        forward: Forward | None = None,
        max_queries: int | None = 128,
        max_sequences: int | None = None,
        random_batch: bool = False,
        host: Host | None = None,
        sink: Sink | None = None,
        strict: bool = False,
    ) -> None:
        if batch is None:
            raise UsageError("the recorder needs a batch to measure on, for example batch=tokens")
        device = device_of(model)
        check_measurable(device, batch)
        batch = own(batch, device)
        if not hasattr(model, "hook_dict"):
            model = watch(model, batch, forward)
        elif forward is not None:
            raise UsageError(
                "forward= is for models without hook points; this model has its own and is called directly"
            )
        if isinstance(model, Watched):
            loss = model.loss_of(loss, batch)
        self.context = ProbeContext(
            model,
            batch,
            groups=groups or (task.groups() if task else {}),
            induction_target=task.induction_target() if task else None,
            directions=own(dict(directions or (task.directions() if task else {}))),
            references=references or (task.references() if task else {}),
            conserved=task.conserved if task else None,
            queries=task.queries() if task else slice(None),
            loss_function=loss or (task.loss if task else None),
            max_queries=_at_least_one("max_queries", max_queries),
            max_sequences=_at_least_one("max_sequences", max_sequences),
            random_batch=random_batch,
        )
        self._task = task
        self._sink = sink
        self._guard = Guard(model, strict)
        self.measurements: list[Measurement] = []
        self.skipped: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.probes: dict[str, Probe] = {}
        for probe in resolve_probes(probes, host):
            self._admit(probe)
        self._columns: dict[str, Column] = {}
        self._numbers: dict[str, Any] = {}

    def _admit(self, probe: Probe) -> None:
        """Adds `probe`, unless the task or the probe itself says that it does not apply."""
        if self._task is not None and probe.name in self._task.without:
            self.skipped[probe.name] = self._task.without[probe.name]
            return
        try:
            with self._guard.timed(), contained():
                reason = probe.applies(self.context)
        except Exception as error:
            self.problems[probe.name] = self._problem(probe, error)
            return
        if reason:
            self.skipped[probe.name] = reason
        else:
            self.probes[probe.name] = probe

    def measure(self, step: float, **scalars: float | Tensor) -> list[Reading]:
        """Measures now. `scalars` are recorded next to the readings of the probes.

        A step that was measured before is replaced, and an earlier one is put in its order.
        """
        for name, value in scalars.items():
            if value is None:
                raise UsageError(f"{name}=None was given at step {step}; give a number, or leave {name} out")
            if np.shape(value) != ():
                raise UsageError(
                    f"{name} of shape {list(np.shape(value))} was given at step {step}; give one number, such as a mean"
                )
        return self.record(step, self.observe(step), scalars)

    def observe(self, step: float) -> Observed:
        """Makes the pass and returns what the probes measure now. Nothing is recorded."""
        context = replace(self.context, step=plain_step(step), output=None, loss=None)
        try:
            with self.looking():
                return self._one_by_one(context) if self._guard.suspicious else self._observe(context, self.probes)
        except ModelChanged:
            self.name_culprit(step)
            raise

    def name_culprit(self, step: float) -> None:
        """Raises a ModelChanged that names the probe that changes the model, if one of this recorder's does."""
        with self._guard.shaken(), self.looking():
            self._one_by_one(replace(self.context, step=plain_step(step), output=None, loss=None))

    def _observe(self, context: ProbeContext, probes: dict[str, Probe]) -> Observed:
        def failed(probe: Probe, error: Exception, site: Site | None) -> None:
            probes.pop(probe.name, None)
            self._drop(probe, error, site)

        return observe(context, probes, self.metrics, failed)

    def _one_by_one(self, context: ProbeContext) -> Observed:
        """Does what `_observe` does with a pass for each probe, so that the guard can tell which one misbehaves."""
        try:
            with self._guard.watching():
                values = self._observe(context, {}).values
        except Misbehaved:
            self._guard.resign()
            return self._observe(context, self.probes)
        readings: dict[str, list[Reading | Omitted]] = {}
        for name, probe in list(self.probes.items()):
            try:
                with self._guard.watching():
                    readings |= self._observe(context, {name: probe}).readings
            except ModelChanged as change:
                raise ModelChanged(
                    f"probe {name!r} {change} at step {context.step:g}, and the training cannot continue from there; "
                    "fix the probe, then resume, or start a new run without it"
                ) from None
            except Misbehaved as error:
                self._drop(probe, error)
        return Observed(values, readings)

    def read(self, names: Sequence[str], step: float, output: Any, loss: Tensor | None) -> Observed:
        """Returns the task's metrics and the readings of probes without hooks, from `output` and `loss` of a pass.

        It must be called while some recorder is `looking`, which puts the random states back.
        """
        context = replace(self.context, step=step, output=output, loss=loss)
        with self._guard.unchanged(), evaluating(self.context.model):
            values = values_of(context, self.metrics)
            return Observed(values, {name: read(self.probes[name], {}, context, self._drop) for name in names})

    @property
    def suspicious(self) -> bool:
        """True if the next observation has to be made with a pass for each probe."""
        return self._guard.suspicious

    @property
    def scene(self) -> ProbeContext:
        """Deprecated: use `context`."""
        words = "Recorder.scene is now Recorder.context; the old name is removed in stagelens 0.3"
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return self.context

    @property
    def metrics(self) -> Metrics | None:
        """The task's metrics; None if it has none of its own."""
        own = None if self._task is None else self._task.metrics
        return None if getattr(own, "__func__", None) is Task.metrics else own

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Switches gradients off and evaluation mode on. Restores modes, buffers and random states at the end."""
        model = self.context.model
        with self._guard.measuring(), untouched_buffers(model), evaluating(model), torch.no_grad():
            yield

    def record(self, step: float, observed: Observed, scalars: Mapping[str, float | Tensor]) -> list[Reading]:
        """Checks what was observed at `step` and records it with `scalars`, which replace values of the same name."""
        values = {**scalars, **{name: value for name, value in observed.values.items() if name not in scalars}}
        readings = [Reading(name, value) for name, value in values.items()]
        for name, found in observed.readings.items():
            readings += self._named(self.probes[name], found) if name in self.probes else []
        measurement = pack(step, readings, self._columns)
        at = bisect_left(self.measurements, measurement.step, key=lambda m: m.step)
        again = at < len(self.measurements) and self.measurements[at].step == measurement.step
        self.measurements[at : at + again] = [measurement]
        if self._sink is not None:
            self._sink(measurement, readings)
        return readings

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint stores: the state of each probe, and which probes were skipped or failed."""
        carried = {name: probe.state for name, probe in self.probes.items()}
        return {
            "probes": carried,
            "skipped": self.skipped,
            "problems": self.problems,
            "suspicious": self._guard.suspicious,
        }

    def load_state(self, state: Mapping[str, Any], measurements: Sequence[Measurement]) -> None:
        """Continues from `state`, after `measurements`."""
        self.measurements = list(measurements)
        self.skipped, self.problems = dict(state["skipped"]), dict(state["problems"])
        self._guard.suspicious = state.get("suspicious", False)
        self.probes = {name: probe for name, probe in self.probes.items() if name in state["probes"]}
        for name, probe in self.probes.items():
            probe.state = state["probes"][name]
        for measurement in measurements:
            start = 0
            for column in measurement.layout:
                values = measurement.values[start : start + column.size].reshape(column.shape)
                self._columns.setdefault(column.name, column)
                self._numbers.setdefault(column.name, ~np.isnan(values))
                start += column.size

    @property
    def timeline(self) -> Timeline:
        """Everything measured so far."""
        return Timeline(self.measurements)

    def _named(self, probe: Probe, found: Sequence[Reading | Omitted]) -> list[Reading]:
        """Returns the readings of one probe under their full names. Drops a probe whose readings are not valid."""
        given = [r for r in found if isinstance(r, Reading)]
        for r in found:
            if isinstance(r, Omitted):
                self.skipped.setdefault(f"{probe.name}/{r.name}", r.reason)  # the first reason stays
            else:
                self.skipped.pop(f"{probe.name}/{r.name}", None)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                readings = [Reading(f"{probe.name}/{r.name}", r.array(), r.dims, r.coords, r.labels) for r in given]
            return [self._checked(reading) for reading in readings]
        except Exception as error:
            self._drop(probe, error)
            return []

    def _checked(self, reading: Reading) -> Reading:
        """Returns `reading` with dims, coordinates and labels in the order of its first measurement.

        Refuses a reading that has others than at first, or in which a number becomes nan.
        """
        name, values = reading.name, np.asarray(reading.values)
        column = column_of(reading, values.shape, self._columns.get(name))
        before = self._columns.setdefault(name, column)
        if column is not before:
            check_same(column, before)
            values = placed(values[None], column, before)[0]
            reading = Reading(name, values, before.dims, dict(before.coords), before.labels)
        missing = np.isnan(values)
        if name not in self._numbers:
            self._numbers[name] = ~missing
        if missing.any() and (missing.all() or (self._numbers[name] & missing).any()):
            raise ValueError(f"reading {name!r} is nan")
        return reading

    def _drop(self, probe: Probe, error: Exception, site: Site | None = None) -> None:
        if isinstance(error, DoesNotApply):
            self.skipped[probe.name] = str(error)
        else:
            self.problems[probe.name] = self._problem(probe, error, site)
        self.probes.pop(probe.name, None)

    def _problem(self, probe: Probe, error: Exception, site: Site | None = None) -> str:
        """Returns one line: the probe, the hook, the error, and its line in the code of the probe or the task."""
        hooks = site.name if site else ", ".join(probe.hooks)
        hook = f" at hook {hooks!r}" if hooks else ""
        place = place_in(error, probe, self._task, *self.context.references.values())
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return f"probe {probe.name!r}{hook} failed: {reason}{f' ({place})' if place else ''}"


def _at_least_one(name: str, number: int | None) -> int | None:
    """Returns `number`, an integer from 1 up or None; raises UsageError if it is something else."""
    if number is not None and (not isinstance(number, int) or number < 1):
        raise UsageError(f"{name}={number!r} was given; give an integer from 1 up, or None for all")
    return number


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of the first parameter; the CPU if there is none."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"the recorder was given a {type(model).__name__}; it needs a model, a torch.nn.Module")
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def resolve_probes(probes: Sequence[str | Probe | type[Probe]] | None, host: Host | None = None) -> list[Probe]:
    """Returns probes, from names as `Host.probe_names` reads them (None: the default ones), classes, or probes."""
    from stagelens.host import make_host

    names = [probe for probe in probes or () if isinstance(probe, str)]
    resolved: list[Probe] = []
    if probes is None or names:
        host = host or make_host()
        resolved = [host.probes[name].load()() for name in host.probe_names(names)]
    for probe in probes or ():
        if isinstance(probe, str):
            continue
        if isinstance(probe, type):
            resolved.append(probe())
        elif isinstance(probe, Probe):
            resolved.append(probe)
        else:
            raise UsageError(f"probe {probe!r}: expected a name, a Probe or a Probe class")
    return resolved
