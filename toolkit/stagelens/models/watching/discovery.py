"""Discovery: one pass over a model that finds where it attends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from stagelens.models.watching.seam import Seam, Tracker

# Arguments that carry the keys' source of a cross-attention, in Hugging Face and PyTorch models.
CROSS_ARGUMENTS = ("encoder_hidden_states", "key_value_states", "memory")


@dataclass(frozen=True)
class Call:
    """An attention that a pass made: the `nth` call of its `kind` in the module at `path`."""

    kind: str  # "scaled": F.scaled_dot_product_attention; "softmax": written by hand, seen at its softmax
    path: str
    nth: int
    n_heads: int
    n_query: int
    n_key: int
    d_head: int | None = None  # None if the keys are not seen
    cross: bool = False
    outside: bool = False  # it was made while no module ran, by a `forward` of the user's own
    products: tuple[int, int] | None = None  # of a softmax: which matrix products of the module are q k^T and a v

    @property
    def key(self) -> tuple[str, str, int]:
        return self.kind, self.path, self.nth


def find_attention(model: nn.Module, run: Callable[[], Any], n_batch: int | None = None) -> list[Call]:
    """Returns the attentions that `run()` makes on `n_batch` sequences, ordered by the position of their modules.

    If one module attends several times in a pass (shared layers), the order of the calls decides.
    """
    paths = list(dict(model.named_modules()))
    finder = Finder(model, n_batch)
    with finder.tracker.following(), finder.arguments(), finder:
        run()
    calls = finder.calls()
    if len({call.path for call in calls}) == len(calls):
        calls.sort(key=lambda call: paths.index(call.path))
    return calls


@dataclass
class Product:
    """A product of two batches of matrices, in the order of all that happens at one module."""

    nth: int
    left: tuple[int, ...]
    result: tuple[int, ...]
    inner: int  # the dimension that is summed over


@dataclass
class Finder(Seam):
    """Notes every attention of a pass."""

    model: nn.Module
    n_batch: int | None = None  # None: not known
    found: list[Call] = field(default_factory=list)
    products: dict[str, list[Product | int]] = field(default_factory=dict)  # by path; an int is a softmax
    flat: set[tuple[str, str, int]] = field(default_factory=set)  # keys of attentions without a dimension for heads
    crossing: set[str] = field(default_factory=set)  # modules that are given another source of keys

    def __post_init__(self) -> None:
        Seam.__init__(self)
        self.tracker = Tracker(self.model, dict(self.model.named_modules()))
        self._same = True

    def arguments(self) -> Any:
        """Notes which modules are given another source of keys, while the block lasts."""
        return _Arguments(self.tracker.modules, self.crossing)

    def sources(self, query: Tensor, key: Tensor) -> None:
        self._same = query is key or torch.equal(query, key)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if query.ndim in (3, 4):
            path, nth = self.tracker.next("scaled")
        if query.ndim == 4 or self._one_head(query):
            heads = query.shape[1] if query.ndim == 4 else 1
            sizes = heads, query.shape[-2], key.shape[-2], query.shape[-1]
            cross = not self._same or query.shape[-2] != key.shape[-2] or path in self.crossing
            self.found.append(Call("scaled", path, nth, *sizes, cross=cross, outside=not self.tracker.running))
        self._same = True
        return self.scaled(query, key, value, *args, **kwargs)

    def softmax(self, func: Callable[..., Tensor], scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if is_pattern(scores, *args, **kwargs):
            path, nth = self.tracker.next("softmax")
            self.products.setdefault(path, []).append(nth)
            if scores.ndim == 4 or self._one_head(scores):
                n_query, n_key = scores.shape[-2:]
                heads = scores.shape[1] if scores.ndim == 4 else 1
                cross = n_query != n_key or path in self.crossing
                outside = not self.tracker.running
                self.found.append(Call("softmax", path, nth, heads, n_query, n_key, cross=cross, outside=outside))
                if scores.ndim == 3:
                    self.flat.add(self.found[-1].key)
        return func(scores, *args, **kwargs)

    def product(self, func: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
        result = func(left, right)
        if left.ndim == right.ndim and left.ndim in (3, 4):
            path, nth = self.tracker.next("product")
            one = Product(nth, tuple(left.shape), tuple(result.shape), left.shape[-1])
            self.products.setdefault(path, []).append(one)
        return result

    def calls(self) -> list[Call]:
        """The attentions; those seen at a softmax with the matrix products around it.

        A softmax over [batch, position, feature] is attention only if there are such products.
        """
        calls = [self._with_products(call) if call.kind == "softmax" else call for call in self.found]
        return [call for call in calls if call.kind == "scaled" or call.products or call.key not in self.flat]

    def _one_head(self, x: Tensor) -> bool:
        """Whether `x` [batch, position, ...] has no dimension for heads. Otherwise they are folded into the batch."""
        return x.ndim == 3 and self.n_batch in (None, len(x))

    def _with_products(self, call: Call) -> Call:
        around = self.products[call.path]
        at = around.index(call.nth)
        shape = (call.n_query, call.n_key) if call.key in self.flat else (call.n_heads, call.n_query, call.n_key)
        before = [one for one in around[:at] if isinstance(one, Product) and one.result[1:] == shape]
        after = [one for one in around[at:] if isinstance(one, Product) and one.left[1:] == shape]
        if not before or not after:
            return call
        return replace(call, d_head=before[-1].inner, products=(before[-1].nth, after[0].nth))


class _Arguments:
    """A context manager that notes the modules whose call has an argument of `CROSS_ARGUMENTS`."""

    def __init__(self, modules: Mapping[str, nn.Module], crossing: set[str]) -> None:
        self.modules, self.crossing = modules, crossing
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        def note(path: str) -> Callable[..., None]:
            def started(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ARG001
                if any(isinstance(kwargs.get(name), Tensor) for name in CROSS_ARGUMENTS):
                    self.crossing.add(path)

            return started

        for path, module in self.modules.items():
            self.handles.append(module.register_forward_pre_hook(note(path), with_kwargs=True))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


def is_pattern(scores: Tensor, dim: int | None = None, *_: Any, **__: Any) -> bool:
    """Whether a softmax of `scores` over `dim` can be attention [batch, head, query, key] or [batch, query, key]."""
    return scores.ndim in (3, 4) and dim in (-1, scores.ndim - 1)
