"""Groups that head specialization is measured against: keys by offset, position or content, or directions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stagelens.base import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Batch = Any  # a tensor, or a tuple, list or dict of tensors; the batch is the first dimension of each
Mask = Callable[[Batch], "Tensor"]  # batch -> bool [batch, query, key]
Tokens = Callable[[Batch], "Tensor"]  # batch -> int [batch, position]


@dataclass(frozen=True, init=False)
class Group:
    """A set of keys that a head can attend to: keys by offset (query - key), by position or by content.

        sl.Group(offsets=(1,))                    # the key before the query
        sl.Group(positions=(0, -1), layers=(0,))  # the first and the last key, in the first layer only
        sl.Group(mask=lambda tokens: (tokens == 0)[:, None, :].expand(-1, tokens.shape[1], -1))  # every token 0

    A key belongs to the group if its offset, its position or the mask matches. A group of `directions` has no keys. It
    is the subspace that they span, and head specialization measures how much of a head's keys and queries is in it.

    Args:
        offsets: Values of query - key.
        positions: Positions of keys. Negative ones count from the last key, as in Python.
        layers: The layers whose keys are meant. None: all.
        mask: A function of the measured batch. It returns bool [batch, query, key], with a query at every key; `keys`
            says which other shapes are allowed. It must depend on the batch alone: it is called once per batch.
        directions: Names of `Task.directions`. A task has either groups of directions or groups of keys, not both.
    """

    offsets: tuple[int, ...]
    positions: tuple[int, ...]
    layers: tuple[int, ...] | None
    content: Mask | None
    directions: tuple[str, ...]

    def __init__(
        self,
        offsets: tuple[int, ...] = (),
        positions: tuple[int, ...] = (),
        layers: tuple[int, ...] | None = None,
        mask: Mask | None = None,
        directions: tuple[str, ...] = (),
    ) -> None:
        if mask is not None and not callable(mask):
            raise UsageError(
                f"mask={type(mask).__name__} was given; expected a function: batch -> bool [batch, query, key]"
            )
        given = {
            "offsets": offsets,
            "positions": positions,
            "layers": layers,
            "content": mask,
            "directions": directions,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def keys(self, n_query: int, n_key: int, batch: Batch = None, device: torch.device | str = "cpu") -> Tensor:
        """Returns which keys belong to the group: bool [query, key], or [batch, query, key] if it has a `mask`.

        With fewer queries than keys, the last query is at the last key. The `mask` of `batch` may have more keys than
        `n_key`, if the model reads only the first positions of the batch: the first `n_key` queries and keys count.
        """
        import torch

        key = torch.arange(n_key, device=device)
        offset = torch.arange(n_key - n_query, n_key, device=device)[:, None] - key[None, :]
        found = torch.zeros(n_query, n_key, dtype=torch.bool, device=device)
        for value in self.offsets:
            found |= offset == value
        for value in self.positions:
            if not -n_key <= value < n_key:
                raise UsageError(
                    f"position {value} was given, but there are {n_key} keys; give positions from {-n_key} to "
                    f"{n_key - 1}, or in `layers` the layers that have more keys"
                )
            found |= key == value % n_key
        return found if self.content is None else found | _cut(self.content(batch), n_query, n_key).to(device)

    def mask(self, n_query: int, n_key: int, device: torch.device | str = "cpu") -> Tensor:
        """Deprecated: use `keys`."""
        warnings.warn("Group.mask is now Group.keys; the old name is removed in stagelens 0.3", DeprecationWarning, 2)
        return self.keys(n_query, n_key, device=device)

    def is_in(self, layer: int | None) -> bool:
        """Returns True if the group has keys in `layer`."""
        return self.layers is None or layer in self.layers


def _cut(mask: Any, n_query: int, n_key: int) -> Tensor:
    """Returns a `mask` [batch, query, key] at the last `n_query` of its first `n_key` positions."""
    import torch

    shape = tuple(getattr(mask, "shape", ()))
    if getattr(mask, "dtype", None) == torch.bool and len(shape) == 3:
        if shape[1:] == (n_query, n_key):
            return mask  # type: ignore[no-any-return]
        if shape[1] == shape[2] >= n_key:
            return mask[:, n_key - n_query : n_key, :n_key]  # type: ignore[no-any-return]
    given = f"{mask.dtype} {list(shape)}" if hasattr(mask, "dtype") else type(mask).__name__
    raise UsageError(
        f"its mask gave {given}; expected a bool tensor [batch, query, key] with {n_key} queries and keys or more"
        + (f", or with {n_query} queries and {n_key} keys" if n_query < n_key else "")
    )


def tokens_of(batch: Batch) -> Tensor | None:
    """Returns the tokens of a batch, int [batch, position]; None if it has none.

    They are the batch itself, its `tokens` or `input_ids` if it is a mapping, or its first element if it is a tuple.
    """
    import torch

    if isinstance(batch, Mapping):
        batch = batch.get("tokens", batch.get("input_ids"))
    elif isinstance(batch, tuple | list) and batch:
        batch = batch[0]
    whole = isinstance(batch, torch.Tensor) and batch.ndim == 2 and batch.dtype != torch.bool
    return batch if whole and not (batch.is_floating_point() or batch.is_complex()) else None


@dataclass(frozen=True)
class SameTokenBefore:
    """A mask: the keys that are `distance` positions after an earlier occurrence of the query's token.

    It is a value and not a closure, so that the groups of two recorders compare as equal.
    """

    distance: int
    tokens: Tokens | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """Returns bool [batch, query, key]."""
        import torch

        tokens = tokens_of(batch if self.tokens is None else self.tokens(batch))
        if tokens is None:
            raise UsageError(
                "the batch has no tokens: int [batch, position], first in a tuple, or `tokens` or `input_ids` of a "
                "mapping; pass token_groups(tokens=) a function that returns them"
            )
        earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)  # [batch, query, key]
        moved = earlier[..., : earlier.shape[-1] - self.distance]
        return torch.cat([torch.zeros_like(earlier[..., : self.distance]), moved], dim=-1)


def token_groups(tokens: Tokens | None = None) -> dict[str, Group]:
    """Returns five groups of keys that name the role of a head in any language model.

        sl.Recorder(model, batch=tokens, groups=sl.token_groups())

    | group | keys |
    |---|---|
    | `previous token` | the key before the query |
    | `own token` | the query's own key |
    | `same token earlier` | the earlier occurrences of the query's token |
    | `induction target` | the keys right after these |
    | `first token` | the first key |

    The groups overlap: the first token is also the previous token of the second query. Each group counts all of its
    keys, so the masses of a head can sum to more than 1.

    Args:
        tokens: A function that returns the tokens of a batch, int [batch, position]. Default: the batch itself, its
            `tokens` or `input_ids` if it is a mapping, its first element if it is a tuple or list.
    """
    return {
        "previous token": Group(offsets=(1,)),
        "own token": Group(offsets=(0,)),
        "same token earlier": Group(mask=SameTokenBefore(0, tokens)),
        "induction target": Group(mask=SameTokenBefore(1, tokens)),
        "first token": Group(positions=(0,)),
    }
