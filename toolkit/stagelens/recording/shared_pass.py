"""The shared pass: one forward pass of a model, in which all probes read their hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stagelens.base import UsageError
from stagelens.experiments import Batch
from stagelens.recording.context import ProbeContext, Site
from stagelens.recording.limits import contained
from stagelens.recording.precision import full_precision, wide
from stagelens.recording.probes import Omitted, Probe
from stagelens.recording.queries import Queries
from stagelens.timelines import Reading

Metrics = Callable[[Any, Batch], Mapping[str, Any]]
Failed = Callable[[Probe, Exception, Site | None], None]  # takes the probe out, or raises


@dataclass(frozen=True)
class Observed:
    """What a pass gave, before it is checked and recorded."""

    values: Mapping[str, Any]  # the loss, and the task's metrics
    readings: Mapping[str, list[Reading | Omitted]]  # of each probe, under the names that it gave them


def observe(context: ProbeContext, probes: Mapping[str, Probe], metrics: Metrics | None, failed: Failed) -> Observed:
    """Makes one pass, sets `output` and `loss` of `context`, and returns what the probes measured.

    `failed` may remove a probe from `probes` during the pass. That probe is not called again.
    """
    reduced = _shared_pass(context, probes, failed)
    values = values_of(context, metrics)
    readings = {name: read(probe, reduced[name], context, failed) for name, probe in list(probes.items())}
    return Observed(values, readings)


def values_of(context: ProbeContext, metrics: Metrics | None) -> dict[str, Any]:
    """Returns the loss and the task's metrics of a `context` that has its output."""
    values: dict[str, Any] = {} if context.loss is None else {"loss": context.loss}
    if metrics is not None:
        with full_precision():
            output = wide(context.output) if isinstance(context.output, Tensor) else context.output
            values |= metrics(output, context.batch)
    return values


def read(probe: Probe, reduced: Mapping[Site, Any], context: ProbeContext, failed: Failed) -> list[Reading | Omitted]:
    """Returns the readings of one probe, and those that it omits; an empty list if it fails."""
    try:
        with (
            contained(),
            full_precision(),
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ):  # the recorder checks for nan
            return list(probe.readings(reduced, context))
    except Exception as error:
        failed(probe, error, None)
        return []


def _shared_pass(context: ProbeContext, probes: Mapping[str, Probe], failed: Failed) -> dict[str, dict[Site, Any]]:
    """Makes one forward pass with the hooks of all probes. Returns what each probe reduced each of its sites to."""
    reducing = _Reducing(context, probes, failed)
    with _inputs_and_output(context):
        result = context.read([(site.name, partial(reducing.at, site)) for site in reducing.wanted], rows=reducing.rows)
    if context.loss_function is not None:
        context.loss = _one_number(result)
    return reducing.kept


class _Reducing:
    """What the probes keep of the activations of one pass. A pattern may be shown whole or in blocks of its queries."""

    def __init__(self, context: ProbeContext, probes: Mapping[str, Probe], failed: Failed) -> None:
        self.context, self.probes, self.failed = context, probes, failed
        self.kept: dict[str, dict[Site, Any]] = {name: {} for name in probes}
        self.wanted: dict[Site, list[Probe]] = {}  # the probes that read at each site
        for probe in probes.values():
            for hook in probe.hooks:
                for site in context.sites(hook):
                    self.wanted.setdefault(site, []).append(probe)
        self._shown: dict[str, list[Queries]] = {}  # the blocks of a pattern that the pass will still show
        self._parts: dict[str, list[Any]] = {}  # what each probe reduced the blocks so far to

    def at(self, site: Site, activation: Tensor, hook: Any) -> None:  # noqa: ARG002  TransformerLens passes it by name
        """Shows `activation`, or the next block of it, to the probes that read at `site`."""
        asking = [probe for probe in self.wanted[site] if probe.name in self.probes]
        if waiting := self._shown.get(site.name):
            self._block(asking, activation, site, waiting.pop(0), last=not waiting)
            return
        sampling = [probe for probe in asking if probe.samples]
        blocks = _blocks(self.context, site, activation.shape, activation.device) if sampling else []
        for probe in asking:
            if not (blocks and probe.samples):
                self._reduce(probe, activation, site)
        self.context.shared.clear()
        for block in blocks:
            part = block.of(activation[: self.context.max_sequences])
            self._block(sampling, part, site, block, last=block is blocks[-1])

    def rows(self, name: str, shape: Sequence[int], device: torch.device) -> Sequence[tuple[Tensor, int]] | None:
        """Returns the blocks of a pattern of which all probes read a sample of the queries; None for all of it."""
        site = Site.of(name)
        if not all(probe.samples for probe in self.wanted[site] if probe.name in self.probes):
            return None
        blocks = [block for block in _blocks(self.context, site, shape, device) if block.sampled]
        self._shown[name] = blocks
        return [(block.rows, block.visible.shape[-1]) for block in blocks] or None  # type: ignore[misc]

    def _block(self, asking: Sequence[Probe], activation: Tensor, site: Site, block: Queries, last: bool) -> None:
        self.context.sampled[site.name] = block
        for probe in asking:
            self._reduce(probe, activation, site, last)
        self.context.shared.clear()
        self.context.sampled.clear()

    def _reduce(self, probe: Probe, activation: Tensor, site: Site, last: bool = True) -> None:
        if probe.name not in self.probes:  # it failed at an earlier block
            return
        parts = self._parts.setdefault(probe.name, [])
        try:
            with contained(), full_precision():
                parts.append(probe.reduce(activation, site, self.context))
                if last:
                    self.kept[probe.name][site] = probe.join(self._parts.pop(probe.name))
        except Exception as error:
            self._parts.pop(probe.name, None)
            self.failed(probe, error, site)


def _blocks(context: ProbeContext, site: Site, shape: Sequence[int], device: torch.device) -> list[Queries]:
    """Returns the blocks of queries in which a pattern is read; none if they are unknown."""
    own = (len(range(shape[0])[: context.max_sequences]), *shape[1:])
    try:
        queries = context.read_queries(site, own, device)
    except Exception:  # each probe raises it again, and says why
        return []
    return list(context.constant(("blocks", id(queries), own), lambda: queries.blocks(own)))


@contextmanager
def _inputs_and_output(context: ProbeContext) -> Iterator[None]:
    """Stores the number of input positions and the output of the model's next pass in `context`."""

    def keep_length(module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim >= 2)
        context.n_inputs = next((x.shape[1] for x in tensors), None)

    def keep_output(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
        context.output = output

    handles = [
        context.model.register_forward_pre_hook(keep_length, with_kwargs=True),
        context.model.register_forward_hook(keep_output),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _one_number(loss: Any) -> Tensor:
    """Returns what a loss function gave; raises an error unless it is a tensor with one number."""
    if not isinstance(loss, Tensor) or loss.ndim:
        given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UsageError(f"loss returned {given}; it must return one number, a tensor without dimensions")
    return loss
