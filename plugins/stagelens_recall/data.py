"""The recall task (2.1): a random map from permutations to responses, written out, and one permutation asked for again.

A sequence of order 2 with two responses, as `as_text` shows it:

    01A 10B | 10? B

Tokens 0..k-1 are the symbols that are permuted, k..k+|R|-1 the responses. The context holds every permutation once, in
lexicographic order, each followed by its response; the query comes last. Counted from the end of a block, token i of
permutation pi_t is pi_(t,k-i), for i = 1..k.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from math import factorial

import torch
from torch import Tensor

MOST_BYTES = 2**30  # that a task may need for what grows with the permutations


def all_permutations(order: int) -> Tensor:
    """pi_1..pi_{k!} in lexicographic order, int64 [k!, k]."""
    return _permutations(order).clone()


@lru_cache(maxsize=8)
def _permutations(order: int) -> Tensor:
    return torch.tensor(list(permutations(range(order))), dtype=torch.int64)


def context_length(order: int) -> int:
    """l = (k+1)! + k: every permutation with its response, and the query."""
    return factorial(order + 1) + order


def sample_sequences(order: int, responses: int, n: int, generator: torch.Generator) -> Tensor:
    """n sequences with the response that is asked for as the last token, int64 [n, l + 1].

    The map f is uniform over all maps from permutations to responses, the query q uniform over permutations.
    """
    context = all_permutations(order)  # [k!, k]
    f = order + torch.randint(responses, (n, len(context)), generator=generator)  # [n, k!]
    asked = torch.randint(len(context), (n,), generator=generator)
    blocks = torch.cat([context.expand(n, -1, -1), f[..., None]], dim=-1)  # [n, k!, k + 1]
    return torch.cat([blocks.flatten(1), context[asked], f.gather(1, asked[:, None])], dim=-1)


def queries_of(sequences: Tensor, order: int) -> Tensor:
    """q [n, k] of sequences [n, l + 1]."""
    return sequences[:, -order - 1 : -1]


def maps_of(sequences: Tensor, order: int) -> Tensor:
    """f(pi_t) as tokens [n, k!] of sequences [n, l + 1]."""
    return sequences[:, order : -order - 1 : order + 1]


def is_response(sequences: Tensor, order: int) -> Tensor:
    """bool [n, l]: which keys of the sequence hold a response."""
    return sequences[:, :-1] >= order


def matching(queries: Tensor, matched: tuple[int, ...]) -> Tensor:
    """bool [n, k!]: the permutations that agree with q [n, k] in the tokens `matched`, counted 1..k from the end."""
    order = queries.shape[-1]
    places = [order - i for i in matched]
    context = _permutations(order).to(queries.device)
    return (context[None, :, places] == queries[:, None, places]).all(-1)


def recall_reference(queries: Tensor, matched: tuple[int, ...]) -> Tensor:
    """Log-probabilities [n, k!] of recalling each permutation's response: even over those that match in `matched`."""
    agree = matching(queries, matched).float()
    return (agree / agree.sum(-1, keepdim=True)).log()


def response_reference(sequences: Tensor, order: int, outcomes: int, matched: tuple[int, ...]) -> Tensor:
    """The partial predictor f^N (A.4): log of how often each token [n, outcome] answers a permutation that matches."""
    agree = matching(queries_of(sequences, order), matched).float()  # [n, k!]
    counts = agree.new_zeros(len(sequences), outcomes).scatter_add(1, maps_of(sequences, order), agree)
    return (counts / agree.sum(-1, keepdim=True)).log()


def as_text(sequence: Tensor, order: int) -> str:
    """One sequence [l + 1] for people: blocks, a bar, the query with a question mark, and the answer."""
    names = [str(t) if t < order else chr(ord("A") + t - order) for t in sequence.tolist()]
    *context, answer = names
    blocks = ["".join(context[i : i + order + 1]) for i in range(0, len(context) - order, order + 1)]
    return f"{' '.join(blocks)} | {''.join(context[-order:])}? {answer}"


def refuse_above(what: str, needed: int, order: int) -> None:
    """Raises ValueError where `needed` bytes are too many, with how many permutations there are."""
    if needed > MOST_BYTES:
        raise ValueError(
            f"order {order} has {factorial(order):,} permutations, for which {what} takes about "
            f"{needed / 2**30:.3g} GiB, more than {MOST_BYTES / 2**30:.3g} GiB; give a smaller order"
        )
