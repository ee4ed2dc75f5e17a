"""Trains a small Llama on English text with the Hugging Face Trainer, and saves checkpoints.

    python docs/examples/induction/train.py my_training
    stagelens probe my_training --text my_training/held_out.txt --length 128 --name induction

The text is the reference manual of the Python language, which comes with every Python (`pydoc_data.topics`). The last
tenth of it is held out. A token is a character.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

HELD_OUT = 0.1  # fraction of the text
LENGTH = 64  # tokens in a training sequence


def train(folder: Path, steps: int, save_every: int, width: int = 128, seed: int = 0) -> None:
    """Trains a model and writes `checkpoint-N/` into `folder`, with the tokenizer and the held-out text."""
    text = "\n".join(text for _, text in sorted(topics.items()))
    cut = int(len(text) * (1 - HELD_OUT))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "held_out.txt").write_text(text[cut:], encoding="utf-8")
    tokenizer = make_tokenizer(text)
    tokens = torch.tensor(tokenizer(text[:cut], verbose=False)["input_ids"])
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2 * LENGTH,
            initializer_range=0.05,
            pad_token_id=0,
        )
    )
    model.save_pretrained(folder / "checkpoint-0")
    tokenizer.save_pretrained(folder / "checkpoint-0")
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=save_every,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=min(50, steps // 10),
        adam_beta2=0.98,
        seed=seed,
        save_only_model=True,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Windows(tokens), processing_class=tokenizer).train()


class Windows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """All windows of `LENGTH` tokens of a text. In three of four windows the text repeats after 8 to 20 tokens."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens) - LENGTH

    def __getitem__(self, start: int) -> dict[str, torch.Tensor]:
        window = self.tokens[start : start + LENGTH].clone()
        if start % 4:
            size = int(torch.randint(LENGTH // 8, LENGTH // 3, (), generator=torch.Generator().manual_seed(start)))
            window = window[:size].repeat(LENGTH // size + 1)[:LENGTH]
        return {"input_ids": window, "labels": window}


def make_tokenizer(text: str) -> Any:
    """Returns a tokenizer with a token for each character of `text`."""
    vocabulary = {token: number for number, token in enumerate(["[PAD]", *sorted({*text})])}
    made = Tokenizer(models.BPE(vocabulary, merges=[]))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]")  # nosec B106  # no password


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train(given.folder, given.steps, given.save_every, seed=given.seed)
