"""n-gram models: the loss of predicting from the last n - 1 tokens alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
NAMES = ("unigram", "bigram", "trigram")


def ngram_losses(train: Tensor, held_out: Tensor, d_vocab: int) -> dict[str, float]:
    """Returns the mean of -log P_n in nats over `held_out`, by name, for n = 1, 2, 3; both texts are int64 [token].

    P_n is estimated on `train` with Witten and Bell's smoothing, which has no parameter. c are counts, and N(h) is the
    number of different tokens that follow h:

        P_n(x | h) = (c(h x) + N(h) P_{n-1}(x | h')) / (c(h) + N(h)),   P_0 = 1 / d_vocab,

    where h' is h without its first token. After an h that never occurred, P_n is P_{n-1}. The first two tokens of
    `held_out` are context only, so that all n are evaluated on the same tokens.
    """
    seen, asked = train.numpy(), held_out.numpy()
    longest = len(NAMES)
    probability = np.full(len(asked) - longest + 1, 1 / d_vocab)  # P_0 of each evaluated token
    losses = {}
    for n, name in enumerate(NAMES, start=1):
        grams, count = np.unique(codes(seen, n, d_vocab), return_counts=True)
        contexts, first = np.unique(grams // d_vocab, return_index=True)
        followers = np.diff(first, append=len(grams))  # N(h)
        total = np.add.reduceat(count, first)  # c(h)
        gram = codes(asked, n, d_vocab)[longest - n :]
        c_h, n_h = (look_up(contexts, values, gram // d_vocab) for values in (total, followers))
        smoothed = (look_up(grams, count, gram) + n_h * probability) / np.maximum(c_h + n_h, 1)
        probability = np.where(c_h > 0, smoothed, probability)
        losses[name] = float(-np.log(probability).mean())
    return losses


def codes(tokens: Integers, n: int, d_vocab: int) -> Integers:
    """Returns each n-gram of `tokens` as one number, [len(tokens) - n + 1]: its tokens are digits in base `d_vocab`."""
    code = np.zeros(len(tokens) - n + 1, dtype=np.int64)
    for i in range(n):
        code = code * d_vocab + tokens[i : len(tokens) - n + 1 + i]
    return code


def look_up(keys: Integers, values: NDArray[Any], asked: Integers) -> NDArray[Any]:
    """Returns the value of each key in `asked`, and 0 for a key that is missing; `keys` are sorted."""
    index = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return np.where(keys[index] == asked, values[index], 0)
