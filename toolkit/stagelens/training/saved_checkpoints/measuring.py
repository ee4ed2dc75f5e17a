"""Measures one checkpoint: loads its model, runs the probes, and returns what they read."""

from __future__ import annotations

import io
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from stagelens.base import StagelensError, UsageError
from stagelens.host import Host
from stagelens.models import Watched, watch
from stagelens.recording import Recorder
from stagelens.timelines import Measurement, Reading, pack
from stagelens.training.saved_checkpoints.hooked import Hooked
from stagelens.training.saved_checkpoints.hugging_face import HuggingFace
from stagelens.training.saved_checkpoints.series import Source
from stagelens.training.saved_checkpoints.weights import digest_of

States = Mapping[str, Any]  # what probes carry from one checkpoint to the next, by their names


class Loader(Protocol):
    """Loads the models of a series."""

    warnings: list[str]

    def load(self, source: Any) -> Any: ...
    def release(self, model: Any) -> None: ...
    def limits(self, model: Any) -> tuple[int | None, int | None]: ...
    def batch(self, tokens: Tensor, random: bool) -> tuple[Any, Any]: ...
    def tokenizer_folders(self) -> list[Path]: ...


def loader_of(first: Source) -> Loader:
    """Returns the loader for a series with this first checkpoint."""
    return Hooked(first) if isinstance(first, Path) and first.is_file() else HuggingFace(first)


@dataclass(frozen=True)
class Plan:
    """What all checkpoints of a series are measured with. It can be sent to another process."""

    first: Source
    probes: tuple[str, ...]
    tokens: Any  # int64 array [sequence, position]
    random: bool  # whether they are random
    form: Mapping[str, str] = field(default_factory=dict)  # the architecture of the first model
    carrying: tuple[str, ...] = ()  # the probes that carry a state from one checkpoint to the next


@dataclass
class Measured:
    """What one checkpoint gave. `error` is the reason in one line if it could not be measured."""

    step: int
    readings: list[Reading] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    digest: str = ""
    error: str = ""
    has_loss: bool = False

    @property
    def measurement(self) -> Measurement:
        return pack(self.step, self.readings)


class Checkpoint:
    """The loaded model of one checkpoint, which probes measure in one or several parts."""

    def __init__(self, model: Any, loader: Loader, plan: Plan, host: Host, step: int, source: Source) -> None:
        self._plan, self._host = plan, host
        self._release = loader.release, model
        self._batch, self._loss = loader.batch(torch.as_tensor(plan.tokens), plan.random)
        self._model = model if hasattr(model, "hook_dict") else watch(model, self._batch)
        self.form = form_of(self._model)
        if plan.form and (what := difference(plan.form, self.form)):
            raise UsageError(f"{source} is of another architecture than its series: {what}; probe it on its own")
        self.measured = Measured(step, warnings=list(loader.warnings), digest=digest_of(model))

    def measure(self, probes: Sequence[str], states: States) -> dict[str, Any]:
        """Adds the readings of `probes`, which continue from `states`. Returns their new states."""
        recorder = Recorder(
            self._model,
            probes,
            self._batch,
            loss=self._loss,
            random_batch=self._plan.random,
            host=self._host,
            strict=True,
        )
        for name, probe in recorder.probes.items():
            probe.state = dict(states.get(name, {}))
        readings = recorder.measure(self.measured.step)
        measured, before = self.measured, {reading.name for reading in self.measured.readings}
        measured.readings += [
            Reading(one.name, one.array(), one.dims, one.coords, one.labels)
            for one in readings
            if one.name not in before  # the loss is read in every part
        ]
        measured.readings.sort(key=lambda one: self._place(one.name))
        measured.skipped |= recorder.skipped
        measured.problems |= recorder.problems
        measured.has_loss = recorder.context.loss_function is not None
        return {name: probe.state for name, probe in recorder.probes.items() if probe.state}

    def release(self) -> None:
        """Frees the model, if the next checkpoint has one of its own."""
        release, model = self._release
        release(model)

    def _place(self, reading: str) -> int:
        """Returns where the probe of a reading is among the plan's probes; -1 for a metric, which comes first."""
        probe, slash, _ = reading.partition("/")
        return self._plan.probes.index(probe) if slash and probe in self._plan.probes else -1


def open_checkpoint(loader: Loader, plan: Plan, host: Host, step: int, source: Source) -> Checkpoint:
    """Loads one checkpoint of a series."""
    return Checkpoint(loader.load(source), loader, plan, host, step, source)


def measured_one_by_one(
    loader: Loader, plan: Plan, host: Host, files: Mapping[int, Source], states: States
) -> Generator[Measured]:
    """Yields what each checkpoint of `files` gives. One that fails is reported, and the next ones are measured."""
    for step, source in files.items():
        try:
            checkpoint = open_checkpoint(loader, plan, host, step, source)
            states = checkpoint.measure(plan.probes, states)
            checkpoint.release()
            measured = checkpoint.measured
        except StagelensError as error:
            measured = Measured(step, error=str(error))
        yield measured


def form_of(model: Any) -> dict[str, str]:
    """Returns the architecture of a model as texts by name: its class, its sizes and the shapes of its parameters."""
    inner = model.model if isinstance(model, Watched) else model
    sizes = asdict(model.cfg) if is_dataclass(model.cfg) and isinstance(model, Watched) else {}
    shapes = {name: str(list(parameter.shape)) for name, parameter in inner.named_parameters()}
    return {"class": type(inner).__name__} | {name: str(size) for name, size in sizes.items()} | shapes


def difference(first: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Returns the first entry in which two architectures differ; empty if there is none."""
    for name in [*first, *other]:
        if first.get(name) != other.get(name):
            return f"{name} is {other.get(name, 'missing')} and not {first.get(name, 'there')}"
    return ""


def packed_states(states: States) -> bytes:
    """Returns states as bytes, to send them to another process."""
    file = io.BytesIO()
    torch.save(dict(states), file)
    return file.getvalue()


def unpacked_states(data: bytes) -> dict[str, Any]:
    """Returns what `packed_states` packed."""
    states: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return states
