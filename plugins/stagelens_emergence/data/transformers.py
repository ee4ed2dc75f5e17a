"""The sequences of both transformer tasks, drawn for a whole batch at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stagelens_emergence.config import REPEATED
from stagelens_emergence.data.toy import with_repeated


class RegressionBatch(NamedTuple):
    """Single-location regression (B.1): n sequences in which one token determines the target."""

    x: Tensor  # [n, T, d], or [n, T, d + 1] with the relevance feature last
    y: Tensor  # [n, d]
    relevant: Tensor  # bool [n, T]: the B positions of the relevant token


class KeyValueBatch(NamedTuple):
    """Key-value recall (C.1): n sequences k1 v1 k2 v2 ... q, and the value of the key q."""

    tokens: Tensor  # int64 [n, 2 N + 1]
    answer: Tensor  # int64 [n]


class KeyValueEvalBatch(NamedTuple):
    """n sequences without repetition for evaluation, and n sequences of the training distribution."""

    tokens: Tensor
    answer: Tensor
    train_tokens: Tensor
    train_answer: Tensor


def sample_positions(n: int, T: int, B: int, generator: torch.Generator) -> Tensor:
    """Draws B different positions per row, uniformly: bool [n, T]."""
    chosen = torch.rand(n, T, generator=generator).topk(B).indices
    return torch.zeros(n, T, dtype=torch.bool).scatter_(1, chosen, True)


def sample_regression(
    n: int, W: Tensor, relevant: Tensor, generator: torch.Generator, *, p: float = 0.0, feature: bool = True
) -> RegressionBatch:
    """Draws tokens N(0, I/d), puts the relevant token x at the positions `relevant` [n, T], and sets y = W x (Eq. 1).

    With probability `p`, x is the repeated token. With `feature`, each token has one more entry: 1 if it is relevant.
    """
    d, T = len(W), relevant.shape[1]
    repeated = torch.rand(n, generator=generator) < p
    token = with_repeated(torch.randn(n, d, generator=generator) / d**0.5, repeated)
    x = torch.where(relevant[..., None], token[:, None], torch.randn(n, T, d, generator=generator) / d**0.5)
    if feature:
        x = torch.cat([x, relevant[..., None].to(x.dtype)], dim=-1)
    return RegressionBatch(x, token @ W.T, relevant)


def relevant_keys(batch: RegressionBatch) -> Tensor:
    """Returns bool [n, query, key]: the positions of the relevant token, which are the same for every query."""
    return batch.relevant[:, None].expand(-1, batch.relevant.shape[1], -1)


def sample_recall(
    n: int, pairs: int, tokens: int, generator: torch.Generator, *, B: float | None = None, p: float = 0.0
) -> KeyValueBatch:
    """Draws n sequences of key-value recall (C.1): `pairs` keys with their values, then the query.

    The query is one of the first two tokens with probability `p`, else any token. With `B` None it is the key of
    exactly one pair: the test distribution without repetition. Otherwise it is the key of each pair with probability
    B / pairs, so B times on average and sometimes never. The other keys are drawn without replacement.
    """
    often = torch.rand(n, 1, generator=generator) < p
    query = torch.where(
        often, torch.randint(REPEATED, (n, 1), generator=generator), torch.randint(tokens, (n, 1), generator=generator)
    )
    value_of = torch.rand(n, tokens, generator=generator).argsort(-1)  # an injective map: one permutation per row
    if B is None:
        is_query = sample_positions(n, pairs, 1, generator)  # [n, pair]
    else:
        is_query = torch.rand(n, pairs, generator=generator) < B / pairs
    others = torch.rand(n, tokens, generator=generator).scatter_(1, query, 2.0).argsort(-1)  # the query comes last
    index = ((~is_query).cumsum(1) - 1).clamp(min=0)  # [n, pair]: number of other keys before this one
    keys = torch.where(is_query, query, others.gather(1, index))
    context = torch.stack([keys, value_of.gather(1, keys)], dim=-1).flatten(1)  # [n, 2 pairs]
    return KeyValueBatch(torch.cat([context, query], dim=1), value_of.gather(1, query)[:, 0])


def answering_pair(tokens: Tensor) -> Tensor:
    """Returns bool [n, pair]: the pairs of k1 v1 k2 v2 ... q [n, 2 N + 1] whose key is the query."""
    return tokens[:, :-1:2] == tokens[:, -1:]
