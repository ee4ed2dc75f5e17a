"""The attention of each head to groups of keys or to lags, and what uniform attention would give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stagelens.base import UsageError
from stagelens.experiments import Group, token_groups, tokens_of
from stagelens.recording import DoesNotApply, ProbeContext, Site
from stagelens_probes.attention import Weights, as_samples, reads_two_texts


@dataclass(frozen=True)
class Masses:
    """The attention of a layer's heads to groups of keys.

    A sample is a sequence. If there is only one sequence, each of its queries is a sample.
    """

    mass: Tensor  # [sample, head, group]
    uniform: Tensor  # [sample or 1, group], the mass under uniform attention over the visible keys
    reach: Tensor  # [group], the fraction of queries that see a key of the group
    lowest_lag: int = 0  # the lag of the first group, if the groups are lags
    margin: Tensor | float = 0.0  # [group], how far the mass of a single sample must exceed `uniform` to be significant
    n_queries: int = 1  # of each sequence


def joined(blocks: Sequence[Masses], one_sequence: bool) -> Masses:
    """Returns the masses of a layer from those of blocks of its queries."""
    n = sum(block.n_queries for block in blocks)
    parts = ([getattr(block, name) for block in blocks] for name in ("mass", "uniform", "reach"))

    def mean(values: Sequence[Tensor]) -> Tensor:
        return torch.stack([value * (block.n_queries / n) for value, block in zip(values, blocks, strict=True)]).sum(0)

    mass, uniform, reach = parts
    if one_sequence:  # the queries are the samples
        return replace(blocks[0], mass=torch.cat(mass), uniform=torch.cat(uniform), reach=mean(reach), n_queries=n)
    return replace(blocks[0], mass=mean(mass), uniform=mean(uniform), reach=mean(reach), n_queries=n)


def groups_of(context: ProbeContext) -> Mapping[str, Group]:
    """Returns the task's groups, or `token_groups()` if it has none and all layers read the tokens of the batch."""
    tokens = None if context.groups or reads_two_texts(context) else tokens_of(context.batch)
    return context.groups if tokens is None else token_groups()


def group_masses(weights: Weights, site: Site, context: ProbeContext) -> Masses:
    """Returns the attention to each group and, last, to keys of no group."""
    values = as_samples(weights.values)  # [sample, head, query, key]
    here = tuple(group.is_in(site.layer) for group in groups_of(context).values())
    # Layers with the same groups share this key.
    key = ("groups", here, id(weights.queries), values.shape, values.dtype, values.device)
    keys, uniform, reach = context.constant(key, lambda: _constants(weights, site, context))
    mass = values.flatten(2) @ keys.to(values.dtype).flatten(2).mT  # [sample, head, group]
    return Masses(mass / values.shape[2], uniform, reach, n_queries=weights.values.shape[2])


def _constants(weights: Weights, site: Site, context: ProbeContext) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the tensors that depend only on the batch.

    These are the keys of each group, [sample or 1, group, query, key], and `uniform` and `reach` of `Masses`. The
    keys are stored as numbers if the pattern is short, else as bool.
    """
    queries, values = weights.queries, weights.values
    masks = _group_masks(weights, site, context)  # [sequence, query, key, group]
    visible = queries.visible[..., None]  # [sequence, query, key, 1]
    share = visible.to(values.dtype) / queries.count[..., None, None]
    uniform = (masks * share).sum(2)  # [sequence, query, group]
    reach = (masks & visible).any(2).to(values.dtype).mean((0, 1))
    if len(values) == 1:  # the queries are the samples
        masks, uniform = masks.transpose(0, 1), uniform.transpose(0, 1)
    keys = masks.permute(0, 3, 1, 2).contiguous()
    return keys if queries.sampled else keys.to(values.dtype), uniform.mean(1), reach


def _group_masks(weights: Weights, site: Site, context: ProbeContext) -> Tensor:
    """Returns which keys belong to each group and, last, to none: bool [batch or 1, query, key, group]."""
    n_key = weights.queries.n_key
    tokens = None if context.groups else tokens_of(context.batch)
    n_tokens = n_key if tokens is None else tokens.shape[1]
    if n_tokens - n_key not in (0, 1):
        raise DoesNotApply(f"the batch has {n_tokens} tokens but {site.name!r} has {n_key} keys; give groups of keys")
    masks = [_mask(name, group, site, weights, context) for name, group in groups_of(context).items()]
    n_sequences = max(len(mask) for mask in masks)  # 1 if no group has a mask of its own
    found = torch.stack([mask.expand(n_sequences, -1, -1) for mask in masks], dim=-1)
    return torch.cat([found, ~found.any(-1, keepdim=True)], dim=-1)


def _mask(name: str, group: Group, site: Site, weights: Weights, context: ProbeContext) -> Tensor:
    """Returns the keys of a group at the measured queries, bool [batch or 1, query, key].

    A group has no keys in layers for which it is not defined.
    """
    queries, n_batch, n_key = weights.queries, len(weights.values), weights.queries.n_key
    if not group.is_in(site.layer):
        return torch.zeros_like(queries.visible)
    try:
        key = ("group", name, queries.n_all, n_key)  # of all layers
        mask = context.constant(key, lambda: group.keys(queries.n_all, n_key, context.batch))
        if mask.ndim == 3:
            mask = mask[: context.max_sequences]
            if len(mask) not in (1, n_batch):
                raise UsageError(f"its mask has {len(mask)} sequences, and the batch has {n_batch}")
    except UsageError as error:
        raise UsageError(f"group {name!r} at {site.name!r}: {error}") from None
    mask = mask if mask.ndim == 3 else mask[None]
    return queries.of(mask.to(queries.visible.device).expand(n_batch if queries.sampled else len(mask), -1, -1))


def lag_masses(weights: Weights) -> Masses:
    """Returns the attention at each lag (query - key), from the lowest to the number of keys - 1.

    The reach of every lag counts as 1, because each key of a query belongs to exactly one lag.
    """
    values, queries = as_samples(weights.values), weights.queries
    n_key, lowest = queries.n_key, queries.lowest_lag
    lag = queries.position[..., None] - torch.arange(values.shape[-1], device=values.device)  # [sequence, query, key]
    column = (lag - lowest).clamp(min=0)  # lower lags belong to masked keys, whose weight is 0
    uniform = queries.visible.to(values.dtype) / queries.count[..., None]
    if len(weights.values) == 1:  # the queries are the samples
        column, uniform = column.transpose(0, 1), uniform.transpose(0, 1)
    index = column.flatten(1)[:, None]  # [sample or 1, 1, query * key]
    n_lags, n_query = n_key - lowest, values.shape[2]

    def added(weight: Tensor) -> Tensor:
        """Sums weights [sample, head, query * key] by lag: returns [sample, head, lag]."""
        nothing = weight.new_zeros(*weight.shape[:2], n_lags)
        return nothing.scatter_add(-1, index.expand(weight.shape), weight) / n_query

    reach = torch.ones(n_lags, dtype=values.dtype, device=values.device)
    chance = added(uniform.flatten(1)[:, None])[:, 0]
    return Masses(added(values.flatten(2)), chance, reach, lowest, n_queries=weights.values.shape[2])
