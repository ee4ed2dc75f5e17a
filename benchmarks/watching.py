"""Measures the cost of watching a Hugging Face model, in training steps and in forward passes.

Hooks are removed after each measurement, so a training step should cost the same as without them. A measurement of all
default probes should cost at most four plain forward passes over the same batch.
"""

from __future__ import annotations

import sys

import torch
from benchmarks.measure import Row, in_turns, ratio, report
from transformers import GPT2Config, GPT2LMHeadModel

import stagelens as sl

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB, BATCH = 4, 8, 256, 128, 1000, 16


def build() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "vocab_size": VOCAB, "n_positions": CONTEXT}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


class Training:
    """One training step at a time, on one batch."""

    def __init__(self, model: GPT2LMHeadModel, tokens: torch.Tensor) -> None:
        self.model, self.tokens = model.train(), tokens
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()
        self.optimizer.step()


def main() -> int:
    tokens = torch.randint(VOCAB, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(0))
    plain, watched = Training(build(), tokens), Training(build(), tokens)
    recorder = sl.Recorder(watched.model, batch=tokens)
    recorder.measure(0)
    model = build().eval()
    measured = sl.Recorder(model, batch=tokens)
    measured.measure(0)

    def forward() -> None:
        with torch.no_grad():
            model(tokens)

    times = in_turns(
        {"plain": plain.step, "watched": watched.step, "forward": forward, "measured": lambda: measured.measure(1)},
        repeats=15,
    )
    return report(
        __file__,
        [
            Row("a training step of a watched model / of a plain one", ratio(times, "watched", "plain"), 1.02),
            Row("a measurement of all default probes / a forward pass", ratio(times, "measured", "forward"), 4.0),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
