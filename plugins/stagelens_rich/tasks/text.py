"""A standard transformer on natural language (B.1, Fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stagelens import Prediction, Schedule, Task, TrainingPhase
from stagelens.models import HookedRootModule
from stagelens_rich.config import TextConfig
from stagelens_rich.data.corpus import WIKITEXT, Corpus, load_corpus, stretches
from stagelens_rich.data.ngrams import ngram_losses
from stagelens_rich.losses import next_token_loss

WIKITEXT_TOKENS, WIKITEXT_WORDS = 2_088_628, 33_278  # tokens of wikitext-2's training part, and different ones
PARTS = {  # the parameters of the model, as patterns
    "dot-products": tuple(f"blocks.*.attn.{name}" for name in ("W_K", "W_Q", "b_K", "b_Q")),
    "positions": ("blocks.*.attn.alibi_slope",),
    "the rest": (
        *("embed.*", "unembed.*", "ln_final.*", "blocks.*.ln*", "blocks.*.mlp.*"),
        *(f"blocks.*.attn.{name}" for name in ("W_V", "W_O", "b_V", "b_O")),
    ),
}


class Text(Task):
    """Two layers of two heads with learnable ALiBi slopes, layer norms and MLPs; plain SGD on the cross-entropy."""

    id = "rich/text"
    title = "a two-layer transformer with learnable ALiBi slopes on natural language"
    Config = TextConfig
    presets = {
        "quick": {"steps": 800, "batch_size": 16, "lr": 0.4, "eval_size": 64},
        "paper": {
            "corpus": WIKITEXT,
            "vocab": WIKITEXT_WORDS,
            "L": 200,
            "D": 128,
            "W": 512,
            "batch_size": 32,
            "lr": 0.1,
            "own_token": False,
            "steps": 1500 * (WIKITEXT_TOKENS // (200 * 32)),
            "eval_size": 32,
        },
    }
    sources = {
        "B.1": ("corpus", "vocab", "L", "D", "W", "sigma_init", "batch_size", "lr"),
        "B.1: 1,500 epochs": ("steps",),
        "section 2: R_ij = -infinity for i <= j": ("own_token",),
        "ours": ("eval_size",),
    }
    probes = ("position_norms",)

    @cached_property
    def corpus(self) -> Corpus:
        c = self.config
        return load_corpus(c.corpus, c.vocab, c.L + 1)

    def build_model(self) -> HookedRootModule:
        from stagelens.models import build_transformer  # needs TransformerLens 3

        c = self.config
        return build_transformer(
            n_layers=2,
            n_heads=2,
            d_model=c.D,
            d_mlp=c.W,
            n_ctx=c.L,
            d_vocab=len(self.corpus.words),
            positions="alibi",
            alibi_slope=c.sigma_init,
            own_token=c.own_token,
            init_scale=c.sigma_init / (0.8 / c.D**0.5),  # scale 1 has this standard deviation
            seed=self.seed,
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns stretches of the held-out text, [n, L + 1], for evaluation and probes."""
        return stretches(self.corpus.held_out, self.config.L + 1, n, generator)

    def sample_train(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns stretches of the training text, [n, L + 1]."""
        return stretches(self.corpus.train, self.config.L + 1, n, generator)

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """Returns the cross-entropy of the next token, in nats."""
        return next_token_loss(model(batch[:, :-1]), batch)

    def phases(self) -> Sequence[TrainingPhase]:
        c = self.config
        if c.frozen == "none":
            return super().phases()
        trained = tuple(name for part, names in PARTS.items() if part != c.frozen for name in names)
        return [TrainingPhase(f"{c.frozen} frozen", c.steps, trained)]

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.lr)

    @cached_property
    def ngrams(self) -> dict[str, float]:
        """The losses of n-gram models on the held-out text, by name."""
        return ngram_losses(self.corpus.train, self.corpus.held_out, len(self.corpus.words))

    def predictions(self) -> Sequence[Prediction]:
        """Returns the losses of n-gram models, the levels of a lazy learner."""
        reference = "estimated on the training text, Witten-Bell smoothing, held-out text"
        return [Prediction(name, "level", loss, reference) for name, loss in self.ngrams.items()]

    def schedule(self) -> Schedule:
        return Schedule(log=30, even=60)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_rich.figures.text import positions_first

        return {"positions_first": positions_first(run)}
