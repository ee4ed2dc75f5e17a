"""The recorder: runs a set of probes on a model at chosen steps, inside anybody's training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stagelens.batches import move
from stagelens.errors import UsageError
from stagelens.probing import DoesNotApply, Probe
from stagelens.reading import Reading
from stagelens.scene import Loss, Scene, Site
from stagelens.seeds import untouched_rng
from stagelens.task import Batch, Group, Task
from stagelens.timeline import Column, Measurement, Timeline, pack

if TYPE_CHECKING:
    from transformer_lens import HookedRootModule

    from stagelens.host import Host

Sink = Callable[[Measurement, Sequence[Reading]], None]


class Recorder:
    """Measures `model` with `probes` on one fixed `batch`, in one forward pass for all of them.

        recorder = sl.Recorder(model, probes=["attention_sparsity"], batch=tokens)
        ...                                    # in the training loop:
        recorder.measure(step, loss=loss)
        ...
        recorder.timeline["attention_sparsity/effective_keys"]

    Parameters, gradients, hooks, train/eval mode and all random states are left as found. A probe that does not
    apply is in `skipped` with its reason; one that fails is in `problems`, and the rest goes on without it.
    """

    def __init__(
        self,
        model: HookedRootModule,
        probes: Sequence[str | Probe | type[Probe]] | None = None,
        batch: Batch = None,
        *,
        loss: Loss | None = None,
        task: Task | None = None,
        groups: Mapping[str, Group] | None = None,
        directions: Mapping[str, Tensor] | None = None,
        references: Mapping[str, Callable[[Batch], Tensor]] | None = None,
        host: Host | None = None,
        sink: Sink | None = None,
    ) -> None:
        if not hasattr(model, "hook_dict"):
            raise UsageError(
                f"the recorder was given a {type(model).__name__}; it needs a TransformerLens model "
                f"(a HookedTransformer, or a HookedRootModule after setup())"
            )
        if batch is None:
            raise UsageError("the recorder needs a batch to measure on, for example batch=tokens")
        parameter = next(model.parameters(), None)
        device = parameter.device if parameter is not None else "cpu"
        self.scene = Scene(
            model,
            move(batch, device),
            groups=groups or (task.groups() if task else {}),
            directions=directions or (task.directions() if task else {}),
            references=references or (task.references() if task else {}),
            conserved=task.conserved if task else None,
            queries=task.queries() if task else slice(None),
            loss_function=loss or (task.loss if task else None),
        )
        self._task = task
        self._sink = sink
        self.measurements: list[Measurement] = []
        self.skipped: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.probes: dict[str, Probe] = {}
        for probe in resolve_probes(probes, host):
            self._admit(probe)
        self._columns: dict[str, Column] = {}
        self._numbers: dict[str, Any] = {}

    def _admit(self, probe: Probe) -> None:
        """Takes `probe` in, unless it says, or shows, that it does not apply."""
        try:
            reason = probe.applies(self.scene)
        except Exception as error:
            self.problems[probe.name] = _problem(probe, error)
            return
        if reason:
            self.skipped[probe.name] = reason
        else:
            self.probes[probe.name] = probe

    def measure(self, step: float, **scalars: float | Tensor) -> list[Reading]:
        """Measures now. `scalars` are recorded beside the probes' readings."""
        scene = replace(self.scene, step=step, output=None, loss=None)
        with untouched_rng(), _evaluating(scene.model), torch.no_grad():
            reduced = self._shared_pass(scene)
            readings = [Reading(name, value) for name, value in scalars.items()]
            readings += self._evaluation(scene, scalars)
            for probe in list(self.probes.values()):
                readings += self._read(probe, reduced[probe.name], scene)
        measurement = pack(step, readings)
        self.measurements = [m for m in self.measurements if m.step != step] + [measurement]
        if self._sink is not None:
            self._sink(measurement, readings)
        return readings

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: what each probe carries on, and which ones were left out by now."""
        carried = {name: probe.state for name, probe in self.probes.items()}
        return {"probes": carried, "skipped": self.skipped, "problems": self.problems}

    def load_state(self, state: Mapping[str, Any], measurements: Sequence[Measurement]) -> None:
        """Goes on from `state`, after `measurements`."""
        self.measurements = list(measurements)
        self.skipped, self.problems = dict(state["skipped"]), dict(state["problems"])
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

    def _shared_pass(self, scene: Scene) -> dict[str, dict[Site, Any]]:
        """One forward pass with the hooks of all probes on; what each probe kept of each of its sites."""
        kept: dict[str, dict[Site, Any]] = {name: {} for name in self.probes}
        wanted: dict[Site, list[Probe]] = {}
        for probe in self.probes.values():
            for hook in probe.hooks:
                for site in scene.sites(hook):
                    wanted.setdefault(site, []).append(probe)

        def hook_at(site: Site, probes: list[Probe]) -> tuple[str, Callable[..., None]]:
            def reduce_all(activation: Tensor, hook: Any) -> None:  # noqa: ARG001  TransformerLens passes it by name
                for probe in probes:
                    if probe.name in self.probes:
                        try:
                            kept[probe.name][site] = probe.reduce(activation, site, scene)
                        except Exception as error:
                            self._drop(probe, error, site)
                scene.shared.clear()

            return site.name, reduce_all

        def keep_output(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
            scene.output = output

        handle = scene.model.register_forward_hook(keep_output)
        try:
            result = scene.run(hooks=[hook_at(site, probes) for site, probes in wanted.items()])
        finally:
            handle.remove()
        if scene.loss_function is not None:
            scene.loss = result
        return kept

    def _evaluation(self, scene: Scene, given: Mapping[str, Any]) -> list[Reading]:
        """The loss of the shared pass and the task's own metrics, unless they were given."""
        values: dict[str, Any] = {} if scene.loss is None else {"loss": scene.loss}
        if self._task is not None:
            values.update(self._task.metrics(scene.output, scene.batch))
        return [Reading(name, value) for name, value in values.items() if name not in given]

    def _read(self, probe: Probe, reduced: dict[Site, Any], scene: Scene) -> list[Reading]:
        """The readings of one probe under their full names; a probe that fails is dropped."""
        if probe.name not in self.probes:
            return []
        try:
            readings = [
                replace(r, name=f"{probe.name}/{r.name}", values=r.array()) for r in probe.readings(reduced, scene)
            ]
            for reading in readings:
                self._check(reading)
        except Exception as error:
            self._drop(probe, error)
            return []
        return readings

    def _check(self, reading: Reading) -> None:
        """Refuses a reading that changes its shape, or in which a number becomes nan."""
        column = pack(0, [reading]).layout[0]
        before = self._columns.setdefault(column.name, column)
        if (column.dims, column.shape) != (before.dims, before.shape):
            raise ValueError(f"reading {column.name!r} changed from shape {before.shape} to {column.shape}")
        there = ~np.isnan(reading.array())
        if not there.any() or (self._numbers.setdefault(column.name, there) & ~there).any():
            raise ValueError(f"reading {column.name!r} is nan")

    def _drop(self, probe: Probe, error: Exception, site: Site | None = None) -> None:
        if isinstance(error, DoesNotApply):
            self.skipped[probe.name] = str(error)
        else:
            self.problems[probe.name] = _problem(probe, error, site)
        self.probes.pop(probe.name, None)


def resolve_probes(probes: Sequence[str | Probe | type[Probe]] | None, host: Host | None = None) -> list[Probe]:
    """Probes by name (`None`: all that run by default), by class, or as they are."""
    from stagelens.host import make_host

    if host is None and (probes is None or any(isinstance(probe, str) for probe in probes)):
        host = make_host()
    if probes is None and host is not None:
        probes = [name for name, ref in host.probes if ref.default]
    resolved: list[Probe] = []
    for probe in probes or []:
        if isinstance(probe, str) and host is not None:
            resolved.append(host.probes[probe].load()())
        elif isinstance(probe, type):
            resolved.append(probe())
        elif isinstance(probe, Probe):
            resolved.append(probe)
        else:
            raise UsageError(f"probe {probe!r}: expected a name, a Probe or a Probe class")
    return resolved


def _problem(probe: Probe, error: Exception, site: Site | None = None) -> str:
    where = site.name if site else ", ".join(probe.hooks)
    hook = f" at hook {where!r}" if where else ""
    return f"probe {probe.name!r}{hook} failed: {type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, and each module back in its own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
