"""Series of small Hugging Face models on disk, and a tokenizer for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kit.own_models import VOCAB, hugging_face

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "then",
    "it",
    "saw",
    "dog",
    "that",
    "was",
    "near",
    "to",
    "red",
    "big",
    "old",
]


def save_series(
    folder: Path, kind: str = "gpt2", steps: Sequence[int] = (0, 10, 20), name: str = "checkpoint-"
) -> Path:
    """Saves a model for each step, as the Trainer does. The step is the seed of its weights."""
    for step in steps:
        hugging_face(kind, seed=step).save_pretrained(folder / f"{name}{step}")
    return folder


def as_pickled(folder: Path) -> None:
    """Replaces the safetensors in `folder` by `pytorch_model.bin`, as older versions wrote it."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def save_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Any:
    """Saves a tokenizer of whole words; word i is token i."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*words, "[UNK]"])}
    assert len(vocabulary) <= VOCAB or words is not WORDS
    made = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    return tokenizer
