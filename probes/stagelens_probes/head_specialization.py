"""Whether heads compete for one group of keys, or attend to different groups."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

from stagelens import Probe, Reading
from stagelens.base import UsageError
from stagelens.recording import DoesNotApply, ProbeContext, Reduced, Site, layers, stack_layers
from stagelens_probes.attention import PATTERN, Weights, visible_weights
from stagelens_probes.attention_sparsity import layer_sparsity

PHASES = ("diffuse", "competitive", "cooperative")
DIFFUSE_BELOW = 0.2  # mean sparsity of a layer's heads below which the phase is diffuse
COMPETITIVE_ABOVE = 0.5  # overlap of a layer's heads above which the phase is competitive, else cooperative


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Returns the Jensen-Shannon divergence, in bits from 0 to 1, of distributions along the last dimension."""

    def entropy(distribution: Tensor) -> Tensor:
        summed: Tensor = torch.special.entr(distribution).sum(-1)
        return summed

    nats = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return (nats / math.log(2)).clamp(0, 1)


def overlap(mass: Tensor) -> Tensor:
    """Returns the mean over pairs of heads of 1 - JSD of their `mass` [head, group]; nan for a single head."""
    share = mass / mass.sum(-1, keepdim=True)  # overlapping groups count some mass twice
    first, second = torch.triu_indices(len(mass), len(mass), offset=1, device=mass.device)
    return (1 - jensen_shannon(share[first], share[second])).mean()


def coverage(leader: Tensor, n_groups: int, n_here: int | None = None) -> Tensor:
    """Returns the number of distinct leading groups over min(heads, groups); nan if the layer has no group.

    `leader` [head] is the group that each head attends to most; the index `n_groups` is the rest, which does not count.
    `n_here` is the number of groups that name this layer; None: all of them.
    """
    led = (leader[:, None] == torch.arange(n_groups, device=leader.device)).any(0).sum()
    possible = min(len(leader), n_groups if n_here is None else n_here)
    return led / (possible or torch.nan)


def coverage_chance(n_heads: int, n_groups: int) -> float:
    """Returns the mean of `coverage` if each head's leader is a random one of n groups; nan if there are no groups.

    On average n (1 - (1 - 1/n)^heads) groups are then the leader of some head.
    """
    if not n_groups:
        return math.nan
    return n_groups * (1 - (1 - 1 / n_groups) ** n_heads) / min(n_heads, n_groups)


def phase(sparsity: Tensor, shared: Tensor) -> Tensor:
    """Returns the index into PHASES, from the mean sparsity and overlap of a layer's heads; nan for a single head."""
    index = torch.where(shared > COMPETITIVE_ABOVE, 1.0, 2.0) * (sparsity >= DIFFUSE_BELOW)
    return torch.where(shared.isnan(), torch.nan, index)


def group_mass(weights: Weights, site: Site, context: ProbeContext) -> Tensor:
    """Returns the mean attention to each of the task's groups and, last, to keys of no group: [head, group]."""
    mean = weights.values.mean(0)  # [head, query, key]
    key = ("groups", site.name, mean.shape, mean.dtype, mean.device)
    masks = context.constant(key, lambda: _group_masks(weights, site, context).to(mean.dtype))
    return mean.flatten(1) @ masks / len(weights.query)


def _group_masks(weights: Weights, site: Site, context: ProbeContext) -> Tensor:
    """Returns which keys belong to each of the task's groups and, last, to none: [query * key, group]."""
    n_key, device = weights.visible.shape[-1], weights.query.device
    masks = torch.stack([_mask(name, site, n_key, context).to(device) for name in context.groups])
    return torch.cat([masks, ~masks.any(0, keepdim=True)])[:, weights.query].flatten(1).T


def _mask(name: str, site: Site, n_key: int, context: ProbeContext) -> Tensor:
    """Returns the mask of a group, bool [query, key], with a query at every key; no keys in layers it does not name."""
    group = context.groups[name]
    if not group.is_in(site.layer):
        return torch.zeros(n_key, n_key, dtype=torch.bool)
    try:
        return group.mask(n_key, n_key)
    except UsageError as error:
        raise UsageError(f"group {name!r} at {site.name!r}: {error}") from None


def lag_mass(weights: Weights) -> Tensor:
    """Returns the mean attention at each lag (query - key), from the lowest to the number of keys - 1: [head, lag]."""
    mean = weights.values.mean(0)  # [head, query, key]
    n_head, n_query, n_key = mean.shape
    lowest = weights.queries.lowest_lag
    lag = weights.query[:, None] - torch.arange(n_key, device=mean.device)[None, :]  # [query, key]
    column = (lag - lowest).clamp(min=0).flatten()  # lower lags belong to masked keys, whose weight is 0
    return mean.new_zeros(n_head, n_key - lowest).index_add_(1, column, mean.flatten(1)) / n_query


class HeadSpecialization(Probe):
    """The attention mass of each head over the task's groups and the rest, or over lags if the task has no groups.

    From the mass follow each head's leading group, the overlap of heads, the coverage of groups, and the phase.
    """

    name = "head_specialization"
    title = "whether heads compete for one group of keys or share the groups out"
    gives = ("mass", "leader", "overlap", "coverage", "coverage_chance", "phase")
    hooks = (PATTERN,)
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        if getattr(getattr(context.model, "cfg", None), "n_heads", 2) < 2:
            return "the model has one head, and specialization compares heads"
        _check_layers(context)
        return super().applies(context) or context.padding()

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> tuple[Tensor, Tensor, int]:
        """Returns the mass [head, group or lag], the mean sparsity (a scalar) and the lowest lag."""
        weights = visible_weights(activation, site, context)
        mass = group_mass(weights, site, context) if context.groups else lag_mass(weights)
        return mass, layer_sparsity(activation, site, context)[:, 3].mean(), weights.queries.lowest_lag

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:
        masses, sparsities, lows = (list(column) for column in zip(*reduced.values(), strict=True))
        if all(len(mass) < 2 for mass in masses):
            raise DoesNotApply("every layer has one head, and specialization compares heads")
        if context.groups:
            dim, names = "group", [*context.groups, "rest"]
            named = [sum(group.is_in(site.layer) for group in context.groups.values()) for site in reduced]  # [layer]
        else:
            masses = [pad(mass, (low - min(lows), 0)) for mass, low in zip(masses, lows, strict=True)]
            dim, names = "lag", [min(lows) + column for column in range(masses[0].shape[-1])]
            named = [len(names)] * len(masses)
        leaders = [mass.argmax(-1) for mass in masses]
        shared = [overlap(mass) * (1 if n else torch.nan) for mass, n in zip(masses, named, strict=True)]
        n_groups = len(context.groups) or len(names)
        covered = [coverage(leader, n_groups, n) for leader, n in zip(leaders, named, strict=True)]
        by_chance = [coverage_chance(len(leader), n) for leader, n in zip(leaders, named, strict=True)]
        phases = [phase(sparsity, o) for sparsity, o in zip(sparsities, shared, strict=True)]
        layer = {"layer": layers(reduced)}

        yield Reading("mass", stack_layers(masses), ("layer", "head", dim), {**layer, dim: names})
        leader = stack_layers([x.double() for x in leaders])
        yield Reading("leader", leader, ("layer", "head"), layer, labels=tuple(str(name) for name in names))
        yield Reading("overlap", torch.stack(shared), ("layer",), layer)
        yield Reading("coverage", torch.stack(covered), ("layer",), layer)
        yield Reading("coverage_chance", torch.tensor(by_chance, dtype=torch.float64), ("layer",), layer)
        yield Reading("phase", torch.stack(phases), ("layer",), layer, labels=PHASES)


def _check_layers(context: ProbeContext) -> None:
    """Raises UsageError if a group names a layer that the model does not have."""
    there = [site.layer for site in context.sites(PATTERN)]
    for name, group in context.groups.items():
        for layer in group.layers or ():
            if layer not in there:
                raise UsageError(f"group {name!r} names layer {layer}; the model has attention in layers {there}")
