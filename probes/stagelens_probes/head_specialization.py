"""Whether heads compete for one group of keys or share the groups out."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.probing import DoesNotApply, Reduced, layers, stack_layers
from stagelens.scene import Scene, Site
from stagelens_probes.attention import PATTERN, Weights, is_causal, visible_weights
from stagelens_probes.attention_sparsity import layer_sparsity

PHASES = ("diffuse", "competitive", "cooperative")
DIFFUSE_BELOW = 0.2  # mean sparsity
COMPETITIVE_ABOVE = 0.5  # overlap


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence in bits of distributions along the last dimension, in [0, 1]."""

    def entropy(distribution: Tensor) -> Tensor:
        summed: Tensor = torch.special.entr(distribution).sum(-1)
        return summed

    nats = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return (nats / math.log(2)).clamp(0, 1)


def overlap(mass: Tensor) -> Tensor:
    """mass [head, group] -> mean over pairs of heads of 1 - JSD of their shares; nan for a single head."""
    share = mass / mass.sum(-1, keepdim=True)  # groups that overlap count some mass twice
    first, second = torch.triu_indices(len(mass), len(mass), offset=1, device=mass.device)
    return (1 - jensen_shannon(share[first], share[second])).mean()


def coverage(leader: Tensor, n_groups: int) -> Tensor:
    """leader [head], the group each head attends to most -> distinct leading groups / min(heads, groups).

    A head that leads no group (its leader is the rest, `n_groups`) covers none.
    """
    led = (leader[:, None] == torch.arange(n_groups, device=leader.device)).any(0)  # [group]
    return led.sum() / min(len(leader), n_groups)


def phase(sparsity: Tensor, shared: Tensor) -> Tensor:
    """Mean sparsity and overlap of a layer's heads -> index into PHASES; nan for a single head."""
    index = torch.where(shared > COMPETITIVE_ABOVE, 1.0, 2.0) * (sparsity >= DIFFUSE_BELOW)
    return torch.where(shared.isnan(), torch.nan, index)


def group_mass(weights: Weights, site: Site, scene: Scene) -> Tensor:
    """[head, group]: mean attention on each of the task's groups and, last, on keys of no group."""
    mean = weights.values.mean(0)  # [head, query, key]
    key = ("groups", site.name, mean.shape, mean.dtype, mean.device)
    masks = scene.constant(key, lambda: _group_masks(weights, scene).to(mean.dtype))
    return mean.flatten(1) @ masks / len(weights.query)


def _group_masks(weights: Weights, scene: Scene) -> Tensor:
    """[query * key, group]: which keys belong to each of the task's groups and, last, to none."""
    n_key = weights.visible.shape[-1]
    masks = torch.stack([g.mask(n_key, n_key, weights.query.device) for g in scene.groups.values()])
    return torch.cat([masks, ~masks.any(0, keepdim=True)])[:, weights.query].flatten(1).T


def lowest_lag(n_key: int, scene: Scene) -> int:
    """The lowest lag (query - key) there is: 0, or a negative one where queries see keys to their right."""
    return 0 if is_causal(scene) else 1 - n_key


def lag_mass(weights: Weights, scene: Scene) -> Tensor:
    """[head, lag]: mean attention at each lag, from the lowest to the number of keys - 1."""
    mean = weights.values.mean(0)  # [head, query, key]
    n_head, n_query, n_key = mean.shape
    lowest = lowest_lag(n_key, scene)
    lag = weights.query[:, None] - torch.arange(n_key, device=mean.device)[None, :]  # [query, key]
    column = (lag - lowest).clamp(min=0).flatten()  # lags below the lowest are of hidden keys, which weigh nothing
    return mean.new_zeros(n_head, n_key - lowest).index_add_(1, column, mean.flatten(1)) / n_query


class HeadSpecialization(Probe):
    """Each head's attention mass over the task's groups and the rest, or else over lags, and what follows."""

    name = "head_specialization"
    title = "whether heads compete for one group of keys or share the groups out"
    gives = ("mass", "leader", "overlap", "coverage", "phase")
    hooks = (PATTERN,)
    stacks = True

    def applies(self, scene: Scene) -> str | None:
        if getattr(getattr(scene.model, "cfg", None), "n_heads", 2) < 2:
            return "the model has one head, and specialization compares heads"
        return super().applies(scene)

    def reduce(self, activation: Tensor, site: Site, scene: Scene) -> tuple[Tensor, Tensor]:
        """-> mass [head, group] and mean sparsity (a number)."""
        weights = visible_weights(activation, site, scene)
        mass = group_mass(weights, site, scene) if scene.groups else lag_mass(weights, scene)
        return mass, layer_sparsity(activation, site, scene)[:, 3].mean()

    def readings(self, reduced: Reduced, scene: Scene) -> Iterable[Reading]:
        masses = [mass for mass, _ in reduced.values()]
        if all(len(mass) < 2 for mass in masses):
            raise DoesNotApply("every layer has one head, and specialization compares heads")
        n_columns = masses[0].shape[-1]
        n_groups = len(scene.groups) or n_columns
        lowest = lowest_lag((n_columns + 1) // 2, scene)  # where it is not 0, there are 2 n_key - 1 lags
        names = [*scene.groups, "rest"] if scene.groups else list(range(lowest, lowest + n_columns))
        leaders = [mass.argmax(-1) for mass in masses]
        shared = [overlap(mass) for mass in masses]
        phases = [phase(sparsity, o) for (_, sparsity), o in zip(reduced.values(), shared, strict=True)]
        layer = {"layer": layers(reduced)}
        dim = "group" if scene.groups else "lag"

        yield Reading("mass", stack_layers(masses), ("layer", "head", dim), {**layer, dim: names})
        leader = stack_layers([x.double() for x in leaders])
        yield Reading("leader", leader, ("layer", "head"), layer, labels=tuple(str(name) for name in names))
        yield Reading("overlap", torch.stack(shared), ("layer",), layer)
        yield Reading("coverage", torch.stack([coverage(x, n_groups) for x in leaders]), ("layer",), layer)
        yield Reading("phase", torch.stack(phases), ("layer",), layer, labels=PHASES)
