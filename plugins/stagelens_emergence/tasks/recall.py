"""Key-value recall by a transformer (3, C)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens import Schedule
from stagelens.base import derive
from stagelens.models import HookedRootModule
from stagelens_emergence.config import SOURCES, TABLE_1, KeyValueConfig
from stagelens_emergence.data.transformers import KeyValueBatch, KeyValueEvalBatch, sample_recall
from stagelens_emergence.model import build_causal
from stagelens_emergence.tasks.transformers import TransformerTask


class KeyValueRecall(TransformerTask):
    """A transformer sees keys with their values, then one of the keys, and returns the value of that key.

    `loss` and `accuracy` are measured on sequences without repetition, as in Figs. 4 and 5. The probe `key_value`
    measures both on the training distribution.
    """

    id = "emergence/recall"
    title = "key-value recall: an induction head emerges, and repetition accelerates it"
    Config = KeyValueConfig
    presets = {
        "quick": {},
        "paper": TABLE_1 | {"pairs": 32, "tokens": 256, "layers": 4, "norm": True, "steps": 50_000},
    }
    sources = SOURCES | {
        "Fig. 17": ("pairs", "tokens"),
        "section 3.2; Table 1 has none": ("norm",),
        "a guess: D.3's largest number of steps": ("steps",),
    }
    probes = ("key_value",)

    def build_model(self) -> HookedRootModule:
        c = self.config
        model: HookedRootModule = build_causal(c, 2 * c.pairs + 1, derive(self.seed, "init"), d_vocab=c.tokens)
        return model

    def sample(self, n: int, generator: torch.Generator) -> KeyValueEvalBatch:
        """Draws n test sequences without repetition, and n sequences of the training distribution."""
        test = sample_recall(n, self.config.pairs, self.config.tokens, generator)
        return KeyValueEvalBatch(*test, *self.sample_train(n, generator))

    def sample_train(self, n: int, generator: torch.Generator) -> KeyValueBatch:
        """Draws n training sequences: with B and p."""
        c = self.config
        return sample_recall(n, c.pairs, c.tokens, generator, B=c.B, p=c.p)

    def loss(self, model: HookedRootModule, batch: KeyValueEvalBatch | KeyValueBatch) -> Tensor:
        """Returns the cross-entropy of the answer, read at the query."""
        return cross_entropy(self.answers(model, batch.tokens)[:, -1], batch.answer)

    def metrics(self, output: Tensor, batch: KeyValueEvalBatch | KeyValueBatch) -> dict[str, Tensor]:
        return {"accuracy": (output[:, -1].argmax(-1) == batch.answer).float().mean()}

    def schedule(self) -> Schedule:
        return Schedule(log=5, even=50, refine=1)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_emergence.figures.transformers import fig17

        return {"fig17": fig17(run)}
