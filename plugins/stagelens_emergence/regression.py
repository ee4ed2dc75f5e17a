"""Single-location regression learned by a transformer (2.4, B)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformer_lens import HookedRootModule

from stagelens import Schedule, Task
from stagelens.base import derive, generator
from stagelens.experiments import Batches, Config
from stagelens_emergence.data import check_data, target_weights
from stagelens_emergence.sequences import Located, sample_places, sample_regression
from stagelens_emergence.transformers import TABLE_1, TransformerConfig, build, optimizer_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens import Run

Position = Literal["random", "fixed"]


class RegressionConfig(TransformerConfig):
    """Data: T, d, B, p; B.3's ablations: position, feature, layers, heads, optimizer."""

    T: int = Field(32, description="tokens in a sequence")
    d: int = Field(8, description="dimension of a token, and of the target")
    B: int = Field(1, description="how often the relevant token stands in a sequence")
    p: float = Field(0.0, description="probability that the relevant token is the repeated one")
    position: Position = Field("random", description="of the relevant token: new in every sequence, or fixed")
    feature: bool = Field(True, description="whether a token says that it is the relevant one")
    steps: int = Field(800, description="training steps")
    batch_size: int = Field(32, description="sequences in a training batch")
    lr: float = Field(3e-3, description="learning rate")

    @model_validator(mode="after")
    def _solvable(self) -> RegressionConfig:
        check_data(self.T, self.d, self.B, self.p)
        if not self.feature and self.position == "random":
            raise ValueError(
                "feature=false with position=random leaves nothing to find the token by; give position=fixed"
            )
        return self


class Regression(Task):
    """A transformer reads the relevant token off a sequence and maps it by W*; the answer is read at the last place.

    `loss` is the test loss of D.1: of data without cross-sample repetition, but with the B of training.
    """

    id = "emergence/regression"
    title = "single-location regression by a transformer on continuous tokens"
    Config: ClassVar[type[Config]] = RegressionConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": TABLE_1 | {"T": 256, "d": 64, "steps": 50_000},
    }
    probes: ClassVar[Sequence[str]] = ("relevant_attention", "plateau_length", "attention_sparsity", "weight_norms")

    def __init__(self, config: Any, seed: int = 0) -> None:
        super().__init__(config, seed)
        stream = generator(seed, "target")
        self.W = target_weights(config.d, "unit", stream).float()
        self.fixed = sample_places(1, config.T, config.B, stream)  # [1, T]: the places where `position` is fixed

    def build_model(self) -> HookedRootModule:
        c = self.config
        model: HookedRootModule = build(c, c.T, derive(self.seed, "init"), d_in=c.d + c.feature, d_out=c.d)
        return model

    def sample(self, n: int, generator: torch.Generator) -> Located:
        """n test sequences: with B, without p."""
        return self.draw(n, generator, p=0.0)

    def draw(self, n: int, generator: torch.Generator, p: float) -> Located:
        c = self.config
        random = c.position == "random"
        relevant = sample_places(n, c.T, c.B, generator) if random else self.fixed.expand(n, -1)
        return sample_regression(n, self.W, relevant, generator, p=p, feature=c.feature)

    def batches(self, device: torch.device | str) -> Callable[[int], Located]:
        return Batches(_Trained(self.config, self.seed), device)

    def loss(self, model: HookedRootModule, batch: Located) -> Tensor:
        """The mean of |y - y*|^2 / 2 (A.2), with y read at the last place."""
        error: Tensor = self.answers(model, batch.x)[:, -1] - batch.y  # [n, d]
        return error.square().sum(-1).mean() / 2

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        return optimizer_of(self.config, model)

    def queries(self) -> slice:
        return slice(-1, None)

    def stage_names(self) -> Sequence[str]:
        return ["emergence"]

    def schedule(self) -> Schedule:
        return Schedule(log=5, even=40, refine=1)

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_emergence.transformer_figures import fig11

        return {"fig11": fig11([run])}


class _Trained(Regression):
    """The same task as it is trained: with p."""

    def sample(self, n: int, generator: torch.Generator) -> Located:
        return self.draw(n, generator, self.config.p)
