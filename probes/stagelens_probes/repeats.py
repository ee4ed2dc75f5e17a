"""Random sequences in which a segment repeats, and how much attention follows the repetition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stagelens.base import generator

SEQUENCES = 8
LONGEST = 64  # positions
SHORTEST = 7  # positions: one of filler, and room for segments of two lengths, 2 and 3
FEWEST_TOKENS = 4  # of the vocabulary: a segment of 3, and one token to fill with
SCORES = ("prefix_matching", "previous_token", "duplicate_token")


@dataclass(frozen=True)
class Repeats:
    """Sequences [filler, segment, segment, filler], each with a segment length and an offset of its own."""

    tokens: Tensor  # int [sequence, position]
    length: Tensor  # int [sequence], of the segment, S
    offset: Tensor  # int [sequence], where the segment starts

    def to(self, device: torch.device) -> Repeats:
        return Repeats(self.tokens.to(device), self.length.to(device), self.offset.to(device))


def repeated_tokens(d_vocab: int, n_ctx: int, seed: int = 0) -> Repeats:
    """8 sequences of min(n_ctx, 64) random tokens, in each of which a segment of S tokens stands twice in a row.

    S runs over all lengths from half of the longest to the longest one that fits into the context and the vocabulary,
    each about equally often, in random order. The offset is uniform, and at least 1: many heads attend to position 0,
    whatever stands there. The tokens of a segment are distinct and the filler has none of them, so that each token of
    the second copy occurred exactly once before.
    """
    size = min(n_ctx, LONGEST)
    longest = min((size - 1) // 2, d_vocab - 1)
    stream = generator(seed, "induction")
    choices = torch.arange(max(2, longest // 2), longest + 1)
    choices = choices[torch.randperm(len(choices), generator=stream)]
    length = choices.repeat(-(-SEQUENCES // len(choices)))[:SEQUENCES]
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
    """weights [sequence, head, query, key] -> [sequence, head, score]: prefix matching, previous, duplicate.

    Each is a mean over queries of the attention to one key. For a query q in the second copy, whose token occurred at
    q - S, the key is q - S + 1 (what came next) or q - S (the duplicate); for every query but the first it is q - 1.
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
    """[score]: what a head scores that attends to all visible keys alike; visible: bool [query, key]."""
    uniform = visible.float() / visible.sum(-1, keepdim=True).clamp(min=1)
    return sequence_scores(uniform.expand(len(repeats.tokens), 1, *visible.shape), repeats).mean((0, 1))


def mean_and_error(scores: Tensor) -> tuple[Tensor, Tensor]:
    """scores [sequence, ...] -> their mean over sequences and its standard error, each [...]."""
    return scores.mean(0), scores.std(0) / len(scores) ** 0.5
