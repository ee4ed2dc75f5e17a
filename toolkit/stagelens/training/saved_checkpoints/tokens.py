"""Tokens to measure checkpoints on: from a file, from a text, or random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stagelens.base import EnvironmentFault, UsageError, generator
from stagelens.training.saved_checkpoints.hugging_face import load_tokenizer
from stagelens.training.saved_checkpoints.weights import load_tensors

SEQUENCES = 16  # by default
LENGTH = 256  # positions by default, if the model has so many
RANDOM_SEED = 0  # of random tokens
CHARACTERS = 100  # that are read of a text for each token; tokens are shorter


def choose_tokens(
    loader: Any,
    model: Any,
    *,
    text: str | Path | None = None,
    batch: Tensor | str | Path | None = None,
    sequences: int | None = None,
    length: int | None = None,
) -> tuple[Tensor, str]:
    """Returns tokens [sequence, position] to measure `model` on, and a description of them."""
    if text is not None and batch is not None:
        raise UsageError("--text and --batch both say what to measure on; give one of them")
    vocabulary, context = loader.limits(model)
    if batch is not None:
        if sequences is not None or length is not None:
            raise UsageError("--sequences and --length are for --text and random tokens; a batch has its own shape")
        tokens = _checked(batch, "the given batch") if isinstance(batch, Tensor) else load_batch(Path(batch))
        source = "the given batch" if isinstance(batch, Tensor) else str(batch)
    else:
        size = length or min(LENGTH, context or LENGTH)
        if text is not None:
            tokenizer = load_tokenizer(loader.tokenizer_folders())
            tokens = tokens_of_text(Path(text), tokenizer, sequences, size)
            source = f"{text}, {len(tokens)} sequences of {size} tokens"
        else:
            tokens = random_tokens(vocabulary, sequences or SEQUENCES, size)
            source = f"random tokens, seed {RANDOM_SEED}"
    _check_fits(tokens, source, vocabulary, context)
    return tokens, source


def tokens_of_text(file: Path, tokenizer: Any, sequences: int | None, length: int) -> Tensor:
    """Returns the beginning of the text in `file` as tokens [sequence, position], without gaps.

    Without `sequences` there are as many as the text has, but at most `SEQUENCES`.
    """
    wanted = sequences or SEQUENCES
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(wanted * length * CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--text {file} cannot be read ({reason}); give a file of plain text") from None
    found = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    count = min(wanted, len(found) // length)
    if count < (sequences or 1):
        needed = f"{sequences or 1} x {length} = {(sequences or 1) * length}"
        raise UsageError(
            f"--text {file} has {len(found)} tokens, and {needed} are needed; give a longer text, or a smaller --length"
        )
    return torch.tensor(found[: count * length]).view(count, length)


def load_batch(path: Path) -> Tensor:
    """Returns tokens [sequence, position] from a file with one integer tensor, alone or under a name."""
    try:
        loaded = load_tensors(path)
    except EnvironmentFault:
        raise UsageError(
            f"--batch {path} cannot be read; give a file of safetensors or torch.save with one tensor of tokens"
        ) from None
    tensors = list(loaded.values()) if isinstance(loaded, dict) else [loaded]
    alone = len(tensors) == 1 and isinstance(tensors[0], Tensor)
    return _checked(tensors[0] if alone else None, str(path))


def random_tokens(vocabulary: int | None, sequences: int, length: int) -> Tensor:
    """Returns random tokens [sequence, position], the same ones for the same arguments."""
    if not vocabulary:
        raise UsageError("the model takes continuous inputs; give the batch to measure on with --batch")
    return torch.randint(vocabulary, (sequences, length), generator=generator(RANDOM_SEED, "probe"))


def _checked(tokens: Tensor | None, source: str) -> Tensor:
    if tokens is None or tokens.ndim != 2 or tokens.is_floating_point() or tokens.is_complex() or not tokens.numel():
        given = "" if tokens is None else f", not {tokens.dtype} {list(tokens.shape)}"
        raise UsageError(f"{source}: expected one tensor of tokens, whole numbers of shape [sequence, position]{given}")
    return tokens.long()


def _check_fits(tokens: Tensor, source: str, vocabulary: int | None, context: int | None) -> None:
    """Refuses tokens that the model does not have, and sequences longer than its context."""
    least, most = int(tokens.min()), int(tokens.max())
    if vocabulary and not 0 <= least <= most < vocabulary:
        wrong = least if least < 0 else most
        raise UsageError(f"{source}: token {wrong} is not in the model's vocabulary, 0 to {vocabulary - 1}")
    if context and tokens.shape[1] > context:
        raise UsageError(f"{source}: {tokens.shape[1]} positions, but the model has {context}; give shorter sequences")
    if tokens.shape[1] < 2:
        raise UsageError(f"{source}: sequences of {tokens.shape[1]} token; at least 2 are needed")
