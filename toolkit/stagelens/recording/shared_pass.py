"""The shared pass: one forward pass of a model, in which all probes read their hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stagelens.base import UsageError
from stagelens.experiments import Batch
from stagelens.recording.context import ProbeContext, Site
from stagelens.recording.errors import DoesNotApply
from stagelens.recording.limits import contained
from stagelens.recording.precision import full_precision, wide
from stagelens.recording.probes import Omitted, Probe
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
    kept: dict[str, dict[Site, Any]] = {name: {} for name in probes}
    wanted: dict[Site, list[Probe]] = {}
    for probe in probes.values():
        for hook in probe.hooks:
            for site in context.sites(hook):
                wanted.setdefault(site, []).append(probe)

    def hook_at(site: Site, asking: list[Probe]) -> tuple[str, Callable[..., None]]:
        def reduce_all(activation: Tensor, hook: Any) -> None:  # noqa: ARG001  TransformerLens passes it by name
            for probe in asking:
                if probe.name in probes:
                    try:
                        with contained(), full_precision():
                            kept[probe.name][site] = probe.reduce(activation, site, context)
                    except Exception as error:
                        failed(probe, error, site)
            context.shared.clear()
            context.sampled.clear()

        return site.name, reduce_all

    def rows(name: str, shape: Sequence[int], device: torch.device) -> Tensor | None:
        site = Site.of(name)
        sampled = all(probe.samples for probe in wanted[site] if probe.name in probes)
        return _sampled_rows(context, site, shape, device) if sampled else None

    with _inputs_and_output(context):
        result = context.read([hook_at(site, asking) for site, asking in wanted.items()], rows=rows)
    if context.loss_function is not None:
        context.loss = _one_number(result)
    return kept


def _sampled_rows(context: ProbeContext, site: Site, shape: Sequence[int], device: torch.device) -> Tensor | None:
    """Returns the rows of a pattern that all probes read, int [batch, row], if each sequence has its own; else None."""
    try:
        n_sequences = len(range(shape[0])[: context.max_sequences])
        queries = context.read_queries(site, (n_sequences, *shape[1:]), device)
    except DoesNotApply:  # which each probe finds by itself
        return None
    if isinstance(queries.rows, slice) or not queries.sampled:
        return None
    context.sampled[site.name] = queries
    return queries.rows


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
