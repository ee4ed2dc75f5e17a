"""Observing: one pass over a model, in which all probes look at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from stagelens.experiments import Batch
from stagelens.recording.context import ProbeContext, Site
from stagelens.recording.limits import contained
from stagelens.recording.precision import full_precision, wide
from stagelens.recording.probes import Omitted, Probe
from stagelens.timelines import Reading

Metrics = Callable[[Any, Batch], Mapping[str, Any]]
Failed = Callable[[Probe, Exception, Site | None], None]  # takes the probe out, or raises


@dataclass(frozen=True)
class Observed:
    """What a pass gave, before it is checked and kept."""

    values: Mapping[str, Any]  # the loss, and the task's metrics
    readings: Mapping[str, list[Reading | Omitted]]  # of each probe, under the names that it gave them


def observe(context: ProbeContext, probes: Mapping[str, Probe], metrics: Metrics | None, failed: Failed) -> Observed:
    """One pass over `context`, which has its output and loss afterwards.

    `probes` is looked up at every use: what `failed` takes out of it is not asked again.
    """
    reduced = _shared_pass(context, probes, failed)
    values = values_of(context, metrics)
    readings = {name: read(probe, reduced[name], context, failed) for name, probe in list(probes.items())}
    return Observed(values, readings)


def values_of(context: ProbeContext, metrics: Metrics | None) -> dict[str, Any]:
    """The loss, and the task's metrics, of a `context` that has its output."""
    values: dict[str, Any] = {} if context.loss is None else {"loss": context.loss}
    if metrics is not None:
        with full_precision():
            output = wide(context.output) if isinstance(context.output, Tensor) else context.output
            values |= metrics(output, context.batch)
    return values


def read(probe: Probe, reduced: Mapping[Site, Any], context: ProbeContext, failed: Failed) -> list[Reading | Omitted]:
    """The readings of one probe, and those that it omits; none if it fails."""
    try:
        with (
            contained(),
            full_precision(),
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ):  # the recorder looks for what is nan
            return list(probe.readings(reduced, context))
    except Exception as error:
        failed(probe, error, None)
        return []


def _shared_pass(context: ProbeContext, probes: Mapping[str, Probe], failed: Failed) -> dict[str, dict[Site, Any]]:
    """One forward pass with the hooks of all probes on; what each probe kept of each of its sites."""
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

        return site.name, reduce_all

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
        result = context.run(hooks=[hook_at(site, asking) for site, asking in wanted.items()])
    finally:
        for handle in handles:
            handle.remove()
    if context.loss_function is not None:
        context.loss = result
    return kept
