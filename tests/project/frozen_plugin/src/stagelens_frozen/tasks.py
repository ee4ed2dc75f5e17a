# frozen: do not edit. Written against the import paths of stagelens 0.1.0, which later versions must keep.
"""Two tasks: a transformer with everything that a task may say, and a toy model of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

import stagelens as sl
from stagelens import Group, Phase, Prediction, Run, Schedule, Task, TaskConfig
from stagelens.models import ToyConfig, Transformer, build_transformer
from stagelens.seeds import derive, generator


class CopyConfig(TaskConfig):
    vocabulary: int = Field(5, ge=2, description="tokens to choose from")
    half: int = Field(4, ge=2, description="length of what is copied")
    steps: int = Field(8, ge=1, description="training steps")
    batch_size: int = Field(8, ge=1, description="sequences in a batch")
    eval_size: int = Field(8, ge=1, description="sequences that are measured on")
    lr: float = Field(0.01, gt=0, description="learning rate")


class Copy(Task):
    """The second half of a sequence repeats the first."""

    id = "frozen/copy"
    title = "repeat the first half"
    Config = CopyConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {"steps": 100}}
    scheduler_every = 2

    def build_model(self) -> Transformer:
        c = self.config
        return build_transformer(
            n_layers=2,
            n_heads=2,
            d_model=8,
            d_mlp=8,
            n_ctx=2 * c.half,
            d_vocab=c.vocabulary,
            positions="learned",
            activation="gelu",
            dropout=0.1,
            seed=derive(self.seed, "init"),
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.config.vocabulary, (n, self.config.half), generator=generator).repeat(1, 2)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return cross_entropy(self.answers(model, batch).flatten(0, 1), batch[:, self.config.half :].flatten())

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.config.lr)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def metrics(self, output: Any, batch: Tensor) -> Mapping[str, Tensor]:
        right = output[:, self.queries()].argmax(-1) == batch[:, self.config.half :]
        return {"accuracy": right.float().mean()}

    def queries(self) -> slice:
        return slice(self.config.half - 1, -1)

    def phases(self) -> Sequence[Phase]:
        return [Phase("embedding", 3, ("embed.*", "unembed.*")), Phase("all", self.config.steps - 3, ("*",))]

    def groups(self) -> Mapping[str, Group]:
        return {"source": Group(offsets=(self.config.half - 1,)), "first": Group(positions=(0,))}

    def directions(self) -> Mapping[str, Tensor]:
        return {"axis": torch.eye(4)[0]}

    def references(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        uniform = -math.log(self.config.vocabulary)
        return {
            "uniform": lambda batch: torch.full((*batch.shape, self.config.vocabulary), uniform, device=batch.device)
        }

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        return {"positions": model.pos_embed.W_pos.square().sum()}

    def predictions(self) -> Sequence[Prediction]:
        chance = math.log(self.config.vocabulary)
        return [
            Prediction("chance", "level", chance, "log V"),
            Prediction("end", "time", self.config.steps, "nowhere", measure=lambda timeline: timeline.steps[-1]),
            Prediction("flat", "curve", lambda steps: 0 * steps + chance, "log V", window=(0, 4)),
        ]

    def stage_names(self) -> Sequence[str]:
        return ["the source is found"]

    def features(self) -> Mapping[str, float]:
        return {"size": float(self.config.vocabulary * self.config.half)}

    def schedule(self) -> Schedule:
        return sl.Schedule(log=3, even=8)

    def figures(self, run: Run) -> Mapping[str, Any]:
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot(*run.timeline.scalar("accuracy"))
        return {"accuracy": figure}


class TwoMaps(HookedRootModule):
    """x [batch, 3] -> [batch, 1] through two linear maps."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        stream = generator(seed, "init")
        self.cfg = ToyConfig(n_layers=0, n_heads=0, n_ctx=1)
        self.first = nn.Parameter(torch.randn(3, 4, generator=stream) / 2)
        self.second = nn.Parameter(torch.randn(4, 1, generator=stream) / 2)
        self.hook_middle = HookPoint()
        self.setup()

    def forward(self, x: Tensor) -> Tensor:
        return self.hook_middle(x @ self.first) @ self.second


class Regression(sl.Task):
    """y = x . (1, -2, 3), with nothing but what a task must have."""

    id, title, presets = "frozen/regression", "two linear maps learn one", {"quick": {"steps": 6}}

    def build_model(self) -> TwoMaps:
        return TwoMaps(self.seed)

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, generator=generator)
        return x, x @ x.new_tensor([[1.0], [-2.0], [3.0]])

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()
