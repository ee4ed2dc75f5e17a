"""The task: full-batch AdamW on a part of the table, measured on the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from stagelens import Prediction, Task
from stagelens.base import derive, generator
from stagelens.experiments import FixedBatch
from torch import Tensor

from stagelens_grokking.config import AdditionConfig
from stagelens_grokking.data import split
from stagelens_grokking.losses import accuracy, answer_loss
from stagelens_grokking.model import build
from stagelens_grokking.predictions import predictions_of


class Addition(Task):
    """A one-layer transformer learns a + b mod p."""

    id = "grokking/addition"
    title = "addition modulo p: the training set is memorized long before the rest is known"
    Config = AdditionConfig
    presets = {
        "quick": {},
        "paper": {
            "p": 113,
            "fraction": 0.3,
            "d_model": 128,
            "d_mlp": 512,
            "weight_decay": 1.0,
            "lr": 1e-3,
            "steps": 25000,
        },
    }
    probes = ("fourier",)

    def __init__(self, config: Any, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.shown, self.held_out = split(config.p, config.fraction, generator(seed, "split"))

    def build_model(self) -> Any:
        return build(self.config, derive(self.seed, "init"))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns held-out questions, int [n, 4]: the run is evaluated on what it was never trained on."""
        return self.held_out[torch.randperm(len(self.held_out), generator=generator)[:n]]

    def batches(self, device: torch.device | str) -> FixedBatch:
        """Returns the whole training set at every step."""
        return FixedBatch(self.shown, device)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return answer_loss(model(batch[:, :-1]), batch)

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        return {"accuracy": accuracy(output, batch)}

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        c = self.config
        return torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=c.weight_decay, betas=(0.9, 0.98))

    def queries(self) -> slice:
        return slice(-1, None)

    def predictions(self) -> Sequence[Prediction]:
        return predictions_of()
