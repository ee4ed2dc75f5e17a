"""The task: full-batch AdamW on a part of the table, measured on the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from stagelens import Prediction, Task, TaskConfig
from stagelens.base import derive, generator
from stagelens.models import build_transformer
from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens_grokking.data import split


class AdditionConfig(TaskConfig):
    p: int = Field(31, ge=3, description="the modulus")
    fraction: float = Field(0.55, gt=0, lt=1, description="part of the table that is trained on")
    d_model: int = Field(64, ge=4, description="width of the model")
    heads: int = Field(4, ge=1, description="attention heads")
    d_mlp: int = Field(128, ge=1, description="width of the MLP")
    weight_decay: float = Field(1.5, ge=0, description="of AdamW; without it nothing is understood")
    lr: float = Field(0.01, gt=0, description="learning rate")
    steps: int = Field(1200, ge=1, description="training steps")
    eval_size: int = Field(1024, ge=1, description="at most so many held-out questions are asked")


class Addition(Task):
    """a + b mod p by a one-layer transformer."""

    id = "grokking/addition"
    title = "addition modulo p: the training set is memorized long before the rest is known"
    Config = AdditionConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
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
    probes: ClassVar[Sequence[str]] = ("attention_sparsity", "head_specialization", "weight_norms", "fourier")

    def __init__(self, config: Any, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.shown, self.held_out = split(config.p, config.fraction, generator(seed, "split"))

    def build_model(self) -> Any:
        c = self.config
        return build_transformer(
            n_layers=1,
            n_heads=c.heads,
            d_model=c.d_model,
            d_mlp=c.d_mlp,
            n_ctx=3,
            d_vocab=c.p + 1,
            d_out=c.p,
            normalization="none",
            seed=derive(self.seed, "init"),
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Held-out questions: what the run measures is what was never trained on."""
        return self.held_out[torch.randperm(len(self.held_out), generator=generator)[:n]]

    def batches(self, device: torch.device | str) -> Callable[[int], Tensor]:
        """Every step sees the whole training set."""
        shown = self.shown.to(device)
        return lambda step: shown

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return cross_entropy(model(batch[:, :-1])[:, -1], batch[:, -1])

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        return {"accuracy": (output[:, -1].argmax(-1) == batch[:, -1]).float().mean()}

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        c = self.config
        return torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=c.weight_decay, betas=(0.9, 0.98))

    def queries(self) -> slice:
        return slice(-1, None)

    def predictions(self) -> Sequence[Prediction]:
        return [Prediction("understood", "level", 0.0, "every answer is certain")]
