"""The config of the task."""

from __future__ import annotations

from pydantic import Field
from stagelens import TaskConfig


class ChainsConfig(TaskConfig):
    """The chains, the model and its training."""

    k: int = Field(3, ge=2, description="number of symbols")
    length: int = Field(50, ge=3, description="tokens of a sequence")
    heads: int = Field(2, ge=1, description="attention heads in each layer")
    d_model: int = Field(32, ge=1, description="width of the residual stream")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay")
    steps: int = Field(1000, ge=1, description="training steps")
    batch_size: int = Field(64, ge=1, description="sequences in a training batch")
    lr: float = Field(0.005, gt=0, description="learning rate")
