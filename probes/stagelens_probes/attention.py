"""Attention patterns as weights over the keys that a query can see, for all attention probes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stagelens.recording import DoesNotApply, ProbeContext, Site, wide
from stagelens_probes.positions import as_index, rows_of

PATTERN = "attn.hook_pattern"


@dataclass(frozen=True)
class Weights:
    """The attention weights of the queries of `ProbeContext.queries_at` that see at least two keys."""

    values: Tensor  # [batch, head, query, key], rows sum to 1
    queries: Queries

    @property
    def visible(self) -> Tensor:
        """Whether the query sees the key, bool [query, key]."""
        return self.queries.visible

    @property
    def query(self) -> Tensor:
        """The position of each query, int [query]."""
        return self.queries.position


@dataclass(frozen=True)
class Queries:
    """The queries of a pattern that are measured, and the keys that they see."""

    rows: slice | Tensor  # the rows of the pattern: an index of its query dimension
    visible: Tensor  # bool [query, key]
    position: Tensor  # [query]
    log_count: Tensor  # [query], the logarithm of the number of keys that each query sees
    lowest_lag: int  # the smallest query - key: 0, or negative if queries see keys to their right


def is_causal(context: ProbeContext) -> bool:
    """Returns True unless the model's `cfg.attention_dir` lets queries see keys to their right."""
    return bool(getattr(getattr(context.model, "cfg", None), "attention_dir", "causal") == "causal")


def normalized(pattern: Tensor, visible: Tensor) -> Tensor:
    """Returns |a| / sum |a| over the visible keys, for a `pattern` a [..., query, key] and `visible` [query, key].

    Softmax attention is unchanged. Unnormalized (linear) attention becomes weights. Attention with a sink becomes the
    attention without the sink. A query whose weights are all zero attends uniformly.
    """
    size = wide(pattern).abs().masked_fill_(~visible, 0.0)  # abs makes a copy, so the next lines may work in place
    total = size.sum(-1, keepdim=True)  # [..., query, 1]
    nothing = total == 0
    if perhaps_any(nothing):
        size = torch.where(nothing, visible.to(size.dtype), size)
        total = torch.where(nothing, visible.sum(-1, keepdim=True).to(size.dtype), total)
    return size.div_(total)


def perhaps_any(condition: Tensor) -> bool:
    """True if any entry is true. Returns True under `torch.vmap`, where values cannot be inspected."""
    try:
        return bool(condition.any())
    except RuntimeError:
        return True


def visible_weights(pattern: Tensor, site: Site, context: ProbeContext) -> Weights:
    """Returns `pattern` [batch, head, query, key] as weights. They are computed once per hook, for all probes."""
    return context.once(pattern, "weights", lambda: _visible_weights(pattern, site, context))


def _visible_weights(pattern: Tensor, site: Site, context: ProbeContext) -> Weights:
    key = ("queries", site.name, pattern.shape[-2:], pattern.device)
    queries = context.constant(key, lambda: _queries(pattern, site, context))
    return Weights(normalized(pattern[:, :, queries.rows], queries.visible), queries)


def _queries(pattern: Tensor, site: Site, context: ProbeContext) -> Queries:
    n_query, n_key = pattern.shape[-2:]
    visible = context.visible(pattern, site.layer)  # [query, key]
    first = n_key - n_query  # with fewer queries than keys, the last query is at the last key
    counts = visible.sum(-1).tolist()
    rows = [row for row in rows_of(context.queries_at(site), n_query, n_key, repr(site.name)) if counts[row] >= 2]
    if not rows:
        raise DoesNotApply(f"no scored query of {site.name!r} sees two keys; its shape is {tuple(pattern.shape)}")
    chosen = as_index(rows, pattern.device)
    visible = visible[chosen]
    position = torch.arange(first, n_key, device=pattern.device)[chosen]
    count = visible.sum(-1).to(wide(pattern).dtype)
    lag = position[:, None] - torch.arange(n_key, device=pattern.device)[None, :]  # [query, key]
    return Queries(chosen, visible, position, count.log(), min(0, int(lag[visible].min())))
