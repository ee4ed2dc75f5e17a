"""Hook points of a watched model, and the seam that calls them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from stagelens.models.watching.discovery import Call, is_pattern
from stagelens.models.watching.seam import SCALED, Seam, Tracker, attention_of
from stagelens.models.watching.structure import Linear

MASKED = -9e3  # a score below this is a masked key's: masks written by hand add -1e4, -1e9, finfo.min or -inf
ALL = ("hook_q", "hook_k", "hook_v", "hook_attn_scores", "hook_pattern", "hook_z")
AT_SOFTMAX = ("hook_attn_scores", "hook_pattern")  # of attention whose matrix products are not seen


class AttentionPoints(nn.Module):
    """The hook points of one attention, with TransformerLens' names and shapes.

    Queries, keys, values and z are [batch, position, head, d_head]; scores and pattern are [batch, head, query, key].
    The keys and queries are those that enter the scores: after rotary positions, if there are any.
    """

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        for name in ALL if call.kind == "scaled" or call.products else AT_SOFTMAX:
            self.add_module(name, HookPoint())
        self._mask: tuple[Tensor | None, bool, int, int] | None = None
        self._model: Any = None
        self._matrices: Mapping[str, tuple[Linear, Tensor]] = {}

    def connect(self, model: nn.Module, matrices: Mapping[str, tuple[Linear, Tensor]]) -> None:
        """Lets `W_Q`, `W_K`, `W_V` and `W_O` be read from the parameters of `model`."""
        self._model = weakref.ref(model)  # a reference would make the model a submodule
        self._matrices = matrices

    def matrix(self, name: str) -> Tensor | None:
        """Returns W_Q, W_K, W_V [head, d_model, d_head] or W_O [head, d_head, d_model]; None if it was not found."""
        if name not in self._matrices:
            return None
        linear, rows = self._matrices[name]
        weight = linear.matrix(self._model())
        return weight.mT[rows] if name == "W_O" else weight[rows].mT

    W_Q = property(lambda self: self.matrix("W_Q"))
    W_K = property(lambda self: self.matrix("W_K"))
    W_V = property(lambda self: self.matrix("W_V"))
    W_O = property(lambda self: self.matrix("W_O"))

    def saw_mask(self, mask: Tensor | None, causal: bool, n_query: int, n_key: int) -> None:
        """Stores the mask of the newest pass. `mask` is bool (True: visible) or is added to the scores."""
        self._mask = mask, causal, n_query, n_key

    def visible(self, n_query: int, n_key: int) -> Tensor:
        """Returns bool [query, key]: the keys that some sequence and head can attend to, in the newest pass."""
        assert self._mask is not None and self._mask[2:] == (n_query, n_key), "the newest pass had another shape"
        mask, causal = self._mask[:2]
        visible = torch.ones(n_query, n_key, dtype=torch.bool)
        if causal:
            visible = visible.tril()
        if mask is not None:
            seen = mask if mask.dtype == torch.bool else mask > MASKED
            visible = visible & seen.expand(*seen.shape[:-2], n_query, n_key).reshape(-1, n_query, n_key).any(0).cpu()
        return visible

    def hooked(self, *names: str) -> bool:
        """Whether somebody listens at one of the hook points `names`."""
        points = (getattr(self, name) for name in names)
        return any(point.fwd_hooks or point.bwd_hooks for point in points)


class HookedSeam(Seam):
    """Passes what every known attention does through its hook points. A hook can read it, or replace it."""

    def __init__(self, tracker: Tracker, sites: Sequence[AttentionPoints]) -> None:
        super().__init__()
        self.tracker = tracker
        self.sites: Mapping[Any, AttentionPoints] = {site.call.key: site for site in sites}
        self.scoring = {(site.call.path, site.call.products[0]): site for site in sites if site.call.products}
        self.mixing = {(site.call.path, site.call.products[1]): site for site in sites if site.call.products}

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        site = self.sites.get(("scaled", *self.tracker.next("scaled"))) if query.ndim in (3, 4) else None
        if site is None:
            return SCALED(query, key, value, attn_mask, dropout_p, **options)
        if query.ndim == 3:  # one head, without a dimension for it
            mask = attn_mask[:, None] if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
            return self._attend(site, query[:, None], key[:, None], value[:, None], mask, dropout_p, options)[:, 0]
        return self._attend(site, query, key, value, attn_mask, dropout_p, options)

    def _attend(
        self,
        site: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout: float,
        options: dict[str, Any],
    ) -> Tensor:
        """The output of one attention, [batch, head, query, d_head]: torch's own unless a hook replaces the pattern."""
        query, key, value = (
            at_heads(point, x) for point, x in ((site.hook_q, query), (site.hook_k, key), (site.hook_v, value))
        )
        site.saw_mask(mask, options["is_causal"], query.shape[-2], key.shape[-2])
        z = None
        if site.hooked("hook_attn_scores", "hook_pattern"):
            scores, pattern = attention_of(query, key, mask, **options)
            new_scores, rescored = through(site.hook_attn_scores, scores)
            new_pattern, replaced = through(site.hook_pattern, new_scores.softmax(-1) if rescored else pattern)
            if rescored or replaced:
                values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
                z = new_pattern.to(values.dtype) @ values
        if z is None:
            z = SCALED(query, key, value, mask, dropout, **options)
        return at_heads(site.hook_z, z)

    def softmax(self, func: Callable[..., Tensor], scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        site: Any = None
        if is_pattern(scores, *args, **kwargs):
            site = self.sites.get(("softmax", *self.tracker.next("softmax")))
        if site is None:
            return func(scores, *args, **kwargs)
        site.saw_mask(scores.detach(), False, *scores.shape[-2:])
        pattern: Tensor = site.hook_pattern(func(site.hook_attn_scores(scores), *args, **kwargs))
        return pattern

    def product(self, func: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
        if left.ndim != 4 or right.ndim != 4:
            return func(left, right)
        at = self.tracker.next("product")
        scoring: Any = self.scoring.get(at)
        mixing: Any = self.mixing.get(at)
        if scoring is not None:
            return func(at_heads(scoring.hook_q, left), at_heads(scoring.hook_k, right.mT).mT)
        if mixing is not None:
            return at_heads(mixing.hook_z, func(left, at_heads(mixing.hook_v, right)))
        return func(left, right)


def at_heads(point: HookPoint, x: Tensor) -> Tensor:
    """Passes `x` [batch, head, position, d_head] through a hook point that sees [batch, position, head, d_head]."""
    seen = x.transpose(1, 2)
    given = point(seen)
    return x if given is seen else given.transpose(1, 2)


def through(point: HookPoint, x: Tensor) -> tuple[Tensor, bool]:
    """Passes `x` through a hook point; returns what comes out, and whether a hook replaced or changed it."""
    version = x._version
    given = point(x)
    return given, given is not x or given._version != version
