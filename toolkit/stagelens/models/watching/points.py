"""Hook points of a watched model, and the seam that calls them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stagelens.base import UsageError
from stagelens.models.lens import HookPoint
from stagelens.models.watching.discovery import DIMENSIONS, Call, is_pattern
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
        self.is_padded = False  # in the newest pass, keys that some sequence sees were hidden in another one
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
        visible, self.is_padded = torch.ones(n_query, n_key, dtype=torch.bool), False
        if causal:
            visible = visible.tril()
        if mask is not None:
            shown = mask.detach() if mask.dtype == torch.bool else mask.detach() > MASKED
            whole = shown.expand(*mask.shape[:-2], n_query, n_key).reshape(-1, n_query, n_key)
            visible = visible & whole.any(0).cpu()
            keys = whole.any(1)  # [sequence and head, key]
            n_sequences = len(mask) // (self.call.n_heads if mask.ndim == 3 else 1) if mask.ndim > 2 else 1
            by_sequence = keys.reshape(max(1, n_sequences), -1, n_key).any(1)
            self.is_padded = bool((by_sequence != by_sequence[:1]).any())
        self._visible = visible

    def visible(self, n_query: int, n_key: int) -> Tensor:
        """Returns bool [query, key]: the keys that some sequence and head can attend to, in the newest pass."""
        if self._visible is None or self._visible.shape != (n_query, n_key):
            raise UsageError(f"the newest pass of the model had no attention of {n_query} queries to {n_key} keys")
        return self._visible

    def at_pattern(self, name: str, x: Tensor) -> Tensor:
        """Passes scores or a pattern through a hook point, which sees [batch, head, query, key]."""
        return self._through(name, x, self._by_head(x))

    def at_heads(self, name: str, x: Tensor) -> Tensor:
        """Passes queries, keys, values or z through a hook point, which sees [batch, position, head, d_head]."""
        return self._through(name, x, self._by_head(x).transpose(1, 2))

    def changed(self, name: str, x: Tensor) -> tuple[Tensor, bool]:
        """Does what `at_pattern` does; returns what comes out, and whether a hook replaced or changed it."""
        before = x.clone() if x.is_inference() else x._version  # inference tensors have no version counter
        given = self.at_pattern(name, x)
        if given is not x:
            return given, True
        return x, not torch.equal(x, before) if isinstance(before, Tensor) else x._version != before

    def _by_head(self, x: Tensor) -> Tensor:
        """Returns `x` as [batch, head, ...]: heads may be folded into the batch, or have groups."""
        if x.ndim == 3:
            return x.reshape(-1, self.call.n_heads, *x.shape[1:])
        return x.flatten(1, 2) if x.ndim == 5 else x

    def _through(self, name: str, x: Tensor, seen: Tensor) -> Tensor:
        """Passes `seen`, a view of `x`, through a hook point; returns what comes out in the layout of `x`."""
        given: Tensor = getattr(self, f"hook_{name}")(seen)
        copied = x.ndim == 5 and not x.is_contiguous()  # then a hook may have changed the copy in place
        if given is seen and not (copied and self.hooked(f"hook_{name}")):
            return x
        by_head = given if name in ("attn_scores", "pattern") else given.transpose(1, 2)
        return by_head.reshape(x.shape)

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
        self.scoring = {site.call.products[0]: site for site in sites if site.call.products}
        self.mixing = {site.call.products[1]: site for site in sites if site.call.products}

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
        site = None
        if query.ndim in DIMENSIONS:
            site = self._known(self.sites, ("scaled", *self.tracker.next("scaled")))
        if site is None:
            return self.scaled(query, key, value, attn_mask, dropout_p, **options)
        query, key, value = (site.at_heads(name, x) for name, x in (("q", query), ("k", key), ("v", value)))
        site.saw_mask(attn_mask, is_causal, query.shape[-2], key.shape[-2])
        pattern = self._replaced(site, query, key, attn_mask, options)
        if pattern is None:
            return site.at_heads("z", self.scaled(query, key, value, attn_mask, dropout_p, **options))
        if value.ndim == 4:
            value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return site.at_heads("z", pattern.to(value.dtype) @ value)

    def _known(self, sites: Mapping[Any, AttentionPoints], key: Any) -> AttentionPoints | None:
        """Returns the site at `key`; None for what other models do while the watched one does not run."""
        site = sites.get(key)
        return None if site is None or (not self.tracker.running and not site.call.outside) else site

    def _replaced(
        self, site: AttentionPoints, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor | None:
        """Passes scores and pattern through their hook points; returns the pattern if a hook replaced one of them."""
        if not site.hooked("hook_attn_scores", "hook_pattern"):
            return None
        scores, pattern = attention_of(query, key, mask, **options)
        new_scores, rescored = site.changed("attn_scores", scores)
        new_pattern, replaced = site.changed("pattern", pattern_of(new_scores) if rescored else pattern)
        return new_pattern if rescored or replaced else None

    def softmax(self, func: Callable[..., Tensor], scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        site = None
        if is_pattern(scores, *args, **kwargs):
            site = self._known(self.sites, ("softmax", *self.tracker.next("softmax")))
        if site is None:
            return func(scores, *args, **kwargs)
        site.saw_mask(scores, False, *scores.shape[-2:])
        scores = site.at_pattern("attn_scores", scores)
        return site.at_pattern("pattern", func(scores, *args, **kwargs))

    def product(self, func: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
        if left.ndim != right.ndim or left.ndim not in DIMENSIONS:
            return func(left, right)
        place = self.tracker.next("product")
        scoring = self._known(self.scoring, place)
        mixing = self._known(self.mixing, place)
        if scoring is not None:
            return func(scoring.at_heads("q", left), scoring.at_heads("k", right.mT).mT)
        if mixing is not None:
            return mixing.at_heads("z", func(left, mixing.at_heads("v", right)))
        return func(left, right)


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
