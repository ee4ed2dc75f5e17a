"""Single-location regression by a transformer (2.4, B)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stagelens import Group, Schedule
from stagelens.base import derive, generator
from stagelens.models import HookedRootModule
from stagelens_emergence.config import SOURCES, TABLE_1, RegressionConfig
from stagelens_emergence.data.toy import target_weights
from stagelens_emergence.data.transformers import RegressionBatch, relevant_keys, sample_positions, sample_regression
from stagelens_emergence.losses import half_error
from stagelens_emergence.model import build_causal
from stagelens_emergence.tasks.transformers import TransformerTask


class Regression(TransformerTask):
    """A transformer finds the relevant token x of a sequence and returns W* x at the last position.

    `loss` is the test loss of D.1: on data without cross-sample repetition, but with the B of training.
    """

    id = "emergence/regression"
    title = "single-location regression by a transformer on continuous tokens"
    Config = RegressionConfig
    presets = {
        "quick": {},
        "paper": TABLE_1 | {"T": 256, "d": 64, "steps": 50_000},
    }
    sources = SOURCES | {
        "Fig. 3": ("T",),
        "B.1": ("position", "feature"),
        "a guess: Fig. 3 varies it": ("d",),
        "a guess: D.3's largest number of steps": ("steps",),
    }
    probes = ("relevant_attention", "plateau_length")
    without = {"induction": "the tokens are continuous vectors, and random ones do not repeat"}

    def __init__(self, config: Any, seed: int = 0) -> None:
        super().__init__(config, seed)
        stream = generator(seed, "target")
        self.W = target_weights(config.d, "unit", stream).float()
        self.fixed = sample_positions(1, config.T, config.B, stream)  # [1, T]: used if `position` is fixed

    def build_model(self) -> HookedRootModule:
        c = self.config
        model: HookedRootModule = build_causal(c, c.T, derive(self.seed, "init"), d_in=c.d + c.feature, d_out=c.d)
        return model

    def sample(self, n: int, generator: torch.Generator) -> RegressionBatch:
        """Draws n test sequences: with B, without p."""
        return self._draw(n, generator, p=0.0)

    def sample_train(self, n: int, generator: torch.Generator) -> RegressionBatch:
        """Draws n training sequences: with B and p."""
        return self._draw(n, generator, self.config.p)

    def _draw(self, n: int, generator: torch.Generator, p: float) -> RegressionBatch:
        c = self.config
        random = c.position == "random"
        relevant = sample_positions(n, c.T, c.B, generator) if random else self.fixed.expand(n, -1)
        return sample_regression(n, self.W, relevant, generator, p=p, feature=c.feature)

    def loss(self, model: HookedRootModule, batch: RegressionBatch) -> Tensor:
        """Returns the batch mean of |y - y*|^2 / 2 (A.2), with y read at the last position."""
        return half_error(self.answers(model, batch.x)[:, -1], batch.y)

    def groups(self) -> Mapping[str, Group]:
        """Returns the relevant token in all of its positions, and the query's own token."""
        return {"relevant": Group(mask=relevant_keys), "own token": Group(offsets=(0,))}

    def schedule(self) -> Schedule:
        return Schedule(log=5, even=40, refine=1)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_emergence.figures.transformers import fig11

        return {"fig11": fig11([run])}
