"""Discovery: one pass over a model that finds where it attends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from stagelens.base import UsageError
from stagelens.models.watching.seam import Seam, Tracker

# Arguments that carry the keys' source of a cross-attention, in Hugging Face and PyTorch models.
CROSS_ARGUMENTS = ("encoder_hidden_states", "key_value_states", "memory")
DIMENSIONS = (3, 4, 5)  # of queries, keys, values and scores


Place = tuple[str, int]  # the path of a module, and how often the same happened there before in the pass


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
    products: tuple[Place, Place] | None = None  # of a softmax: the matrix products q k^T and a v

    @property
    def key(self) -> tuple[str, str, int]:
        return self.kind, self.path, self.nth

    @property
    def place(self) -> Place:
        return self.path, self.nth


def find_attention(model: nn.Module, run: Callable[[], Any], sizes: Sequence[int] = ()) -> list[Call]:
    """Returns the attentions that `run()` makes, ordered by the position of their modules.

    If one module attends several times in a pass (shared layers), the order of the calls decides.

    Args:
        sizes: The shape of the batch that `run` gives to the model, if it is known.
    """
    paths = list(dict(model.named_modules()))
    finder = Finder(model, sizes)
    with finder.tracker.following(), finder.arguments(), finder:
        run()
    calls = finder.calls()
    if len({call.path for call in calls}) == len(calls):
        calls.sort(key=lambda call: paths.index(call.path))
    return calls


@dataclass(frozen=True)
class Product:
    """A product of two batches of matrices."""

    place: Place
    left: torch.Size
    result: torch.Size


@dataclass(frozen=True)
class Softmax:
    """A softmax that is attention if there are matrix products around it."""

    call: Call
    scores: torch.Size

    def made_by(self, shape: torch.Size) -> bool:
        """Returns True if matrices of `shape` can be the scores. One of the two may have heads in the batch."""
        return shape[-2:] == self.scores[-2:] and shape.numel() == self.scores.numel()


@dataclass
class Finder(Seam):
    """Notes every attention of a pass."""

    model: nn.Module
    sizes: Sequence[int] = ()
    found: list[Call] = field(default_factory=list)  # of `F.scaled_dot_product_attention`
    events: list[Product | Softmax] = field(default_factory=list)  # in their order
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

    def look_up(self, indices: Any, table: Tensor) -> None:
        """Raises an error if an index is outside the table: too many tokens, or too many positions.

        On a GPU such an index would end the process.
        """
        if not isinstance(indices, Tensor) or not indices.numel() or indices.is_floating_point():
            return
        least, most, rows = int(indices.min()), int(indices.max()), len(table)
        if least < 0 or most >= rows:
            index, path = most if most >= rows else least, self.tracker.path
            raise UsageError(
                f"the batch gives index {index} to the embedding {path!r}, which has {rows} rows; give "
                f" tokens from 0 to {rows - 1}, or shorter sequences if the rows are positions"
            )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if query.ndim in DIMENSIONS:
            path, nth = self.tracker.next("scaled")
            if heads := self._heads(query):
                sizes = heads, query.shape[-2], key.shape[-2], query.shape[-1]
                cross = not self._same or query.shape[-2] != key.shape[-2] or path in self.crossing
                self.found.append(Call("scaled", path, nth, *sizes, cross=cross, outside=not self.tracker.running))
        self._same = True
        return self.scaled(query, key, value, *args, **kwargs)

    def softmax(self, func: Callable[..., Tensor], scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if is_pattern(scores, *args, **kwargs):
            path, nth = self.tracker.next("softmax")
            if heads := self._heads(scores):
                n_query, n_key = scores.shape[-2:]
                cross = n_query != n_key or path in self.crossing
                outside = not self.tracker.running
                call = Call("softmax", path, nth, heads, n_query, n_key, cross=cross, outside=outside)
                self.events.append(Softmax(call, scores.shape))
        return func(scores, *args, **kwargs)

    def product(self, func: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
        result = func(left, right)
        if left.ndim == right.ndim and left.ndim in DIMENSIONS:
            self.events.append(Product(self.tracker.next("product"), left.shape, result.shape))
        return result

    def calls(self) -> list[Call]:
        """Returns the attentions; those seen at a softmax with the matrix products around it.

        A softmax without such products is attention only if it has a dimension for heads. The batch must also have as
        many positions as there are queries and keys.
        """
        calls, mixing = list(self.found), set[Place]()
        for at, event in enumerate(self.events):
            if isinstance(event, Softmax):
                call = self._with_products(at, event, mixing)
                positions = self.sizes[:2] or (call.n_query,)
                if call.products:
                    mixing.add(call.products[1])
                if call.products or (len(event.scores) > 3 and call.n_query == call.n_key and call.n_key in positions):
                    calls.append(call)
        return calls

    def _heads(self, x: Tensor) -> int:
        """Returns the number of heads of queries or scores `x`; 0 if they are not those of the batch's sequences.

        Inside `torch.vmap` they cannot be seen. The dimensions are [batch, head, query, ...], [batch, group of heads,
        head, query, ...], or [batch, query, ...] with heads folded into the batch.
        """
        if is_functorch_wrapped_tensor(x):
            return 0
        if x.ndim > 3:
            return x.shape[1:-2].numel()
        positions_first = len(self.sizes) > 1 and self.sizes[0] == x.shape[-2] != self.sizes[1]
        n_batch = self.sizes[positions_first] if self.sizes else len(x)
        return len(x) // n_batch if n_batch and len(x) % n_batch == 0 else 0

    def _with_products(self, at: int, softmax: Softmax, mixing: Set[Place]) -> Call:
        """Returns the call of the softmax at `at` with the product that made its scores, and the next one, a v.

        The scores are made by the first product since the last softmax. It is not one of `mixing`, the products a v of
        earlier softmaxes, which have the shape of scores if there are d_head keys.
        """
        start = max((i + 1 for i in range(at) if isinstance(self.events[i], Softmax)), default=0)
        products = [one for one in self.events[start:at] if isinstance(one, Product) and one.place not in mixing]
        before = [one for one in products if softmax.made_by(one.result)]
        after = [one for one in self.events[at:] if isinstance(one, Product) and softmax.made_by(one.left)]
        if not before or not after:
            return softmax.call
        return replace(softmax.call, d_head=before[0].left[-1], products=(before[0].place, after[0].place))


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
    """Returns True if a softmax of `scores` over `dim` can be attention: over the last of three to five dimensions."""
    return scores.ndim in DIMENSIONS and dim in (-1, scores.ndim - 1)
