"""How few keys a head attends to."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import ProbeContext, Reduced, Site, layers, stack_layers
from stagelens_probes.attention import PATTERN, Weights, visible_weights


def sparsity_measures(weights: Weights) -> Tensor:
    """Returns four measures of a layer's attention, [head, 4], each a mean over batch and queries.

    They are the entropy H = -sum a log a in nats, the effective number of keys exp(H), the largest weight, and the
    sparsity 1 - H / log(number of visible keys).
    """
    a = weights.values
    log_a = a.clamp(min=torch.finfo(a.dtype).tiny).log_()  # 0 log 0 = 0; several times faster than special.entr
    entropy = -log_a.mul_(a).sum(-1)  # [batch, head, query]
    sparsity = 1 - entropy / weights.queries.log_count
    measures = torch.stack([entropy, entropy.exp(), a.amax(-1), sparsity], dim=-1)
    return measures.mean(dim=(0, 2))


def layer_sparsity(pattern: Tensor, site: Site, context: ProbeContext) -> Tensor:
    """Returns `sparsity_measures` of a pattern. They are computed once per hook, for all probes."""
    return context.once(pattern, "sparsity", lambda: sparsity_measures(visible_weights(pattern, site, context)))


class AttentionSparsity(Probe):
    """Entropy, effective number of keys, largest weight and sparsity, per layer and head."""

    name = "attention_sparsity"
    title = "how few keys a head attends to"
    gives = ("entropy", "effective_keys", "top_mass", "sparsity")
    hooks = (PATTERN,)
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        return super().applies(context) or context.padding()

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Tensor:
        return layer_sparsity(activation, site, context)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        measures = stack_layers(reduced)  # [layer, head, 4]
        for name, values in zip(self.gives, measures.unbind(-1), strict=True):
            yield Reading(name, values, ("layer", "head"), {"layer": layers(reduced)})
