"""What the attention probes share: a pattern as weights over the keys that a query can see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stagelens.probing import DoesNotApply
from stagelens.scene import Scene, Site

PATTERN = "attn.hook_pattern"


@dataclass(frozen=True)
class Weights:
    """The attention of the queries that count: those that the task scores and that see at least two keys."""

    values: Tensor  # [batch, head, query, key], rows sum to 1
    queries: Queries

    @property
    def visible(self) -> Tensor:
        """bool [query, key]"""
        return self.queries.visible

    @property
    def query(self) -> Tensor:
        """[query], the position of each."""
        return self.queries.position


@dataclass(frozen=True)
class Queries:
    """The queries of a pattern that count, and what they see."""

    rows: slice | Tensor  # of the pattern
    visible: Tensor  # bool [query, key]
    position: Tensor  # [query]
    log_count: Tensor  # [query], of the number of keys that each sees


def wide(tensor: Tensor) -> Tensor:
    """`tensor` in at least single precision: sums of many bfloat16 numbers lose their digits."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def is_causal(scene: Scene) -> bool:
    """Whether queries see no keys to their right; so it is unless the model's `cfg` says otherwise."""
    return bool(getattr(getattr(scene.model, "cfg", None), "attention_dir", "causal") == "causal")


def normalized(pattern: Tensor, visible: Tensor) -> Tensor:
    """|a| / sum |a| over visible keys, for any `pattern` a [..., query, key] with `visible` [query, key].

    Softmax attention is left as it is; unnormalized (linear) attention becomes weights. A query with no
    weight at all has no preference, so it is uniform.
    """
    size = wide(pattern).abs().masked_fill_(~visible, 0.0)  # abs makes the copy that the rest works on in place
    total = size.sum(-1, keepdim=True)  # [..., query, 1]
    nothing = total == 0
    if perhaps_any(nothing):
        size = torch.where(nothing, visible.to(size.dtype), size)
        total = torch.where(nothing, visible.sum(-1, keepdim=True).to(size.dtype), total)
    return size.div_(total)


def perhaps_any(condition: Tensor) -> bool:
    """Whether any entry is true; under `torch.vmap`, where nobody can tell, it may be."""
    try:
        return bool(condition.any())
    except RuntimeError:
        return True


def visible_weights(pattern: Tensor, site: Site, scene: Scene) -> Weights:
    """`pattern` [batch, head, query, key] as weights; computed once per hook for all probes that ask."""
    return scene.once(pattern, "weights", lambda: _visible_weights(pattern, site, scene))


def _visible_weights(pattern: Tensor, site: Site, scene: Scene) -> Weights:
    key = ("queries", site.name, pattern.shape[-2:], pattern.device)
    queries = scene.constant(key, lambda: _queries(pattern, site, scene))
    return Weights(normalized(pattern[:, :, queries.rows], queries.visible), queries)


def _queries(pattern: Tensor, site: Site, scene: Scene) -> Queries:
    n_query, n_key = pattern.shape[-2:]
    visible = scene.visible(pattern, site.layer)  # [query, key]
    first = n_key - n_query  # with fewer queries than keys, the last query stands at the last key
    scored = range(n_key)[scene.queries]
    counts = visible.sum(-1).tolist()
    rows = [q - first for q in scored if q >= first and counts[q - first] >= 2]
    if not rows:
        raise DoesNotApply(f"no scored query of {site.name!r} sees two keys; its shape is {tuple(pattern.shape)}")
    chosen = _index(rows, pattern.device)
    visible = visible[chosen]
    position = torch.arange(first, n_key, device=pattern.device)[chosen]
    count = visible.sum(-1).to(wide(pattern).dtype)
    return Queries(chosen, visible, position, count.log())


def _index(rows: list[int], device: torch.device) -> slice | Tensor:
    """`rows` as an index; neighbours as a slice, which copies nothing."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
