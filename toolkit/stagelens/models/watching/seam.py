"""The seam: torch functions in which attention happens, replaced for as long as a block lasts.

PyTorch passes every call of a torch function to the active `TorchFunctionMode`. So any model's attention is visible
there. Nothing is installed before or after the block.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stagelens.models.watching.einsums import back, matrix_product

SCALED = F.scaled_dot_product_attention
MULTIHEAD = F.multi_head_attention_forward
SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax, torch._softmax}
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
ADDED_PRODUCT = {torch.baddbmm, Tensor.baddbmm}


class Tracker:
    """Knows which of the given modules runs, and counts what happens at each of them during one pass of `root`.

    What happens in an `nn.Softmax` counts for the module that calls it.
    """

    def __init__(self, root: nn.Module, modules: Mapping[str, nn.Module]) -> None:
        self.root = root
        self.modules = {path: one for path, one in modules.items() if not isinstance(one, nn.Softmax)}
        self.running: list[str] = []
        self.counts: Counter[tuple[str, str]] = Counter()

    @property
    def path(self) -> str:
        """The path of the innermost module that runs; "" is the root."""
        return self.running[-1] if self.running else ""

    def next(self, what: str) -> tuple[str, int]:
        """The running module, and how often `what` happened there before in this pass."""
        path = self.path
        self.counts[path, what] += 1
        return path, self.counts[path, what] - 1

    def restart(self) -> None:
        """Starts a new pass."""
        self.running.clear()
        self.counts.clear()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follows the modules with forward hooks, which are removed at the end."""

        handles = [self.root.register_forward_pre_hook(lambda *_: self.restart(), prepend=True)]
        for path, module in self.modules.items():
            handles.append(module.register_forward_pre_hook(lambda *_, at=path: self.running.append(at)))
            handles.append(module.register_forward_hook(lambda *_: _pop(self.running), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _pop(running: list[str]) -> None:
    if running:
        running.pop()


class Seam(TorchFunctionMode):
    """Calls its methods instead of torch's attention functions. These methods call the torch functions themselves.

    `scaled` is torch's `F.scaled_dot_product_attention`, or the `attend` of a seam around this one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scaled: Callable[..., Tensor] = SCALED

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is SCALED:
            return self.attend(*args, **kwargs)
        if func is MULTIHEAD:
            return self._multihead(*args, **kwargs)
        if func in SOFTMAX:
            scores, *rest = args or (kwargs["input"],)
            return self.softmax(func, scores, *rest, **{name: x for name, x in kwargs.items() if name != "input"})
        if func in PRODUCT and not kwargs:
            return self.product(func, *args)
        if func in ADDED_PRODUCT and len(args) < 4:
            return self._added_product(func, *args, **kwargs)
        if func is torch.einsum:
            return self._einsum(*args)
        if func is F.embedding:
            self.look_up(*args[:2])
        return func(*args, **kwargs)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Replaces `F.scaled_dot_product_attention`."""
        return self.scaled(query, key, value, *args, **kwargs)

    def softmax(self, func: Callable[..., Tensor], scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Replaces every softmax."""
        return func(scores, *args, **kwargs)

    def product(self, func: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
        """Replaces every product of two matrices or batches of them."""
        return func(left, right)

    def _added_product(
        self, func: Callable[..., Tensor], input: Tensor, batch1: Tensor, batch2: Tensor, **scales: Any
    ) -> Tensor:
        """Passes a product of matrices that is added to `input` through `product`."""
        return self.product(lambda left, right: func(input, left, right, **scales), batch1, batch2)

    def _einsum(self, equation: str, *operands: Any) -> Tensor:
        """Passes an einsum through `product` if it is a product of batches of matrices."""
        tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
        as_matrices = matrix_product(equation) if isinstance(equation, str) and len(tensors) == 2 else None
        if as_matrices is None:
            return torch.einsum(equation, *operands)
        one = as_matrices

        def multiplied(left: Tensor, right: Tensor) -> Tensor:
            pair = back(left, one.left), back(right, one.right)
            return torch.einsum(equation, *(reversed(pair) if one.swapped else pair)).permute(one.result)

        left, right = reversed(tensors) if one.swapped else tensors
        return back(self.product(multiplied, left.permute(one.left), right.permute(one.right)), one.result)

    def look_up(self, indices: Any, table: Tensor) -> None:
        """Is called before `F.embedding` takes the rows at `indices` from a table."""

    def sources(self, query: Tensor, key: Tensor) -> None:
        """Is called with the tensors that queries and keys of the next attention are made of, if they are known."""

    def _multihead(self, *args: Any, **kwargs: Any) -> Any:
        """Runs `F.multi_head_attention_forward` so that the attention inside it passes through `attend`.

        PyTorch hides the inside of this function from the mode, so `F.scaled_dot_product_attention` is replaced by
        name while it runs. It is called by that function only if no weights are asked for: weights are computed here.
        """
        call = inspect.signature(MULTIHEAD).bind(*args, **kwargs)
        call.apply_defaults()
        asked, call.arguments["need_weights"] = call.arguments["need_weights"], False
        query, key = call.arguments["query"], call.arguments["key"]
        self.sources(query, key)
        patterns: list[Tensor] = []

        def attend(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
            if asked:
                patterns.append(attention_of(query, key, *rest[:1], **_without_dropout(options))[1])
            return self.attend(query, key, value, *rest, **options)

        with _inside_multihead(attend) as around:
            self.scaled = around
            try:
                output, _ = MULTIHEAD(*call.args, **call.kwargs)
            finally:
                self.scaled = SCALED
        if not asked:
            return output, None
        weights = patterns[0].mean(1) if call.arguments["average_attn_weights"] else patterns[0]
        return output, weights if query.ndim == 3 else weights.squeeze(0)


class _Multihead(threading.local):
    """What `F.scaled_dot_product_attention` does inside `F.multi_head_attention_forward`, in each thread."""

    attend: Callable[..., Tensor] = staticmethod(SCALED)


_multihead = _Multihead()
_lock = threading.Lock()
_users = 0  # seams inside `F.multi_head_attention_forward`, in all threads


def _dispatch(*args: Any, **options: Any) -> Tensor:
    return _multihead.attend(*args, **options)


@contextmanager
def _inside_multihead(attend: Callable[..., Tensor]) -> Iterator[Callable[..., Tensor]]:
    """Makes `attend` the attention of this thread while the block lasts; yields what it was before."""
    global _users
    before, _multihead.attend = _multihead.attend, attend
    with _lock:
        _users += 1
        F.scaled_dot_product_attention = _dispatch
    try:
        yield before
    finally:
        _multihead.attend = before
        with _lock:
            _users -= 1
            if not _users:
                F.scaled_dot_product_attention = SCALED


def _without_dropout(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "dropout_p"}


def attention_of(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the scores and the pattern [..., head, query, key] of a call of `F.scaled_dot_product_attention`.

    Both are in float32 or better. Masked keys have the score -inf. A query that sees no key attends to nothing.
    """
    query, key = _wide(query), _wide(key)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores, pattern_of(scores)


def pattern_of(scores: Tensor) -> Tensor:
    """Returns the softmax of `scores` over the keys. A query whose scores are all -inf attends to nothing."""
    nothing = torch.isneginf(scores).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
