"""The toy model, trained on its exact expected loss or on sampled sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from stagelens import Group, Prediction, Schedule, Task, TaskConfig
from stagelens.base import generator
from stagelens.experiments import Config, move
from stagelens_emergence.data import (
    Draws,
    Moments,
    Sequences,
    Target,
    check_data,
    relevant_moments,
    sample_draws,
    sample_sequences,
    target_weights,
)
from stagelens_emergence.model import ToyTransformer, drawn_loss, expected_loss
from stagelens_emergence.theory import Reduced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens import Run


class ToyConfig(TaskConfig):
    """Eq. 2. `batch_size` counts only where `sampled` is set. A step at rate lr is a time lr of the flow."""

    T: int = Field(256, description="tokens in a sequence")
    d: int = Field(64, description="dimension of a token")
    B: int = Field(1, description="how often the relevant token stands in a sequence")
    p: float = Field(0.0, description="probability that the relevant token is the repeated one")
    sampled: bool = Field(False, description="train on drawn sequences instead of the exact expected loss")
    init_scale: float = Field(0.0, ge=0, description="W starts with entries N(0, init_scale^2 / d)")
    target: Target = Field("unit", description="columns of W* of norm 1, or entries N(0, 1/d) as they are")
    steps: int = Field(4000, description="training steps")
    batch_size: int = Field(32, description="sequences in a training batch")
    lr: float = Field(1.0, description="learning rate")
    eval_size: int = Field(16, description="sequences that the probes see; the loss is exact all the same")

    @model_validator(mode="after")
    def _consistent(self) -> ToyConfig:
        check_data(self.T, self.d, self.B, self.p)
        if self.train_size:
            raise ValueError("the toy model has no training set: it sees fresh sequences; give train_size=0")
        return self


class Toy(Task):
    """Gradient descent on (a, W). `loss` is the test loss of D.1: of data without cross-sample repetition."""

    id = "emergence/toy"
    title = "one attention vector and one weight matrix learn to read a single token; exact expected loss"
    Config: ClassVar[type[Config]] = ToyConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"T": 512, "steps": 25_000},
        "fig9": {
            "T": 256,
            "d": 256,
            "sampled": True,
            "init_scale": 1.0,
            "target": "gaussian",
            "steps": 9000,
        },
    }
    probes: ClassVar[Sequence[str] | None] = (
        "single_location",
        "plateau_length",
        "attention_sparsity",
        "weight_norms",
    )

    @property
    def dtype(self) -> torch.dtype:
        """What is exact is computed in double precision."""
        return torch.float32 if self.config.sampled else torch.float64

    @cached_property
    def W_star(self) -> Tensor:
        """[d, d], of the run's seed."""
        c = self.config
        return target_weights(c.d, c.target, generator(self.seed, "target")).to(self.dtype)

    def build_model(self) -> ToyTransformer:
        c = self.config
        normal = torch.randn(c.d, c.d, generator=generator(self.seed, "init"), dtype=torch.float64)
        return ToyTransformer(c.T, c.B, (c.init_scale / c.d**0.5 * normal).to(self.dtype), self.W_star)

    def sample(self, n: int, generator: torch.Generator) -> Sequences:
        """n test sequences: with B, without p."""
        return sample_sequences(self.W_star, self.config.T, self.config.B, 0.0, n, generator)

    def batches(self, device: torch.device | str) -> Callable[[int], Moments | Draws]:
        """The moments at every step, which stand for all sequences; if sampled, what is needed of fresh ones."""
        c = self.config
        if not c.sampled:
            moments: Moments = move(relevant_moments(c.d, c.p), device)
            return lambda step: moments  # noqa: ARG005

        def draw(step: int) -> Draws:
            stream = generator(self.seed, "train", step)
            drawn: Draws = move(sample_draws(c.d, c.T, c.B, c.p, c.batch_size, stream, self.dtype), device)
            return drawn

        return draw

    def loss(self, model: Any, batch: Moments | Draws | Sequences) -> Tensor:
        """The mean of |y - y*|^2 / 2. Moments and draws are for training, sequences for evaluation.

        There it is the exact test loss. What a hook changes in the model is added to it, as the error on the sequences
        less the one that Eq. 2 has there.
        """
        if isinstance(batch, Moments):
            return expected_loss(model, batch)
        if isinstance(batch, Draws):
            return drawn_loss(model, batch)
        said = half_error(model(batch.x), batch.y)
        meant = half_error(torch.einsum("k,bkd->bd", model.alpha, batch.x) @ model.W.T, batch.y)
        return expected_loss(model, move(self.test, batch.x.device)) + (said - meant)

    @cached_property
    def test(self) -> Moments:
        """Of the test data, which have no cross-sample repetition."""
        return Moments(relevant_moments(self.config.d, 0.0).relevant.to(self.dtype))

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.lr)

    def groups(self) -> Mapping[str, Group]:
        c = self.config
        return {"relevant": Group(positions=tuple(range(c.T - c.B, c.T)))}

    @property
    def reduced(self) -> Reduced:
        """The same problem in two or three variables; every score moves by itself, as in the model."""
        c = self.config
        return Reduced(c.T, c.d, c.B, c.p, each=True)

    def predictions(self) -> Sequence[Prediction]:
        """The length of the plateau: of the reduced flow, and of the law for alpha << 1."""
        from stagelens_emergence.flow import flow_plateau

        def measured(timeline: Any) -> float | None:
            name = "plateau_length/steps"
            return float(timeline.scalar(name)[1][-1]) if name in timeline else None

        lr, found = self.config.lr, [("law of the plateau", self.reduced.plateau_law(), "sqrt(pi/2) / lambda")]
        flow = flow_plateau(self.reduced)
        if flow == flow:
            found.insert(0, ("end of the plateau", flow, "Eqs. 13-14, 18-21, by score"))
        what = "plateau_length/steps: first step at which the loss is a fifth of its start"
        return [
            Prediction(name, "time", time / lr, where, measure=measured, compared_with=what)
            for name, time, where in found
        ]

    def stage_names(self) -> Sequence[str]:
        return ["attention emerges"]

    def schedule(self) -> Schedule:
        return Schedule(log=20, even=100)

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_emergence.figures import toy_figures

        return toy_figures(run)


def half_error(y: Tensor, y_star: Tensor) -> Tensor:
    """The mean over the batch of |y - y*|^2 / 2, from [batch, d]."""
    return 0.5 * (y - y_star).square().sum(-1).mean()
