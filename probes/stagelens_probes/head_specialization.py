"""Whether heads compete for one group of keys, or attend to different groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from scipy.stats import t
from torch import Tensor
from torch.nn.functional import pad

from stagelens import Group, Probe, Reading
from stagelens.base import UsageError
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, Reduced, Site, layers, stack_layers
from stagelens_probes.attention import PATTERN, over_sequences, visible_weights
from stagelens_probes.attention_sparsity import MEANS, ONE_SAMPLE, measures_of
from stagelens_probes.described import HEAD_SPECIALIZATION
from stagelens_probes.direction_mass import direction_masses, keys_with_queries, mass_sparsity, of_directions
from stagelens_probes.group_mass import Masses, group_masses, groups_of, joined, lag_masses
from stagelens_probes.qk_alignment import KEYS, QUERIES

PHASES = ("diffuse", "competitive", "cooperative")
DIFFUSE_BELOW = 0.2  # mean sparsity of a layer's heads below which the phase is diffuse
LEADS_ABOVE = 0.05  # (mass - chance) / (reach - chance) that a leading group must exceed
SPARSITY = MEANS.index("sparsity")


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
    `n_here` is the number of groups that are defined for this layer; None: all of them.
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


@lru_cache(maxsize=256)
def quantile(degrees: int) -> float:
    """Returns the 97.5% quantile of Student's t distribution. It is cached, because scipy's function is slow."""
    return float(t.ppf(0.975, degrees))


def leaders(found: Masses, n_groups: int) -> Tensor:
    """Returns the index of each head's leading group, int [head]; `n_groups` if none leads.

    The value of a group is (mass - chance) / (reach - chance): the attention to the group beyond uniform attention,
    relative to the largest possible one. It is 0 by chance and 1 at most. The leading group has the largest
    value. It must be above LEADS_ABOVE, and the 95% confidence interval of the mass must be above chance. If there is
    one sample, the mass must exceed chance by `Masses.margin`.
    """
    (mass, error), chance = over_sequences(found.mass), found.uniform.mean(0)  # [head, group], [group]
    gained = (mass - chance) / (found.reach - chance)
    n_samples = len(found.mass)
    certain = mass - chance > (found.margin if n_samples == 1 else quantile(n_samples - 1) * error)
    leads = torch.where(certain & (gained > LEADS_ABOVE), gained, -torch.inf)[:, :n_groups]  # nan is False
    return torch.where(leads.amax(-1) > 0, leads.argmax(-1), n_groups)


def phase(sparsity: Tensor, leader: Tensor, named: Sequence[int]) -> Tensor:
    """Returns the index into PHASES, from the mean sparsity of a layer's heads and the `leader` [head] of each.

    Only the groups `named` count. nan for a single head.
    """
    if len(leader) < 2:
        return torch.full_like(sparsity, torch.nan)
    led = leader[:, None] == torch.tensor(named, dtype=leader.dtype, device=leader.device)  # [head, group]
    specialized, distinct = led.any(-1).sum(), led.any(0).sum()
    index = torch.where((distinct == 1) & (specialized > 1), 1.0, 2.0)
    return torch.where((sparsity < DIFFUSE_BELOW) | (specialized == 0), 0.0, index)


def sinks_of(groups: Sequence[Group]) -> set[int]:
    """Returns the indices of groups that are the first key alone, to which inactive heads attend.

    If every group is a set of positions, the first key is a group like any other, and there is no sink.
    """
    if len(groups) > 1 and all(group.positions and not group.offsets and group.content is None for group in groups):
        return set()
    first = [group.positions == (0,) and not group.offsets and group.content is None for group in groups]
    return {index for index, alone in enumerate(first) if alone}


class HeadSpecialization(Probe):
    """The attention mass of each head over groups of keys and the rest, or over lags.

    The groups are the task's. If it has none, they are `token_groups()` of a batch of tokens, and lags of any other.
    The layers of a model with cross-attention read different tokens, so it has lags too.
    If they are groups of directions, the mass is the fraction of a head's keys and queries along these.
    From the mass follow each head's leading group, the overlap of heads, the coverage of groups, and the phase.
    """

    name = "head_specialization"
    title = "whether heads compete for one group of keys or attend to different groups"
    gives = (
        *("mass", "mass_error", "mass_chance", "lift", "leader"),
        *("overlap", "coverage", "coverage_chance", "phase"),
    )
    described = HEAD_SPECIALIZATION
    hooks: ClassVar[tuple[str, ...]] = (PATTERN,)
    samples = True
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        if getattr(getattr(context.model, "cfg", None), "n_heads", 2) < 2:
            return "the model has one head, and specialization compares heads"
        if of_directions(context):
            self.hooks, self.samples = (KEYS, QUERIES), False  # type: ignore[misc]  # instead of the attention
        _check_layers(context)
        return super().applies(context) or context.padding()

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> tuple[Masses, Tensor]:
        """Returns the masses of a layer or of a block of its queries, and the sparsity, [..., query] or a scalar."""
        if site.hook in (KEYS, QUERIES):
            masses = direction_masses(activation, site, context)
            return masses, mass_sparsity(masses.mass[0]).mean()
        weights = visible_weights(activation, site, context)
        masses = group_masses(weights, site, context) if groups_of(context) else lag_masses(weights)
        return masses, measures_of(activation, site, context).values[..., SPARSITY]

    def join(self, parts: Sequence[tuple[Masses, Tensor]]) -> tuple[Masses, Tensor]:
        """Returns the masses of a layer, and the mean sparsity of its heads (a scalar)."""
        masses, sparsities = zip(*parts, strict=True)
        if len(parts) == 1:
            return masses[0], sparsities[0].mean()
        return joined(masses, one_sequence=len(sparsities[0]) == 1), torch.cat(sparsities, -1).mean()

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:
        reduced = keys_with_queries(reduced) if of_directions(context) else reduced
        found, sparsities = (list(column) for column in zip(*reduced.values(), strict=True))
        if all(one.mass.shape[1] < 2 for one in found):
            raise DoesNotApply("every layer has one head, and specialization compares heads")
        names: list[Any]
        if groups := groups_of(context):
            dim, names = "group", [*groups, "rest"]
            labels = names
            here = [[i for i, group in enumerate(groups.values()) if group.is_in(site.layer)] for site in reduced]
            sinks = sinks_of(list(groups.values()))
        else:
            found = _at_common_lags(found)
            dim, names = "lag", [found[0].lowest_lag + column for column in range(found[0].mass.shape[-1])]
            labels, here, sinks = [*map(str, names), "rest"], [list(range(len(names)))] * len(found), set()
        layer = {"layer": layers(reduced)}
        yield from _mass_readings(found, dim, names, layer)
        led = [leaders(one, len(labels) - 1) for one in found]
        leader = stack_layers([one.double() for one in led])
        yield Reading("leader", leader, ("layer", "head"), layer, labels=tuple(labels))
        by_layer = {
            "overlap": [
                overlap(one.mass.mean(0)) * (1 if n else torch.nan) for one, n in zip(found, here, strict=True)
            ],
            "coverage": [coverage(one, len(labels) - 1, len(n)) for one, n in zip(led, here, strict=True)],
            "coverage_chance": [
                torch.tensor(coverage_chance(len(one), len(n))) for one, n in zip(led, here, strict=True)
            ],
            "phase": [
                phase(sparsity, one, [i for i in n if i not in sinks]) * (1 if n else torch.nan)
                for sparsity, one, n in zip(sparsities, led, here, strict=True)
            ],
        }
        for name, values in by_layer.items():
            yield Reading(name, torch.stack(values), ("layer",), layer, labels=PHASES if name == "phase" else ())


def _mass_readings(found: Sequence[Masses], dim: str, names: list[Any], layer: Any) -> Iterable[Reading | Omitted]:
    """Yields the mass of each group, its standard error, its chance level and the lift."""
    means, errors = (list(column) for column in zip(*(over_sequences(one.mass) for one in found), strict=True))
    chance = torch.stack([one.uniform.mean(0) for one in found])  # [layer, group]
    dims, coords = ("layer", "head", dim), {**layer, dim: names}
    yield Reading("mass", stack_layers(means), dims, coords)
    error = Reading("mass_error", stack_layers(errors), dims, coords)
    yield error if any(len(one.mass) > 1 for one in found) else Omitted(error.name, ONE_SAMPLE)
    yield Reading("mass_chance", chance, ("layer", dim), coords)
    ratio = stack_layers(means) / torch.where(chance > 0, chance, torch.nan)[:, None]
    yield Reading("lift", ratio, dims, coords)


def _at_common_lags(found: Sequence[Masses]) -> list[Masses]:
    """Returns `found` with the same lags in all layers, from the lowest to the highest of all."""
    ends = [(one.lowest_lag, one.lowest_lag + one.mass.shape[-1]) for one in found]
    lowest, highest = min(start for start, _ in ends), max(end for _, end in ends)
    parts = [(one, (start - lowest, highest - end)) for one, (start, end) in zip(found, ends, strict=True)]
    return [Masses(pad(one.mass, more), pad(one.uniform, more), pad(one.reach, more), lowest) for one, more in parts]


def _check_layers(context: ProbeContext) -> None:
    """Raises UsageError if a group names a layer that the model does not have."""
    there = [site.layer for site in context.sites(PATTERN)]
    for name, group in context.groups.items():
        for layer in group.layers or ():
            if layer not in there:
                raise UsageError(f"group {name!r} names layer {layer}; the model has attention in layers {there}")
