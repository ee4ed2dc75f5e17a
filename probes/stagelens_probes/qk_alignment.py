"""Principal components of the keys and of the queries of a head, and their alignment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, Reduced, Site, layers, stack_layers
from stagelens_probes.described import QK_ALIGNMENT
from stagelens_probes.positions import as_index, rows_of
from stagelens_probes.scores import (
    Moments,
    effective_rank,
    isotropic_scores,
    principal_components,
    score_components,
    score_reference,
    shares,
)

KEYS, QUERIES = "attn.hook_k", "attn.hook_q"
ROTATED = {KEYS: "attn.hook_rot_k", QUERIES: "attn.hook_rot_q"}  # the hooks of models with rotary positions
SIDES = ("key", "query")
SHARE = 0.9  # fraction of the variance that the leading subspace explains
ROTATED_CHANCE = (
    "the layers have rotary positions: one rotation turns keys and queries in the same planes, which aligns them "
    "beyond the chance level of random subspaces"
)
NO_DIRECTIONS = "the task names no directions (`directions=` of the recorder) to compare the components with"
ONE_NUMBER = "keys and queries are single numbers (d_head = 1), which have one component by definition"
ONE_QUERY = "there is one query vector, and the scores of one query have one component by definition"
SAME_QUERIES = "all queries are the same vector, and the scores of one vector have one component by definition"
ONE_SEQUENCE = "keys and queries are those of one sequence: there is no spread over sequences"
LEAD_KEPT = 0.9  # a component stays the leading one while its variance is at least this fraction of the largest


def leading_rank(explained: Tensor) -> Tensor:
    """Returns the smallest number of components that explain 90%, [...], from fractions [..., component]."""
    return (explained.cumsum(-1) < SHARE - 1e-9).sum(-1) + 1


def subspace_alignment(keys: Tensor, queries: Tensor, rank: Tensor) -> Tensor:
    """Returns the mean squared cosine of the principal angles between the spans of the first `rank` [...] components.

    `keys` and `queries` [..., component, d] have orthonormal rows. The squared cosines sum to |K Q^T|_F^2.
    """
    first = torch.arange(keys.shape[-2], device=keys.device) < rank[..., None]  # [..., component]
    squared = (keys @ queries.transpose(-1, -2)).square()  # [..., component, component]
    return (squared * first[..., :, None] * first[..., None, :]).sum((-1, -2)) / rank


def in_the_scores(reduced: Reduced, hook: str) -> dict[Site, Moments]:
    """Returns the moments of the keys, or of the queries, that enter the attention scores of each layer.

    With rotary positions these are the rotated ones. If only a part of the key is rotated (DeepSeek), the shapes
    differ, and the key is the one at `hook` itself.
    """
    rotated = {site.layer: moments for site, moments in reduced.items() if site.hook == ROTATED[hook]}
    plain = {site: moments for site, moments in reduced.items() if site.hook == hook}
    return {
        site: turned if (turned := rotated.get(site.layer, moments)).mean.shape == moments.mean.shape else moments
        for site, moments in plain.items()
    }


def check_rotation(reduced: Reduced, context: ProbeContext) -> None:
    """Raises DoesNotApply if the model has hooks of rotated keys or queries and does not call them."""
    for hook in ROTATED.values():
        if silent := [site.name for site in context.sites(hook) if site not in reduced]:
            raise DoesNotApply(
                f"the model has the hook {silent[0]!r} and does not call it: the rotated keys and queries, which enter "
                "the scores, cannot be read"
            )


def leading_component(variances: Tensor, components: Tensor, before: Tensor | None) -> Tensor:
    """Returns the leading component, [..., d], as near as possible to the leading component `before` [..., d].

    Among the components whose variance is at least 0.9 of the largest, it is the one nearest to `before`, with the sign
    that makes their product positive. If `before` is None, its largest entry is positive.
    """
    if before is None:
        leading = components[..., 0, :]
        sign = leading.gather(-1, leading.abs().argmax(-1, keepdim=True)).sign()
    else:
        cosine = (components @ before.to(components)[..., None]).squeeze(-1)  # [..., component]
        may_lead = variances >= LEAD_KEPT * variances[..., :1]
        index = torch.where(may_lead, cosine.abs(), -1.0).argmax(-1, keepdim=True)  # [..., 1]
        leading = components.take_along_dim(index[..., None], -2).squeeze(-2)
        sign = cosine.gather(-1, index).sign()
    return leading * torch.where(sign == 0, 1.0, sign)


DIMS: dict[str, tuple[str, ...]] = {
    "explained": ("layer", "head", "side", "component"),
    "effective_rank": ("layer", "head", "side"),
    "rank": ("layer", "head"),
    "key_query": ("layer", "head"),
    "key_query_chance": ("layer", "head"),
    "leading": ("layer", "head", "side", "d_head"),
    "reference": ("layer", "head", "side", "direction"),
    "score_spectrum": ("layer", "head", "component"),
    "score_top": ("layer", "head"),
    "score_top_error": ("layer", "head"),
    "score_top_chance": ("layer",),
    "score_rank": ("layer", "head"),
    "score_rank_error": ("layer", "head"),
    "score_rank_chance": ("layer",),
    "score_reference": ("layer", "head", "side", "direction"),
    "score_reference_error": ("layer", "head", "side", "direction"),
    "score_reference_chance": ("layer",),
}


OF_SCORES = tuple(name for name in DIMS if name.startswith(("score_spectrum", "score_top", "score_rank")))


class QKAlignment(Probe):
    """The components of each head's scores, the principal components of its keys and queries, and their directions."""

    name = "qk_alignment"
    title = "principal components of keys and queries, and how they align"
    gives = tuple(DIMS)
    described = QK_ALIGNMENT
    hooks = (KEYS, QUERIES, *ROTATED.values())
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        missing = [hook for hook in (KEYS, QUERIES) if not context.sites(hook)]
        return f"the model has no hook {missing[0]!r}" if missing else context.padding()

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Moments:
        """Returns the moments of the keys, or of the queries in `ProbeContext.queries_at`."""
        is_query = site.hook in (QUERIES, ROTATED[QUERIES])
        if is_query:
            rows = rows_of(context.queries_at(site), activation.shape[1], context.n_inputs, repr(site.name))
            activation = activation[:, as_index(rows, activation.device)]
        return Moments.of(activation, centered=not is_query)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:
        check_rotation(reduced, context)
        keys, queries = (in_the_scores(reduced, hook) for hook in (KEYS, QUERIES))
        if all(key.mean.shape[-1] == 1 for key in keys.values()):
            raise DoesNotApply(ONE_NUMBER)
        if all(query.n == 1 for query in queries.values()):
            raise DoesNotApply(ONE_QUERY)
        pairs = list(zip(queries.values(), keys.values(), strict=True))
        measures = self._measures([(query, key.heads(len(query.mean))) for query, key in pairs], context)
        omitted = dict(_omitted(reduced, context))
        if not any(query.varies for query in queries.values()):
            omitted |= dict.fromkeys(OF_SCORES, SAME_QUERIES)
        yield from (Omitted(name, reason) for name, reason in omitted.items())
        coords: dict[str, Sequence[Any]] = {"layer": layers(keys), "side": SIDES, "direction": list(context.directions)}
        for name, dims in DIMS.items():
            if name not in omitted and name in measures[0] and (context.directions or "reference" not in name):
                values = stack_layers([measure[name] for measure in measures])
                yield Reading(name, values, dims, {dim: coords[dim] for dim in dims if dim in coords})

    def _measures(self, pairs: Sequence[tuple[Moments, Moments]], context: ProbeContext) -> list[dict[str, Tensor]]:
        """Returns the readings of each layer by name, from its queries and keys. Equal layers are computed together."""
        alike: dict[Any, list[int]] = {}
        for layer, (query, key) in enumerate(pairs):
            alike.setdefault((query.form, key.form), []).append(layer)
        measures: dict[int, dict[str, Tensor]] = {}
        for layers_here in alike.values():
            query, key = (Moments.joined(one) for one in zip(*(pairs[layer] for layer in layers_here), strict=True))
            found = self._of_heads([str(layer) for layer in layers_here], query, key, context)
            parts = {name: values.chunk(len(layers_here)) for name, values in found.items()}
            for index, layer in enumerate(layers_here):
                measures[layer] = {name: part[index] for name, part in parts.items()}
        for layer, (query, key) in enumerate(pairs):
            d_head = key.mean.shape[-1]
            chance = map(torch.tensor, isotropic_scores(d_head, query.n if query.varies else 1, key.n))
            measures[layer] |= dict(zip(("score_top_chance", "score_rank_chance"), chance, strict=True))
            measures[layer]["score_reference_chance"] = torch.tensor(1 / d_head)
        return [measures[layer] for layer in range(len(pairs))]

    def _of_heads(
        self, labels: Sequence[str], query: Moments, key: Moments, context: ProbeContext
    ) -> dict[str, Tensor]:
        """Returns the readings of the heads of some layers by name, [head of layer, ...]."""
        moments = torch.stack([key.not_centered(), query.total], dim=1)
        variances, components = principal_components(moments)  # [head, side, component, (d)]
        explained = shares(variances)
        total = explained.sum(-1)
        there = torch.where(total.isnan(), torch.nan, (total > 0).double())  # [head, side]; 0 if all vectors are 0
        both = there.prod(-1)  # [head]
        rank = leading_rank(explained).amin(-1)  # [head]
        before = [self.state[label] for label in labels if label in self.state]
        last = torch.cat(before) if before else None
        leading = leading_component(variances, components, last)  # [head, side, d_head]
        self.state |= dict(zip(labels, leading.chunk(len(labels)), strict=True))
        d_head = components.shape[-1]
        found = {
            "explained": explained,
            "effective_rank": effective_rank(explained),
            "rank": rank * both,
            "key_query": subspace_alignment(components[:, 0], components[:, 1], rank) * both,
            "key_query_chance": rank * both / d_head,
            "leading": leading * there[..., None],
            **score_components(query, key, components[:, 1] * variances[:, 1].sqrt()[..., None]),
        }
        if context.directions:
            units = context.constant(("directions", d_head), lambda: _units(context, d_head))  # [d_head, direction]
            found["reference"] = (found["leading"] @ units).abs()
            found["score_reference"], found["score_reference_error"] = score_reference(query, key, units)
        return found


def _omitted(reduced: Reduced, context: ProbeContext) -> Iterator[tuple[str, str]]:
    """Yields the readings that the model, the task or the batch cannot have, each with the reason."""
    if any(site.hook in ROTATED.values() for site in reduced):
        yield "key_query_chance", ROTATED_CHANCE
    if not context.directions:
        yield from ((name, NO_DIRECTIONS) for name in ("reference", "score_reference"))
    if all(len(moments.weights) == 1 for moments in reduced.values()):
        names = ("score_top", "score_rank", *["score_reference"] * bool(context.directions))
        yield from ((f"{name}_error", ONE_SEQUENCE) for name in names)


def _units(context: ProbeContext, d_head: int) -> Tensor:
    """Returns the task's directions as unit vectors, [d_head, direction]."""
    directions = {name: torch.as_tensor(given).detach().cpu().double() for name, given in context.directions.items()}
    for name, direction in directions.items():
        if direction.shape != (d_head,):
            raise ValueError(f"direction {name!r} has shape {tuple(direction.shape)}; expected [{d_head}], d_head")
    return torch.nn.functional.normalize(torch.stack(list(directions.values()), dim=-1), dim=0, eps=0.0)
