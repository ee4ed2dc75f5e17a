"""Prefix matching on a task's own sequences, for models that cannot run on random tokens that repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stagelens import Group, Reading
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, Site, layers, stack_layers
from stagelens_probes.attention import PATTERN, normalized
from stagelens_probes.positions import as_index, rows_of
from stagelens_probes.repeats import mean_and_error


def target_attention(weights: Tensor, target: Tensor) -> Tensor:
    """Returns the attention of each head to the target keys, [sequence, head].

    `weights` is [sequence, head, query, key] and `target` bool [sequence, query, key]. It is the mean over the queries
    of a sequence that have a target; nan for a sequence without any.
    """
    asked = target.any(-1)[:, None].to(weights)  # [sequence, 1, query]
    mass = (weights * target[:, None]).sum(-1)  # [sequence, head, query]
    return (mass * asked).sum(-1) / asked.sum(-1)


def _there(scores: Tensor) -> Tensor:
    """Returns the rows of `scores` [sequence, head] that have no nan."""
    return scores[~scores.isnan().any(-1)]


def prefix_matching(group: Group, context: ProbeContext) -> Iterable[Reading | Omitted]:
    """Yields `prefix_matching`, its standard error and its chance level, of the keys `group` on the task's sequences.

    They are read in one more pass over the batch, at the layers that the group names and the queries that are scored.
    The chance level is the attention of a head that is uniform over the visible keys.
    """
    found: dict[Site, tuple[Tensor, Tensor, Tensor]] = {}

    def score_at(site: Site) -> Any:
        def score(pattern: Tensor, hook: Any) -> None:  # noqa: ARG001  TransformerLens passes it by name
            n_query, n_key = pattern.shape[-2:]
            rows = as_index(rows_of(context.queries_at(site), n_query, n_key, repr(site.name)), pattern.device)
            visible = context.visible(pattern, site.layer)[rows]  # [query, key]
            weights = normalized(pattern[:, :, rows], visible)
            keys = group.keys(n_query, n_key, context.batch, pattern.device)
            target = (keys if keys.ndim == 3 else keys[None])[:, rows] & visible  # [sequence, query, key]
            uniform = visible.to(weights) / visible.sum(-1, keepdim=True).clamp(min=1)
            if not target.any():
                raise DoesNotApply("no sequence of the batch has an induction target")
            own, chance = (_there(target_attention(one, target)) for one in (weights, uniform[None, None]))
            error = mean_and_error(own)[1] if len(own) > 1 else torch.full_like(own[0], torch.nan)
            found[site] = (own.mean(0), error, chance.mean())

        return score

    sites = [site for site in context.sites(PATTERN) if group.is_in(site.layer)]
    context.run(hooks=[(site.name, score_at(site)) for site in sites])
    coords = {"layer": layers(found)}
    mean, error = (stack_layers([parts[i] for parts in found.values()]) for i in (0, 1))  # [layer, head]
    yield Reading("prefix_matching", mean, ("layer", "head"), coords)
    if error.isnan().all():
        yield Omitted("prefix_matching_error", "the batch is one sequence: there is no spread over sequences")
    else:
        yield Reading("prefix_matching_error", error, ("layer", "head"), coords)
    yield Reading("prefix_matching_chance", torch.stack([parts[2] for parts in found.values()]), ("layer",), coords)
