"""The recall task (2.1): a random map from permutations to responses, written out, and one permutation as the query.

A sequence of order 2, with the responses written as letters:

    01A 10B | 10? B

Tokens 0..k-1 are the symbols that are permuted; k..k+|R|-1 are the responses. The context holds every permutation
once, in lexicographic order, each followed by its response. The query comes last. Token i of permutation pi_t,
counted from the end of its block, is pi_(t,k-i), for i = 1..k.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from math import factorial

import torch
from torch import Tensor

from stagelens import Group


def all_permutations(order: int) -> Tensor:
    """Returns pi_1..pi_{k!} in lexicographic order, int64 [k!, k]."""
    return _permutations(order).clone()


@lru_cache(maxsize=8)
def _permutations(order: int) -> Tensor:
    return torch.tensor(list(permutations(range(order))), dtype=torch.int64)


def context_length(order: int) -> int:
    """Returns l = (k+1)! + k: every permutation with its response, and the query."""
    return factorial(order + 1) + order


def sample_sequences(order: int, responses: int, n: int, generator: torch.Generator) -> Tensor:
    """Returns n sequences, int64 [n, l + 1]; the last token is the response of the query.

    The map f is uniform over all maps from permutations to responses. The query q is uniform over permutations.
    """
    context = all_permutations(order)  # [k!, k]
    f = order + torch.randint(responses, (n, len(context)), generator=generator)  # [n, k!]
    asked = torch.randint(len(context), (n,), generator=generator)
    blocks = torch.cat([context.expand(n, -1, -1), f[..., None]], dim=-1)  # [n, k!, k + 1]
    return torch.cat([blocks.flatten(1), context[asked], f.gather(1, asked[:, None])], dim=-1)


def window_groups(order: int) -> dict[str, Group]:
    """Returns the tokens of the window before a response as groups of keys, counted from its end.

    They are keys of the first layer. The keys of the second layer are permutations.
    """
    return {f"token {i}": Group(positions=(-i,), layers=(0,)) for i in range(1, order + 1)}


def queries_of(sequences: Tensor, order: int) -> Tensor:
    """Returns q [n, k] of sequences [n, l + 1]."""
    return sequences[:, -order - 1 : -1]


def maps_of(sequences: Tensor, order: int) -> Tensor:
    """Returns f(pi_t) as tokens [n, k!] of sequences [n, l + 1]."""
    return sequences[:, order : -order - 1 : order + 1]


def matching(queries: Tensor, matched: tuple[int, ...]) -> Tensor:
    """Returns bool [n, k!]: the permutations that agree with q [n, k] in the tokens `matched`, 1..k from the end."""
    order = queries.shape[-1]
    columns = [order - i for i in matched]
    context = _permutations(order).to(queries.device)
    return (context[None, :, columns] == queries[:, None, columns]).all(-1)


def asked_in(queries: Tensor) -> Tensor:
    """Returns bool [n, k!]: the permutation that is the query q [n, k]."""
    return matching(queries, tuple(range(1, queries.shape[-1] + 1)))


def asked_responses(sequences: Tensor, order: int) -> Tensor:
    """Returns bool [n, 1, l]: the response of the permutation that is the query, of sequences [n, l + 1]."""
    found = torch.zeros_like(sequences[:, None, :-1], dtype=torch.bool)
    found[:, 0, order : -order : order + 1] = asked_in(queries_of(sequences, order))
    return found


def recall_reference(queries: Tensor, matched: tuple[int, ...]) -> Tensor:
    """Returns log-attention [n, k!] that is uniform over the permutations that match in `matched`."""
    agree = matching(queries, matched).float()
    return (agree / agree.sum(-1, keepdim=True)).log()


def response_reference(sequences: Tensor, order: int, outcomes: int, matched: tuple[int, ...]) -> Tensor:
    """Returns the log-probabilities [n, outcome] of the partial predictor f^N (A.4).

    Its probability of a token is the frequency of that token among the responses of matching permutations.
    """
    agree = matching(queries_of(sequences, order), matched).float()  # [n, k!]
    counts = agree.new_zeros(len(sequences), outcomes).scatter_add(1, maps_of(sequences, order), agree)
    return (counts / agree.sum(-1, keepdim=True)).log()
