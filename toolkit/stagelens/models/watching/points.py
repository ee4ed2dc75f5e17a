"""Hook points of a watched model, and the seam that calls them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stagelens.base import UsageError
from stagelens.models.lens import HookPoint
from stagelens.models.watching.discovery import Call, is_pattern
from stagelens.models.watching.projections import Heads
from stagelens.models.watching.seam import Seam, Tracker, attention_of, pattern_of

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
        self._visible: Tensor | None = None
        self._model: Any = None
        self._matrices: Heads = {}

    def connect(self, model: nn.Module, matrices: Heads) -> None:
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
        """Stores which keys are visible in this pass. `mask` is bool (True: visible) or is added to the scores."""
        visible = torch.ones(n_query, n_key, dtype=torch.bool)
        if causal:
            visible = visible.tril()
        if mask is not None:
            whole = mask.detach().expand(*mask.shape[:-2], n_query, n_key).reshape(-1, n_query, n_key)
            seen = whole.any(0) if mask.dtype == torch.bool else whole.amax(0) > MASKED
            visible = visible & seen.cpu()
        self._visible = visible

    def visible(self, n_query: int, n_key: int) -> Tensor:
        """Returns bool [query, key]: the keys that some sequence and head can attend to, in the newest pass."""
        if self._visible is None or self._visible.shape != (n_query, n_key):
            raise UsageError(f"the newest pass of the model had no attention of {n_query} queries to {n_key} keys")
        return self._visible

    def hooked(self, *names: str) -> bool:
        """Returns True if one of the hook points `names` has a hook."""
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
        site: Any = self._known(self.sites, "scaled", *self.tracker.next("scaled")) if query.ndim in (3, 4) else None
        if site is None:
            return self.scaled(query, key, value, attn_mask, dropout_p, **options)
        query, key, value = (
            at_heads(point, x) for point, x in ((site.hook_q, query), (site.hook_k, key), (site.hook_v, value))
        )
        site.saw_mask(attn_mask, is_causal, query.shape[-2], key.shape[-2])
        pattern = self._replaced(site, query, key, attn_mask, options)
        if pattern is None:
            return at_heads(site.hook_z, self.scaled(query, key, value, attn_mask, dropout_p, **options))
        if value.ndim == 4:
            value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return at_heads(site.hook_z, pattern.to(value.dtype) @ value)

    def _known(self, sites: Mapping[Any, AttentionPoints], *key: Any) -> AttentionPoints | None:
        """Returns the site at `key`; None for what other models do while the watched one does not run."""
        site = sites.get(key)
        return None if site is None or (not self.tracker.running and not site.call.outside) else site

    def _replaced(
        self, site: Any, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor | None:
        """Passes scores and pattern through their hook points; returns the pattern if a hook replaced one of them."""
        if not site.hooked("hook_attn_scores", "hook_pattern"):
            return None
        scores, pattern = attention_of(query, key, mask, **options)
        new_scores, rescored = through(site.hook_attn_scores, scores)
        new_pattern, replaced = through(site.hook_pattern, pattern_of(new_scores) if rescored else pattern)
        return new_pattern if rescored or replaced else None

    def softmax(self, func: Callable[..., Tensor], scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        site: Any = None
        if is_pattern(scores, *args, **kwargs):
            site = self._known(self.sites, "softmax", *self.tracker.next("softmax"))
        if site is None:
            return func(scores, *args, **kwargs)
        site.saw_mask(scores, False, *scores.shape[-2:])
        scores = at_pattern(site.hook_attn_scores, scores)
        return at_pattern(site.hook_pattern, func(scores, *args, **kwargs))

    def product(self, func: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
        if left.ndim != right.ndim or left.ndim not in (3, 4):
            return func(left, right)
        at = self.tracker.next("product")
        scoring: Any = self._known(self.scoring, *at)
        mixing: Any = self._known(self.mixing, *at)
        if scoring is not None:
            return func(at_heads(scoring.hook_q, left), at_heads(scoring.hook_k, right.mT).mT)
        if mixing is not None:
            return at_heads(mixing.hook_z, func(left, at_heads(mixing.hook_v, right)))
        return func(left, right)


def at_heads(point: HookPoint, x: Tensor) -> Tensor:
    """Passes `x` [batch, head, position, d_head] through a hook point that sees [batch, position, head, d_head].

    If `x` is [batch, position, d_head], there is one head.
    """
    seen = x[:, :, None] if x.ndim == 3 else x.transpose(1, 2)
    given: Tensor = point(seen)
    if given is seen:
        return x
    return given[:, :, 0] if x.ndim == 3 else given.transpose(1, 2)


def at_pattern(point: HookPoint, x: Tensor) -> Tensor:
    """Passes `x` [batch, head, query, key], or [batch, query, key] of one head, through a hook point with heads."""
    if x.ndim == 4:
        given: Tensor = point(x)
        return given
    seen = x[:, None]
    given = point(seen)
    return x if given is seen else given[:, 0]


def through(point: HookPoint, x: Tensor) -> tuple[Tensor, bool]:
    """Does what `at_pattern` does; returns what comes out, and whether a hook replaced or changed it."""
    before = x.clone() if x.is_inference() else x._version  # inference tensors have no version counter
    given = at_pattern(point, x)
    if given is not x:
        return given, True
    return x, not torch.equal(x, before) if isinstance(before, Tensor) else x._version != before


def into(point: HookPoint) -> Callable[..., Any]:
    """Returns a forward pre-hook that passes the first tensor that a module takes through `point`."""

    def started(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
        if args and isinstance(args[0], Tensor):
            return (point(args[0]), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, {**kwargs, name: point(kwargs[name])}

    return started


def out_of(point: HookPoint) -> Callable[..., Any]:
    """Returns a forward hook that passes a module's output, or the first entry of a tuple or list, through `point`."""

    def ended(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG001
        if isinstance(output, tuple):
            return (point(output[0]), *output[1:])
        if isinstance(output, list):
            return [point(output[0]), *output[1:]]
        return point(output)

    return ended
