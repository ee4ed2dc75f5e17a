"""What the two transformers share: sizes, optimizer and how they are built (Table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import nn

from stagelens import TaskConfig
from stagelens.models import build_transformer
from stagelens_emergence.theory import plateau_length

if TYPE_CHECKING:
    from stagelens import Run

TABLE_1 = {"d_model": 256, "d_head": 64, "mlp_factor": 4, "batch_size": 32, "lr": 1e-4, "eval_size": 1024}
LEARNED, LEAVING, ANSWERING = 0.1, 0.4, 0.05  # D.1: where a plateau ends; LEAVING: with cross-sample repetition

Optimizer = Literal["adam", "sgd"]


class TransformerConfig(TaskConfig):
    """The transformer's sizes and its optimizer; B.3 varies `layers`, `heads` and `optimizer`."""

    layers: int = Field(2, ge=1, le=1000, description="layers, each attention and an MLP")
    heads: int = Field(4, ge=1, description="heads of a layer")
    d_model: int = Field(32, ge=2, multiple_of=2, description="width of the residual stream")
    d_head: int = Field(8, ge=1, description="width of a head's queries and keys")
    mlp_factor: int = Field(2, ge=1, description="width of the MLPs over d_model")
    norm: bool = Field(False, description="layer normalization")
    optimizer: Optimizer = Field("adam", description="adam or sgd")
    eval_size: int = Field(128, description="sequences in the fixed evaluation batch that the probes see")


def build(config: TransformerConfig, n_ctx: int, seed: int, **inputs: Any) -> Any:
    """A causal HookedTransformer with sinusoidal positions; `inputs` are build_transformer's d_vocab, d_in, d_out.

    Its unembedding starts at 0, so that it starts on the plateau: at a loss of 1/2 (D.1), or at chance.
    """
    model = build_transformer(
        n_layers=config.layers,
        n_heads=config.heads,
        d_model=config.d_model,
        d_head=config.d_head,
        d_mlp=config.mlp_factor * config.d_model,
        n_ctx=n_ctx,
        normalization="layer" if config.norm else "none",
        positions="sinusoidal",
        seed=seed,
        **inputs,
    )
    with torch.no_grad():
        model.unembed.W_U.zero_()
    return model


def optimizer_of(config: TransformerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Plain Adam or plain SGD, at a constant learning rate."""
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
    return kind(model.parameters(), lr=config.lr)


def plateau_of(run: Run, threshold: float | None = None) -> float:
    """The length of a run's first plateau (D.1), in steps; nan: it outlasts the run.

    Of a regression, until the test loss has fallen to `threshold` (0.1; 0.4 where p matters); of recall, until the test
    accuracy has risen to it (0.05).
    """
    if "accuracy" in run.timeline:
        return plateau_length(*run.timeline.scalar("accuracy"), threshold or ANSWERING, rising=True)
    return plateau_length(*run.timeline.scalar("loss"), threshold or LEARNED)
