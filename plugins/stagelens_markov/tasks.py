"""The tasks of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformer_lens import HookedRootModule

from stagelens import Group, Task, TaskConfig
from stagelens.config import Config
from stagelens.seeds import generator
from stagelens_markov.data import Process, importance, log_probabilities, make_process, sample_sequences
from stagelens_markov.model import MinimalTransformer


class MarkovConfig(TaskConfig):
    """Tables 1, 2 and 4. Intervals are lists of lags, the most important first."""

    d: int = Field(50, ge=2, description="size of the dictionary")
    h: int = Field(3, ge=1, description="number of intervals")
    heads: int = Field(0, ge=0, description="number of attention heads; 0: as many as intervals")
    m: float = Field(1.7, gt=0, description="importance ratio of neighbouring intervals")
    b0: float = Field(10.0, gt=0, description="importance of the last interval")
    T: int = Field(20, ge=1, description="number of predicted tokens")
    intervals: tuple[tuple[int, ...], ...] = Field(((1, 2), (3, 4), (5, 6)), description="lags of I(1), I(2), ...")
    init_scale: float = Field(0.05, ge=0, description="u: the score matrices start uniform in [-u, u]")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay")
    patience: int = Field(0, ge=0, description="passes without progress before the rate is halved; 0: constant rate")
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0: no clipping")

    @field_validator("intervals")
    @classmethod
    def _partition(cls, intervals: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        lags = sorted(lag for interval in intervals for lag in interval)
        if not lags or any(not interval for interval in intervals):
            raise ValueError("every interval needs at least one lag, for example [[1,2],[3,4],[5,6]]")
        if lags != list(range(1, len(lags) + 1)):
            raise ValueError(f"the intervals must share out the lags 1..{max(lags)} without overlap or gap")
        return intervals

    @model_validator(mode="after")
    def _count(self) -> MarkovConfig:
        if len(self.intervals) != self.h:
            raise ValueError(
                f"h={self.h} but {len(self.intervals)} intervals are given; give h and intervals that agree"
            )
        return self


class Minimal(Task):
    """The minimal architecture on the chain with three intervals of two lags (C.1)."""

    id = "markov/minimal"
    title = "attention heads compete, then share out the positions of a high-order Markov chain"
    Config: ClassVar[type[Config]] = MarkovConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {
            "d": 12,
            "T": 12,
            "b0": 5.0,
            "steps": 1200,
            "batch_size": 384,
            "lr": 0.03,
            "eval_size": 256,
            "init_scale": 0.01,
        },
        "paper": {
            "steps": 2000,
            "batch_size": 3000,
            "lr": 0.003,
            "train_size": 9000,
            "eval_size": 3000,
            "patience": 10,
            "init_scale": 1.0,
        },
    }

    @cached_property
    def process(self) -> Process:
        """The chain, drawn from the run's seed."""
        c = self.config
        return make_process(c.d, importance(c.m, c.b0, c.h), c.intervals, generator(self.seed, "process"))

    def build_model(self) -> HookedRootModule:
        c = self.config
        heads = c.heads or c.h
        return MinimalTransformer(c.d, self.process.order, c.T, heads, c.init_scale, generator(self.seed, "init"))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Sequences x_{-w+1}..x_T, [n, w + T]."""
        return sample_sequences(self.process, self.config.T, n, generator)

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """Cross-entropy at x_1..x_T, the tokens that the chain itself has drawn."""
        logits = model(batch[:, :-1])  # [n, T, d]
        return cross_entropy(logits.flatten(0, 1), batch[:, -self.config.T :].flatten())

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """The loss in excess of the chain's own, on the same tokens: an estimate of the loss minus the entropy."""
        drawn = batch[:, -self.config.T :, None]
        ideal = log_probabilities(self.process, batch).gather(-1, drawn)
        return {"excess": (ideal - output.log_softmax(-1).gather(-1, drawn)).mean()}

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.config.lr, weight_decay=self.config.weight_decay)

    @property
    def scheduler_every(self) -> int:  # type: ignore[override]
        """Once a pass over the training set."""
        return max(1, int(self.config.train_size // self.config.batch_size))

    def scheduler(self, optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau | None:
        patience = self.config.patience
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=patience) if patience else None

    def groups(self) -> Mapping[str, Group]:
        """I(1), I(2), ...: the query that predicts a token stands at lag 1, so lag i is i - 1 keys back."""
        return {
            f"I({k})": Group(offsets=tuple(lag - 1 for lag in interval))
            for k, interval in enumerate(self.config.intervals, start=1)
        }

    def references(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """Eq. 3's predictors, which know only I(1), then I(1) and I(2), ..."""
        process = self.process
        return {
            f"A*_1:{i}": lambda batch, i=i: log_probabilities(process, batch, first=i)  # type: ignore[misc]
            for i in range(1, self.config.h + 1)
        }

    def stage_names(self) -> Sequence[str]:
        return [f"I({k}) learned" for k in range(1, self.config.h + 1)]
