"""A standard transformer on natural language (B.1, Fig. 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformer_lens import HookedRootModule

from stagelens import Prediction, Schedule, Task, TaskConfig
from stagelens.base import generator
from stagelens.experiments import Config
from stagelens.models import build_transformer
from stagelens_rich.corpus import PYTHON, WIKITEXT, Corpus, load_corpus
from stagelens_rich.ngrams import ngram_losses

WIKITEXT_TOKENS = 2_088_628  # to train on


class TextConfig(TaskConfig):
    """B.1's names: context L, embedding D, FFN width W."""

    corpus: str = Field(
        PYTHON,
        min_length=1,
        description=f"a utf-8 text file, a folder of them, {WIKITEXT}, or {PYTHON}: its help texts",
    )
    vocab: int = Field(1000, ge=2, le=10**6, description="largest vocabulary, the unknown word included")
    L: int = Field(64, ge=2, description="tokens of context")
    D: int = Field(64, ge=2, description="size of the embedding")
    W: int = Field(256, ge=1, description="width of the feed-forward layers")
    sigma_init: float = Field(
        0.01, gt=0, description="standard deviation of all weights at the start, and value of all p"
    )

    @field_validator("corpus")
    @classmethod
    def _from_anywhere(cls, corpus: str) -> str:
        """A path in full, so that the run can be looked at and gone on with from another folder."""
        return corpus if corpus in (PYTHON, WIKITEXT) else str(Path(corpus).expanduser().absolute())

    @field_validator("train_size")
    @classmethod
    def _all_of_it(cls, train_size: int) -> int:
        if train_size:
            raise ValueError("the corpus is the training set; give train_size=0, and with corpus=PATH a shorter text")
        return train_size


class Text(Task):
    """Two layers of two heads with learnable ALiBi slopes, layer norms and FFNs; cross-entropy by plain SGD."""

    id = "rich/text"
    title = "a two-layer transformer with learnable ALiBi slopes on natural language"
    Config: ClassVar[type[Config]] = TextConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"steps": 800, "batch_size": 16, "lr": 0.4, "eval_size": 64},
        "paper": {
            "corpus": WIKITEXT,
            "vocab": 33278,
            "L": 200,
            "D": 128,
            "W": 512,
            "batch_size": 32,
            "lr": 0.1,
            "steps": 1500 * (WIKITEXT_TOKENS // (200 * 32)),  # 1500 epochs
            "eval_size": 32,
        },
    }
    probes: ClassVar[Sequence[str]] = ("attention_sparsity", "induction", "weight_norms", "position_norms")

    @cached_property
    def corpus(self) -> Corpus:
        c = self.config
        return load_corpus(c.corpus, c.vocab, c.L + 1)

    def build_model(self) -> HookedRootModule:
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
            init_scale=c.sigma_init / (0.8 / c.D**0.5),  # its scale 1 is this standard deviation
            seed=self.seed,
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Stretches of the held-out text, [n, L + 1]: the run is evaluated and probed on them."""
        return stretches(self.corpus.held_out, self.config.L + 1, n, generator)

    def batches(self, device: torch.device | str) -> Callable[[int], Tensor]:
        """step -> stretches of the training text, [batch_size, L + 1]."""
        c, train = self.config, self.corpus.train.to(device)
        return lambda step: stretches(train, c.L + 1, c.batch_size, generator(self.seed, "train", step))

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """Cross-entropy of the next token, in nats."""
        logits = model(batch[:, :-1])  # [n, L, vocab]
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.lr)

    @cached_property
    def ngrams(self) -> dict[str, float]:
        """The losses of n-gram models on the held-out text, by name."""
        return ngram_losses(self.corpus.train, self.corpus.held_out, len(self.corpus.words))

    def predictions(self) -> Sequence[Prediction]:
        """The losses of n-gram models, which a lazy learner stops at."""
        reference = "estimated on the training text, Witten-Bell smoothing, held-out text"
        return [Prediction(name, "level", loss, reference) for name, loss in self.ngrams.items()]

    def schedule(self) -> Schedule:
        return Schedule(log=30, even=60)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_rich.text_figures import positions_first

        return {"positions_first": positions_first(run)}


def stretches(tokens: Tensor, length: int, n: int, generator: torch.Generator) -> Tensor:
    """n stretches of `tokens` [token], [n, length], that begin anywhere."""
    starts = torch.randint(len(tokens) - length + 1, (n, 1), generator=generator)  # on the CPU, as all data are drawn
    return tokens[(starts + torch.arange(length)).to(tokens.device)]
