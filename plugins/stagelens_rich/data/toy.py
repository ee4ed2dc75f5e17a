"""Sequences of independent tokens and the mixed target (Eq. 2): a 4-gram and an in-context 2-gram.

The paper counts positions from 1, the code from 0: `x[:, -3]` is x_(L-2).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from stagelens import Group
from stagelens_rich.theory import Tokens


def sample_tokens(n: int, L: int, D: int, tokens: Tokens, generator: torch.Generator) -> Tensor:
    """Returns n sequences of independent tokens, [n, L, D]: standard normal, or +1 and -1 with equal probability."""
    if tokens == "gaussian":
        return torch.randn(n, L, D, generator=generator)
    return 2.0 * torch.randint(0, 2, (n, L, D), generator=generator) - 1.0


def induction_head(x: Tensor, score: float) -> Tensor:
    """Returns f_IH2(x) [n, D] of x [n, L, D]: sum_s x_s sm(score x_L . x_(s-1)), s = 2..L-1 (Eq. 1)."""
    scores = score * (x[:, :-2] * x[:, -1:]).sum(-1)  # [n, L - 2]
    attended: Tensor = (scores.softmax(-1)[..., None] * x[:, 1:-1]).sum(1)
    return attended


def mixed_target(x: Tensor, alpha_star: float, score: float) -> Tensor:
    """Returns f*(x) [n, 2, D] of x [n, L, D]: the weighted 4-gram x_(L-2) and induction head (Eq. 2)."""
    parts = torch.stack([alpha_star * x[:, -3], induction_head(x, score)], dim=1)
    return parts / (1 + alpha_star)


def best_match(x: Tensor) -> Tensor:
    """Returns bool [n, 1, L] of x [n, L, D]: the token after the one with the largest dot product with the last token.

    It is the token that f_IH2 weights most. Boolean tokens may have several.
    """
    scores = (x[:, :-2] * x[:, -1:]).sum(-1)  # [n, L - 2], of the tokens before s = 2..L-1
    found = torch.zeros_like(x[:, :, 0], dtype=torch.bool)
    found[:, 1:-1] = scores == scores.amax(-1, keepdim=True)
    return found[:, None]


INDUCTION_TARGET = Group(mask=best_match, layers=(1,))


def mixed_groups() -> dict[str, Group]:
    """Returns the token before the query, through which head (2,1) reads x_(L-2), and the induction target."""
    return {"previous": Group(offsets=(1,)), "induction target": INDUCTION_TARGET}


# The attention of both layers as functions of their parameters, for masks, probes and the flow


def visible_in_first(n_query: int, L: int) -> Tensor:
    """Returns bool [query, key]: each query sees the tokens before it (Eq. 5). The last query is at token L."""
    position = torch.arange(L)
    return position[None, :] < position[L - n_query :, None]


def visible_in_second(n_query: int, L: int) -> Tensor:
    """Returns bool [query, key]: every query sees s = 2..L-1 (Eq. 6). The model has one query, the last."""
    position = torch.arange(L)
    return ((position > 0) & (position < L - 1)).expand(n_query, L)


def visible_keys(layer: int | None, n_query: int, n_key: int) -> Tensor:
    """Returns bool [query, key]: the keys that the queries of a layer see, for the probes."""
    return visible_in_second(n_query, n_key) if layer == 1 else visible_in_first(n_query, n_key)


def additive_mask(visible: Tensor) -> Tensor:
    """Returns what is added to the scores: 0 for visible keys, -inf for masked keys."""
    return torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)


def first_pattern(p: Tensor, L: int) -> Tensor:
    """Returns the first layer's attention for p(1,1) = p, [1, 1, query, key], as `PreviousAttention` has it."""
    behind = torch.arange(L)[1:, None] - 1 - torch.arange(L)  # [query 2..L, key]
    scores = additive_mask(visible_in_first(L - 1, L)) - p * behind.clamp(min=0)
    return pad(scores.softmax(-1), (0, 0, 1, 0))[None, None]


def second_pattern(p: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Returns the second layer's attention for p and v = w_Q w_K on tokens x [n, L, 1], [n, head, 1, key].

    The first layer has learned, so the key of x_s is x_(s-1).
    """
    by_token = v * pad(x[:, :-1, 0] * x[:, -1], (1, 0))  # [n, key]
    by_position = (-p * torch.arange(x.shape[1] - 2, -2, -1)).expand_as(by_token)
    scores = torch.stack([by_position, by_token], dim=1) + additive_mask(visible_in_second(1, x.shape[1]))
    return scores.softmax(-1)[:, :, None]
