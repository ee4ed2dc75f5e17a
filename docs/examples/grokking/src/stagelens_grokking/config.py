"""The config of the task."""

from __future__ import annotations

from pydantic import Field
from stagelens import TaskConfig


class AdditionConfig(TaskConfig):
    """The addition table, the sizes of the model and the optimizer."""

    p: int = Field(31, ge=3, description="the modulus")
    fraction: float = Field(0.55, gt=0, lt=1, description="fraction of the table that is trained on")
    d_model: int = Field(64, ge=4, description="width of the model")
    heads: int = Field(4, ge=1, description="attention heads")
    d_mlp: int = Field(128, ge=1, description="width of the MLP")
    weight_decay: float = Field(1.5, ge=0, description="weight decay of AdamW; without it the model only memorizes")
    lr: float = Field(0.01, gt=0, description="learning rate")
    steps: int = Field(1200, ge=1, description="training steps")
    eval_size: int = Field(1024, ge=1, description="largest number of held-out questions in the evaluation batch")
