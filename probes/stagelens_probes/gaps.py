"""Random tokens that repeat after short and long gaps, for contexts of more than 128 positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stagelens.base import generator
from stagelens_probes.token_pass import attention

SHORT = 128  # contexts up to this length are covered by `prefix_matching`
MOST_TOKENS = 1024  # tokens of all sequences together; one sequence may have more
FEWEST_TOKENS = 64  # size of the vocabulary, at least
PARTS = 16  # parts of the context, after its first token
COPIES = ((7, 8), (5, 9), (3, 11), (0, 15))  # the parts in which the two copies of a segment start
RUN = 2  # tokens that stay together when a segment repeats


@dataclass(frozen=True)
class Gapped:
    """Sequences in which four segments of tokens repeat, each after another gap.

    The second copy has the runs of the first in reverse order. So each run has its own gap around the nominal one,
    and a head that attends to a fixed distance matches at most one run.
    """

    tokens: Tensor  # int [sequence, position]
    gaps: list[int]  # the nominal gap of each segment
    query: Tensor  # int [gap, token]: the positions of the second copy
    key: Tensor  # int [gap, token]: the position after the first occurrence of the same token

    def to(self, device: torch.device) -> Gapped:
        return Gapped(self.tokens.to(device), self.gaps, self.query.to(device), self.key.to(device))


def gapped_tokens(d_vocab: int, size: int, sequences: int, seed: int = 0) -> Gapped:
    """Returns sequences of `size` > 128 tokens. The four segments repeat after 1, 4, 8 and 15 sixteenths of them.

    The first token belongs to no segment, because many heads always attend to it. The tokens of all segments
    are distinct and do not occur elsewhere. Other positions have random tokens.
    """
    part = (size - 1) // PARTS
    length = min(part, d_vocab // 2 // len(COPIES)) // RUN * RUN  # tokens of a segment
    within = torch.arange(length)
    back = within.reshape(-1, RUN).flip(0).flatten()  # the token of the first copy at each position of the second
    first, second = (torch.tensor(starts) * part + 1 for starts in zip(*COPIES, strict=True))  # [gap]
    stream = generator(seed, "induction", "gaps")
    rows = []
    for _ in range(sequences):
        order = torch.randperm(d_vocab, generator=stream)
        segments, rest = order[: length * len(COPIES)].reshape(len(COPIES), length), order[length * len(COPIES) :]
        row = rest[torch.randint(len(rest), (size,), generator=stream)]
        row[first[:, None] + within] = segments
        row[second[:, None] + within] = segments[:, back]
        rows.append(row)
    gaps = [(b - a) * part for a, b in COPIES]
    return Gapped(torch.stack(rows), gaps, second[:, None] + within, first[:, None] + back + 1)


def run_scores(pattern: Tensor, visible: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the attention to the keys of one gap, [run, head], runs of all sequences, and its chance, a scalar.

    `pattern` [sequence or 1, head, token, key] and `visible` bool [token, key] are at the queries of that gap, and
    `key` int [token] are its keys, as in `Gapped`.
    """
    rows = attention(pattern, visible)
    found = rows.gather(-1, key[:, None].expand(*rows.shape[:2], -1, 1))[..., 0]  # [sequence, head, token]
    runs = found.reshape(*found.shape[:2], -1, RUN).mean(-1)  # [sequence, head, run]
    uniform = visible.gather(-1, key[:, None])[:, 0] / visible.sum(-1)  # [token]
    return runs.transpose(1, 2).flatten(0, 1), uniform.mean()
