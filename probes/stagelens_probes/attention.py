"""Attention patterns as weights over the keys that a query can see, for all attention probes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stagelens.recording import ProbeContext, Queries, Site, wide

PATTERN = "attn.hook_pattern"
ROWS = {torch.float32: 2e-6, torch.float64: 1e-14}  # how far the sum of a softmax may be from 1 by rounding


@dataclass(frozen=True)
class Weights:
    """The attention weights of the measured queries.

    The dimension `sequence` of `queries` has size 1 if the same queries are measured in all sequences.
    """

    values: Tensor  # [batch, head, query, key], rows sum to 1
    queries: Queries


def is_causal(context: ProbeContext) -> bool:
    """Returns True unless the model's `cfg.attention_dir` lets queries see keys to their right."""
    return bool(getattr(getattr(context.model, "cfg", None), "attention_dir", "causal") == "causal")


def reads_two_texts(context: ProbeContext) -> bool:
    """Returns True if the model has cross-attention: its decoder's tokens are not those of its encoder."""
    return any(".cross_attn." in name for name in context.model.hook_dict)


def normalized(pattern: Tensor, visible: Tensor) -> Tensor:
    """Returns |a| / sum |a| over the visible keys, for a `pattern` a [..., query, key] and `visible` [..., query, key].

    Softmax attention is unchanged. Unnormalized (linear) attention becomes weights. Attention with a sink becomes the
    attention without the sink. A query whose weights are all zero attends uniformly.
    """
    size = wide(pattern).abs() * visible  # several times faster than masked_fill
    total = size.sum(-1, keepdim=True)  # [..., query, 1]
    if perhaps_any(~total.isfinite()):  # an infinite or nan entry at a masked key times 0 is nan, not 0
        size = wide(pattern).abs().masked_fill(~visible, 0.0)
        total = size.sum(-1, keepdim=True)
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
    queries = context.sampled.get(site.name)
    if queries is None:
        pattern = pattern[: context.max_sequences]
        queries = context.read_queries(site, pattern.shape, pattern.device)
        pattern = queries.of(pattern)
    weights = wide(pattern)
    if not is_softmax(weights, queries.visible):
        weights = normalized(pattern, queries.visible[:, None])
    return Weights(weights, queries)


def is_softmax(weights: Tensor, visible: Tensor) -> bool:
    """Returns True if `weights` [batch, head, query, key] are a softmax over the `visible` [sequence, query, key] keys.

    If so, they equal the result of `normalized` up to rounding, and no copy is needed.
    """
    masked = (~visible).to(weights.dtype).flatten(1)  # [sequence, query * key]
    parts = [weights.flatten(0, 1)] if len(masked) == 1 else weights  # products of matrix and vector: several times
    hidden = torch.stack([part.flatten(1) @ mask for part, mask in zip(parts, masked, strict=True)])  # faster than bmm
    rows = (weights.sum(-1) - 1).abs()
    fine = (weights.amin() >= 0) & (hidden.amax() <= 0) & (rows.amax() <= ROWS[weights.dtype])
    return not perhaps_any(~fine)


def over_sequences(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean of `samples` [sample, ...] and its standard error, [...] each; nan for one sample."""
    n = len(samples)
    error = samples.std(0) / n**0.5 if n > 1 else torch.full_like(samples[0], torch.nan)
    return samples.mean(0), error


def as_samples(values: Tensor) -> Tensor:
    """Returns the samples of `values` [batch, head, query, ...] as [sample, head, query, ...].

    A sample is a sequence. If there is only one sequence, each of its queries is a sample.
    """
    return values if len(values) > 1 else values.transpose(0, 2)
