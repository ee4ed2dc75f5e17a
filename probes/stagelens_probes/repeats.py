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
    whatever its token is. The tokens of a segment are distinct and do not occur in the filler, so that each token of
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


def sequence_scores(weights: Tensor, repeats: Repeats) -> Tensor:
    """Returns the three `SCORES` of each head, [sequence, head, score], from weights [sequence, head, query, key].

    Each score is a mean over queries of the attention to one key. The token of a query q in the second copy occurred at
    q - S. Prefix matching is the attention to q - S + 1, the token after it; duplicate token is that to q - S.
    Previous token is the attention of every query but the first to q - 1.
    """
    size = weights.shape[-1]
    position = torch.arange(size, device=weights.device)
    S, start = repeats.length[:, None], (repeats.offset + repeats.length)[:, None]
    second = (position >= start) & (position < start + S)  # [sequence, query]
    before = (position >= 1).expand_as(second)
    asked = ((second, position - S + 1), (before, (position - 1).expand_as(second)), (second, position - S))
    scores = []
    for queries, key in asked:
        index = key.clamp(0, size - 1)[:, None, :, None].expand(*weights.shape[:-1], 1)
        attention = weights.gather(-1, index)[..., 0]  # [sequence, head, query]
        counted = queries[:, None].to(weights.dtype)
        scores.append((attention * counted).sum(-1) / counted.sum(-1))
    return torch.stack(scores, dim=-1)


def chance(visible: Tensor, repeats: Repeats) -> Tensor:
    """Returns the scores, [score], of a head that attends uniformly to its `visible` keys, bool [query, key]."""
    uniform = visible.float() / visible.sum(-1, keepdim=True).clamp(min=1)
    return sequence_scores(uniform.expand(len(repeats.tokens), 1, *visible.shape), repeats).mean((0, 1))


def mean_and_error(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean of `scores` [sequence, ...] over sequences and its standard error, each [...]."""
    return scores.mean(0), scores.std(0) / len(scores) ** 0.5
