"""One pass of the model over tokens that a probe has drawn, in which it reads the attention patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from stagelens.recording import DoesNotApply, ProbeContext, Site, wide
from stagelens_probes.attention import PATTERN, normalized, reads_two_texts

ROUNDING = 0.01  # rounding error of a row's sum; that of 256 weights in bfloat16 is smaller
NOT_ON_TOKENS = "the model does not run on tokens alone: its inputs are of another kind, or it needs more of them"
T = TypeVar("T")


def attention(pattern: Tensor, visible: Tensor) -> Tensor:
    """Returns the weights of `pattern` [sequence, head, query, key] on the `visible` keys [query, key].

    Softmax attention is returned unchanged, also if a sink takes a part of each row. Unnormalized (linear) attention,
    which has negative weights or rows with a sum above 1, is returned as |a| / sum |a|.
    """
    weights = wide(pattern)
    if weights.amin() >= 0 and weights.sum(-1).amax() <= 1 + ROUNDING:
        return weights
    return normalized(pattern, visible)


def read_patterns(
    tokens: Tensor, context: ProbeContext, read: Callable[[Tensor, Tensor, int], T], queries: Tensor | None = None
) -> dict[Site, list[T]]:
    """Runs the model on `tokens` [sequence, position]. Returns the results of `read` for the blocks of each layer.

    `read(pattern, visible, block)` is called for each row of `queries` [block, query], or once if `queries` is None.
    `pattern` is [sequence or 1, head, query, position] and `visible` bool [query, position], at the positions of that
    block, or at all positions. Raises DoesNotApply if the model does not run on such tokens, or does not have a query
    and a key at each of them.
    """
    if reads_two_texts(context):
        raise DoesNotApply("the model has cross-attention: its encoder and its decoder read different tokens")
    found: dict[Site, list[T]] = {}
    n, size = tokens.shape
    fewer = 0 if queries is None else queries.shape[1]

    def rows(name: str, shape: Sequence[int], device: torch.device) -> list[tuple[Tensor, int]] | None:  # noqa: ARG001
        return None if queries is None else [(block.to(device).expand(n, -1), size) for block in queries]

    def read_at(site: Site) -> Callable[..., None]:
        def hook_function(pattern: Tensor, hook: Any) -> None:  # noqa: ARG001  TransformerLens passes it by name
            if pattern.shape[0] not in (1, n) or tuple(pattern.shape[-2:]) not in ((size, size), (fewer, size)):
                raise DoesNotApply(
                    f"the attention has {pattern.shape[-2]} queries and {pattern.shape[-1]} keys for {size} tokens; "
                    "prefix matching needs a query and a key at every token"
                )
            key = ("visible", site.layer, size, pattern.device)
            visible = context.constant(key, lambda: context.visible_keys(site.layer, size, size).to(pattern.device))
            parts = found.setdefault(site, [])
            if queries is None:
                parts.append(read(pattern, visible, 0))
            elif pattern.shape[-2] == fewer:
                parts.append(read(pattern, visible[queries[len(parts)]], len(parts)))
            else:
                parts += [read(pattern[:, :, rows], visible[rows], block) for block, rows in enumerate(queries)]

        return hook_function

    hooks = [(site.name, read_at(site)) for site in context.sites(PATTERN)]
    try:
        context.read_inputs(tokens, hooks, rows)
    except DoesNotApply:
        raise
    except Exception as error:
        raise DoesNotApply(NOT_ON_TOKENS) from error
    return found
