"""The data of both transformer tasks, drawn for a whole batch at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

REPEATED = 2  # tokens that cross-sample repetition asks for more often (3.1)


class Located(NamedTuple):
    """Single-location regression (B.1): `n` sequences in which one token decides the target."""

    x: Tensor  # [n, T, d], or [n, T, d + 1] with the relevance feature last
    y: Tensor  # [n, d]
    relevant: Tensor  # bool [n, T]: where the relevant token stands, B times


class Recalled(NamedTuple):
    """Key-value recall (C.1): `n` sequences k1 v1 k2 v2 ... q, and the value that q asks for."""

    tokens: Tensor  # int64 [n, 2 N + 1]
    answer: Tensor  # int64 [n]


class Examined(NamedTuple):
    """Sequences without repetition to evaluate on, and beside them as many of those that are trained on."""

    tokens: Tensor
    answer: Tensor
    train_tokens: Tensor
    train_answer: Tensor


def sample_places(n: int, T: int, B: int, generator: torch.Generator) -> Tensor:
    """bool [n, T] with B different places in each row, all choices alike."""
    chosen = torch.rand(n, T, generator=generator).topk(B).indices
    return torch.zeros(n, T, dtype=torch.bool).scatter_(1, chosen, True)


def sample_regression(
    n: int, W: Tensor, relevant: Tensor, generator: torch.Generator, *, p: float = 0.0, feature: bool = True
) -> Located:
    """Tokens N(0, I/d); the relevant one x stands where `relevant` [n, T] says, y = W x (Eq. 1), W [d, d].

    With probability `p`, x is x~ = e_1 (A.2). With `feature`, each token says whether it is the relevant one.
    """
    d, T = len(W), relevant.shape[1]
    repeated = torch.rand(n, generator=generator) < p
    token = torch.randn(n, d, generator=generator) / d**0.5
    token[repeated] = torch.eye(d)[0]
    x = torch.where(relevant[..., None], token[:, None], torch.randn(n, T, d, generator=generator) / d**0.5)
    if feature:
        x = torch.cat([x, relevant[..., None].to(x.dtype)], dim=-1)
    return Located(x, token @ W.T, relevant)


def sample_recall(
    n: int, pairs: int, tokens: int, generator: torch.Generator, *, B: float | None = None, p: float = 0.0
) -> Recalled:
    """Key-value recall as C.1 has it: `pairs` keys with their values, then the query.

    The query is one of the first two tokens with probability `p`, else any token. It stands at each of the `pairs`
    places with probability B / pairs, so B times on average and at times not at all; with `B` None exactly once, which
    is the test distribution without repetition. The other keys are drawn without replacement from the other tokens.
    """
    often = torch.rand(n, 1, generator=generator) < p
    query = torch.where(
        often,
        torch.randint(REPEATED, (n, 1), generator=generator),
        torch.randint(tokens, (n, 1), generator=generator),
    )
    value_of = torch.rand(n, tokens, generator=generator).argsort(-1)  # the injective map: a permutation in each row
    if B is None:
        placed = sample_places(n, pairs, 1, generator)
    else:
        placed = torch.rand(n, pairs, generator=generator) < B / pairs
    others = torch.rand(n, tokens, generator=generator).scatter_(1, query, 2.0).argsort(-1)  # the query comes last
    taken = ((~placed).cumsum(1) - 1).clamp(min=0)  # [n, pair]: how many other keys stand before this one
    keys = torch.where(placed, query, others.gather(1, taken))
    context = torch.stack([keys, value_of.gather(1, keys)], dim=-1).flatten(1)  # [n, 2 pairs]
    return Recalled(torch.cat([context, query], dim=1), value_of.gather(1, query)[:, 0])


def answering_pair(tokens: Tensor) -> Tensor:
    """bool [n, pair]: the pairs of k1 v1 k2 v2 ... q [n, 2 N + 1] whose key is the query."""
    return tokens[:, :-1:2] == tokens[:, -1:]
