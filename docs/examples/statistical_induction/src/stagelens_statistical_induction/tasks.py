"""The task: predict every token of a sequence of an unknown Markov chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from stagelens import Group, Prediction, Run, Task, token_groups
from stagelens.base import derive, generator
from torch import Tensor

from stagelens_statistical_induction.config import ChainsConfig
from stagelens_statistical_induction.data import draw_chains, sample_sequences
from stagelens_statistical_induction.figures.strategies import strategies
from stagelens_statistical_induction.losses import next_token_loss
from stagelens_statistical_induction.model import build
from stagelens_statistical_induction.predictions import strategy_levels
from stagelens_statistical_induction.theory import STRATEGIES

MANY = 4000  # sequences over which the loss of a strategy is averaged


class Chains(Task):
    """A two-layer attention-only transformer on sequences of random Markov chains."""

    id = "statistical-induction/chains"
    title = "every sequence is a Markov chain of its own, which the model learns in context"
    Config = ChainsConfig
    stages = {"min_drop": 0.05}  # the first steps fluctuate
    presets = {
        "quick": {},
        "paper": {"length": 100, "heads": 1, "d_model": 16, "steps": 20000, "lr": 0.0003},
    }

    def build_model(self) -> Any:
        return build(self.config, derive(self.seed, "init"))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns sequences of `n` new chains, int [n, length]."""
        return sample_sequences(draw_chains(n, self.config.k, generator), self.config.length, generator)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return next_token_loss(model(batch[:, :-1]).log_softmax(-1), batch)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.config.lr, weight_decay=self.config.weight_decay)

    def groups(self) -> Mapping[str, Group]:
        """Returns the roles of heads: the previous token, the tokens after earlier occurrences of this one, ..."""
        return token_groups()

    def references(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """Returns the strategies, as predictors of every token but the first."""
        return {name: partial(_predict, strategy, self.config.k) for name, strategy in STRATEGIES.items()}

    def predictions(self) -> Sequence[Prediction]:
        tokens = self.sample(MANY, generator(0, "strategies"))
        losses = {name: float(next_token_loss(predict(tokens), tokens)) for name, predict in self.references().items()}
        return strategy_levels(losses)

    def stage_names(self) -> Sequence[str]:
        return ["unigram", "bigram"]

    def figures(self, run: Run) -> Mapping[str, Figure]:
        return {"strategies": strategies(run)}


def _predict(strategy: Callable[[Tensor, int], Tensor], k: int, tokens: Tensor) -> Tensor:
    """Returns what `strategy` predicts at every position of `tokens` but the last."""
    return strategy(tokens[:, :-1], k)
