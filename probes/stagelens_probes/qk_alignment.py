"""Principal components of the keys and of the queries of a head, and their alignment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, Reduced, Site, layers, stack_layers, wide
from stagelens_probes.norms import scale_of
from stagelens_probes.positions import as_index, rows_of

KEYS, QUERIES = "attn.hook_k", "attn.hook_q"
ROTATED = {KEYS: "attn.hook_rot_k", QUERIES: "attn.hook_rot_q"}  # the hooks of models with rotary positions
SIDES = ("key", "query")
SHARE = 0.9  # fraction of the variance that the leading subspace explains
ROTATED_CHANCE = (
    "the layers have rotary positions: one rotation turns keys and queries in the same planes, which aligns them "
    "beyond the chance level of random subspaces"
)
LEAD_KEPT = 0.9  # a component stays the leading one while its variance is at least this fraction of the largest


def second_moment(activation: Tensor) -> Tensor:
    """Returns the mean of x x^T over batch and positions, [head, d, d], of x [batch, position, head, d].

    The mean is not subtracted: attention scores are inner products of the vectors themselves. Each head is scaled by
    its largest entry, because the square of 1e-23 is 0 in float32. The readings are ratios: scaling does not
    change them.
    """
    x = wide(activation).flatten(0, 1).permute(1, 2, 0).contiguous()  # [head, d_head, sample]
    x = x / scale_of(x, (1, 2))
    return x @ x.mT / x.shape[2]


def principal_components(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Returns variances [..., component], largest first, and components [..., component, d] of `moment` [..., d, d]."""
    finite = moment.isfinite().all(-1).all(-1)[..., None]  # LAPACK may crash on nan
    values, vectors = torch.linalg.eigh(torch.where(finite[..., None], moment, 0.0))
    values = torch.where(finite, values, torch.nan)
    return values.flip(-1).clamp(min=0), vectors.flip(-1).transpose(-1, -2)


def shares(variances: Tensor) -> Tensor:
    """Returns `variances` [..., component] as fractions of their sum; 0 if all variances are 0."""
    total = variances.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, variances / total.clamp(min=torch.finfo(total.dtype).tiny))


def effective_rank(explained: Tensor) -> Tensor:
    """Returns exp of the entropy of the fractions [..., component]; 0 if all variances are 0."""
    entropy: Tensor = torch.special.entr(explained).sum(-1)
    return entropy.exp() * (explained.sum(-1) > 0)


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


def in_the_scores(reduced: Reduced, hook: str) -> dict[Site, Tensor]:
    """Returns the second moment of the keys, or of the queries, that enter the attention scores of each layer.

    With rotary positions these are the rotated ones. If only a part of the key is rotated (DeepSeek), the shapes
    differ, and the key is the one at `hook` itself.
    """
    rotated = {site.layer: moment for site, moment in reduced.items() if site.hook == ROTATED[hook]}
    plain = {site: moment for site, moment in reduced.items() if site.hook == hook}
    return {
        site: turned if (turned := rotated.get(site.layer, moment)).shape == moment.shape else moment
        for site, moment in plain.items()
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


class QKAlignment(Probe):
    """Explained variance and effective rank of keys and queries, their subspace alignment, and named directions."""

    name = "qk_alignment"
    title = "principal components of keys and queries, and how they align"
    gives = ("explained", "effective_rank", "rank", "key_query", "key_query_chance", "leading", "reference")
    hooks = (KEYS, QUERIES, *ROTATED.values())
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        missing = [hook for hook in (KEYS, QUERIES) if not context.sites(hook)]
        return f"the model has no hook {missing[0]!r}" if missing else context.padding()

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Tensor:
        """Returns the second moment [head, d_head, d_head]; of the queries, that of `ProbeContext.queries_at`."""
        if site.hook in (QUERIES, ROTATED[QUERIES]):
            rows = rows_of(context.queries_at(site), activation.shape[1], context.n_inputs, repr(site.name))
            activation = activation[:, as_index(rows, activation.device)]
        return second_moment(activation).cpu().double()  # not every device has eigh, nor double precision

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:
        check_rotation(reduced, context)
        keys, queries = (in_the_scores(reduced, hook) for hook in (KEYS, QUERIES))
        measures = [
            self._layer(str(index), key, query)
            for index, (key, query) in enumerate(zip(keys.values(), queries.values(), strict=True))
        ]
        dims = {
            "explained": ("layer", "head", "side", "component"),
            "effective_rank": ("layer", "head", "side"),
            "rank": ("layer", "head"),
            "key_query": ("layer", "head"),
            "key_query_chance": ("layer", "head"),
            "leading": ("layer", "head", "side", "d_head"),
        }
        coords: dict[str, Sequence[Any]] = {"layer": layers(keys), "side": SIDES}
        if any(site.hook in ROTATED.values() for site in reduced):
            del dims["key_query_chance"]
            yield Omitted("key_query_chance", ROTATED_CHANCE)
        for name, named in dims.items():
            values = stack_layers([measure[name] for measure in measures])
            yield Reading(name, values, named, {dim: coords[dim] for dim in named if dim in coords})
        if context.directions:
            leading = stack_layers([measure["leading"] for measure in measures])
            units = context.constant(("directions", leading.shape[-1]), lambda: _units(context, leading.shape[-1]))
            cosines = (leading @ units).abs()
            yield Reading(
                "reference",
                cosines,
                ("layer", "head", "side", "direction"),
                {**coords, "direction": list(context.directions)},
            )

    def _layer(self, label: str, key: Tensor, query: Tensor) -> dict[str, Tensor]:
        """Returns the measures of one layer, from the second moments [head, d_head, d_head] of keys and queries."""
        if len(key) < len(query):  # heads that share their keys
            key = key.repeat_interleave(len(query) // len(key), dim=0)
        variances, components = principal_components(torch.stack([key, query], dim=1))  # [head, side, component, (d)]
        explained = shares(variances)
        total = explained.sum(-1)
        there = torch.where(total.isnan(), torch.nan, (total > 0).double())  # [head, side]; 0 if all vectors are 0
        both = there.prod(-1)  # [head]
        rank = leading_rank(explained).amin(-1)  # [head]
        leading = leading_component(variances, components, self.state.get(label))  # [head, side, d_head]
        self.state[label] = leading
        return {
            "explained": explained,
            "effective_rank": effective_rank(explained),
            "rank": rank * both,
            "key_query": subspace_alignment(components[:, 0], components[:, 1], rank) * both,
            "key_query_chance": rank * both / components.shape[-1],
            "leading": leading * there[..., None],
        }


def _units(context: ProbeContext, d_head: int) -> Tensor:
    """Returns the task's directions as unit vectors, [d_head, direction]."""
    directions = {name: torch.as_tensor(given).detach().cpu().double() for name, given in context.directions.items()}
    for name, direction in directions.items():
        if direction.shape != (d_head,):
            raise ValueError(f"direction {name!r} has shape {tuple(direction.shape)}; expected [{d_head}], d_head")
    return torch.nn.functional.normalize(torch.stack(list(directions.values()), dim=-1), dim=0, eps=0.0)
