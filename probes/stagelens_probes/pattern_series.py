"""Applies the attention probes to patterns computed without a model, such as those of a flow, at all times together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stagelens import Group, Probe, Reading
from stagelens.recording import ProbeContext, Site
from stagelens_probes.attention import PATTERN
from stagelens_probes.attention_sparsity import AttentionSparsity
from stagelens_probes.head_specialization import HeadSpecialization

AT_ONCE = 2**20  # attention weights that are processed together; more are processed in chunks of times

Patterns = Callable[..., Mapping[int, Tensor]]  # the state's tensors by name -> layer -> [batch, head, query, key]


def pattern_series(
    states: Mapping[str, Any],
    patterns: Patterns,
    groups: Mapping[str, Group],
    *,
    batch: Any = None,
    visible_keys: Callable[[int | None, int, int], Tensor] | None = None,
) -> Iterable[Reading]:
    """Yields the readings of `attention_sparsity` and `head_specialization` for attention patterns, [time, ...].

    These are the same probes as for models, vectorized over times. A probe that does not apply yields nothing.

    Args:
        states: Arrays by name, [time, ...].
        patterns: A function of the state at one time, as tensors by name. It returns the attention of each layer,
            [batch, head, query, key].
        groups: The groups of keys, as `Task.groups` returns them.
        batch: The batch that is passed to the mask functions of the groups.
        visible_keys: A function (layer, n_query, n_key) -> bool [query, key]. Default: causal attention.
    """
    given = {name: torch.as_tensor(values) for name, values in states.items()}
    first = patterns(**{name: values[0] for name, values in given.items()})
    names = {layer: f"blocks.{layer}.{PATTERN}" for layer in first}
    config = SimpleNamespace(n_heads=max(pattern.shape[1] for pattern in first.values()), attention_dir="causal")
    model: Any = SimpleNamespace(hook_dict=dict.fromkeys(names.values()), cfg=config)
    if visible_keys is not None:
        model.visible_keys = visible_keys
    context = ProbeContext(model, batch, groups=groups)
    probes = [probe for probe in (AttentionSparsity(), HeadSpecialization()) if not probe.applies(context)]
    forms: list[Reading] = []

    def read(state: dict[str, Tensor]) -> list[Tensor]:
        own = replace(context, constants={})
        seen = {Site.of(names[layer]): pattern for layer, pattern in patterns(**state).items()}
        forms[:] = [form for probe in probes for form in _readings(probe, seen, own)]
        return [torch.as_tensor(form.values) for form in forms]

    chunk = max(1, AT_ONCE // sum(pattern.numel() for pattern in first.values()))
    with torch.no_grad():
        values = torch.vmap(read, chunk_size=chunk)(given)
    for form, value in zip(forms, values, strict=True):
        yield replace(form, values=value, dims=("time", *form.dims))


def _readings(probe: Probe, patterns: Mapping[Site, Tensor], context: ProbeContext) -> Iterable[Reading]:
    """Yields the readings of `probe` under their full names."""
    reduced = {site: probe.join([probe.reduce(pattern, site, context)]) for site, pattern in patterns.items()}
    for reading in probe.readings(reduced, context):
        if isinstance(reading, Reading):
            yield replace(reading, name=f"{probe.name}/{reading.name}")
