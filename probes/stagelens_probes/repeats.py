"""Random sequences in which a segment repeats, and the attention that follows the repetition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stagelens.base import generator

SEQUENCES = 8  # number of sequences, by default
LONGEST = 64  # positions of a sequence, at most
LARGE = 2**24  # parameters of a model whose passes are costly
FEW = 32  # positions of a sequence for such a model
SHORTEST = 7  # positions of a context, at least: one of filler, and twice a segment of length 2 or 3
FEWEST_TOKENS = 4  # size of the vocabulary, at least: a segment of 3 tokens, and one token of filler
ONE_SEQUENCE = "the batch is one sequence: there is no spread over sequences"
SCORES = ("prefix_matching", "previous_token", "duplicate_token")


@dataclass(frozen=True)
class Repeats:
    """Sequences [filler, segment, segment, filler], each with its own segment length and offset."""

    tokens: Tensor  # int [sequence, position]
    length: Tensor  # int [sequence], the length S of the segment
    offset: Tensor  # int [sequence], the position at which the segment starts

    def to(self, device: torch.device) -> Repeats:
        return Repeats(self.tokens.to(device), self.length.to(device), self.offset.to(device))


def repeated_tokens(d_vocab: int, n_ctx: int, seed: int = 0, sequences: int = SEQUENCES) -> Repeats:
    """Returns sequences of min(n_ctx, 64) random tokens, each with a segment of S tokens twice in a row.

    The longest S is the one that fits into the context and the vocabulary. S takes all lengths from half of it on, each
    about equally often, in random order. The offset is uniform and at least 1, because many heads attend to position 0
    for any token. The tokens of a segment are distinct and do not occur in the filler, so that each token of
    the second copy occurred exactly once before.
    """
    size = min(n_ctx, LONGEST)
    longest = min((size - 1) // 2, d_vocab - 1)
    stream = generator(seed, "induction")
    choices = torch.arange(max(2, longest // 2), longest + 1)
    choices = choices[torch.randperm(len(choices), generator=stream)]
    length = choices.repeat(-(-sequences // len(choices)))[:sequences]
    rows, offsets = [], []
    for S in length.tolist():
        order = torch.randperm(d_vocab, generator=stream)
        segment, rest = order[:S], order[S:]
        filler = [rest[torch.randperm(len(rest), generator=stream)] for _ in range(-(-(size - 2 * S) // len(rest)))]
        filled = torch.cat(filler)[: size - 2 * S]
        offset = int(torch.randint(1, size - 2 * S + 1, (), generator=stream))
        rows.append(torch.cat([filled[:offset], segment, segment, filled[offset:]]))
        offsets.append(offset)
    return Repeats(torch.stack(rows), length, torch.tensor(offsets))


def asked_keys(repeats: Repeats) -> Tensor:
    """Returns the weight of each query's attention to each key in each score, [sequence, score, query, key].

    Each score is a mean over queries of the attention to one key. The token of a query q in the second copy occurred
    at q - S. Prefix matching is the attention to q - S + 1, the token after it. Duplicate token is the attention to
    q - S. Previous token is the attention of every query but the first to q - 1.
    """
    position = torch.arange(repeats.tokens.shape[1], device=repeats.tokens.device)
    S, start = repeats.length[:, None], (repeats.offset + repeats.length)[:, None]
    second = (position >= start) & (position < start + S)  # [sequence, query]
    queries = torch.stack([second, (position >= 1).expand_as(second), second], dim=1)  # [sequence, score, query]
    lags = torch.stack([S - 1, torch.ones_like(S), S], dim=1)  # [sequence, score, 1]
    keys = position == (position - lags)[..., None]  # [sequence, score, query, key]
    return (keys & queries[..., None]) / queries.sum(-1)[..., None, None].double()


def sequence_scores(weights: Tensor, asked: Tensor) -> Tensor:
    """Returns the three `SCORES` of each head, [sequence, head, score].

    `weights` is [sequence or 1, head, query, key], and `asked` is what `asked_keys` returns.
    """
    return weights.flatten(2) @ asked.flatten(2).mT


def chance(visible: Tensor, asked: Tensor) -> Tensor:
    """Returns the scores, [score], of a head that attends uniformly to its `visible` keys, 0 or 1 [query, key]."""
    uniform = visible / visible.sum(-1, keepdim=True).clamp(min=1)
    return sequence_scores(uniform[None, None], asked).mean((0, 1))


def mean_and_error(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean of `scores` [sequence, ...] over sequences and its standard error, each [...]."""
    return scores.mean(0), scores.std(0) / len(scores) ** 0.5
