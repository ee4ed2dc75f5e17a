"""The tasks of the plugin: exact descent, training on raw sequences, and the gradient flow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from stagelens import Flow, Prediction, Reading, Schedule, Task
from stagelens.base import generator
from stagelens.experiments import Config, State, move
from stagelens_linear_icl import theory
from stagelens_linear_icl.data import Moments, Sequences, examples, moments_of, sample_sequences
from stagelens_linear_icl.descent import Weights, loss_of, product, rates
from stagelens_linear_icl.model import FullAttention, InContextRegressor, SeparateAttention, exact_loss
from stagelens_linear_icl.probe import component_readings
from stagelens_linear_icl.problem import Outlook, Problem, ProblemFlowConfig, TrainedConfig, outlook_predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens import Run

PROBES = ("principal_components", "qk_alignment", "attention_sparsity", "weight_norms", "conserved")
EIGHT = {"D": 8, "H": 9, "spectrum": "power:1", "lr": 0.6, "steps": 50_000}  # Figs. 2 and 8
REPEATED = {"spectrum": [0.35, 0.35, 0.15, 0.15]}  # Fig. 9


class SeparateConfig(TrainedConfig):
    """Eq. 2 under full-batch descent. P = 0 means the population: infinitely many sequences."""

    steps: int = Field(8000, ge=1, description="steps of full-batch descent")
    lr: float = Field(0.5, gt=0, description="learning rate; a step is 2 lr of the flow's time")
    eval_size: int = Field(64, description="sequences that the probes see; the loss is exact: of the population")


class Trained(Problem, Task):
    """What both trained tasks have: sequences, plain descent, directions, levels and conserved quantities."""

    Config: ClassVar[type[Config]] = TrainedConfig
    probes: ClassVar[Sequence[str] | None] = PROBES

    def sample(self, n: int, generator: torch.Generator) -> Sequences:
        """n sequences of N + 1 tokens."""
        return sample_sequences(self.covariance, self.config.N, n, generator)

    @cached_property
    def training_set(self) -> Sequences:
        """The P sequences of the run's seed."""
        return self.sample(self.config.P, generator(self.seed, "train"))

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.stable_rate)

    @cached_property
    def stable_rate(self) -> float:
        """The config's rate, unless descent diverges at it; that is looked into once."""
        if (moments := self.rate_moments()) is not None:
            self.refuse_divergence(self.config.lr, self.config.steps, moments)
        return float(self.config.lr)

    @abstractmethod
    def rate_moments(self) -> Moments | None:
        """The moments whose loss descent goes down; None where it is no such loss."""

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        """Eq. 44, for higher rank Eq. 50: what the flow conserves, and descent nearly."""
        v, k, q = model.attention.core()
        keys, queries = k.square().sum(-1), q.square().sum(-1)  # [H, R]
        return {"k.k - q.q": keys - queries, "k.k - v^2": keys.sum(-1) - v.square()}

    def schedule(self) -> Schedule:
        return Schedule(log=100, even=40)

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_linear_icl.figures import figures_for

        return figures_for(run, self)

    def _model(self, attention: Any) -> InContextRegressor:
        return InContextRegressor(attention, self.config.N, torch.from_numpy(self.fixed_points))


class Separate(Trained):
    """Rank-R linear attention with the zero blocks left out, by exact descent: each step sees all sequences."""

    id = "linear-icl/separate"
    title = "linear attention learns regression in context one principal component at a time, by exact descent"
    Config: ClassVar[type[Config]] = SeparateConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"P": 5000, "w_init": 0.05, "lr": 0.1, "steps": 200_000},
        "fig2": EIGHT,
        "fig4": {},
        "fig5": {"loss": "next-token"},
        "fig7": {"N": 32, "H": 5, "R": 2},
        "fig8": EIGHT | {"R": 3},
        "fig9": REPEATED,
    }

    @cached_property
    def moments(self) -> Moments:
        """What the training loss depends on: the moments of the training set, or of the population."""
        return moments_of(self.training_set, self.config.every) if self.config.P else self.population

    def build_model(self) -> InContextRegressor:
        _ = self.moments  # made once, here, and not in the first loss
        return self._model(SeparateAttention(self.start(), self.config.every))

    def rate_moments(self) -> Moments:
        return self.moments

    def batches(self, device: torch.device | str) -> Callable[[int], Moments]:
        """The moments, at every step: a full batch."""
        moments: Moments = move(self.moments, device)
        return lambda step: moments  # noqa: ARG005

    def loss(self, model: Any, batch: Moments | Sequences) -> Tensor:
        """The exact loss: of the moments that are trained on; on sequences, which evaluation gives, of the population.

        So with P > 0 a run's `train_loss` is that of the P sequences, and its `loss` that of the population, whose
        levels Eq. 5 gives. On sequences the model is called as well, so that hooks see it work. What a hook changes
        there is added: the sampled loss of what the model says, less that of beta^T M x_q.
        """
        M: Tensor = model.product()  # [D, D]
        if isinstance(batch, Moments):
            return exact_loss(M, batch)
        beta, x, y = examples(batch, self.config.every)  # [n, Q, D], [n, Q, D], [n, Q]
        said: Tensor = (y - model(batch.tokens)).square().mean()
        meant = (y - ((beta @ M) * x).sum(-1)).square().mean()
        loss: Tensor = exact_loss(M, move(self.population, M.device)) + said - meant
        return loss

    def metrics(self, output: Tensor, batch: Sequences) -> dict[str, Tensor]:
        """The squared error on the evaluation sequences alone."""
        return {"sampled_loss": (examples(batch, self.config.every).y - output).square().mean()}

    def predictions(self) -> Sequence[Prediction]:
        per_step = 2 * self.config.lr
        outlook = Outlook(self, self.config.steps * per_step)
        return [*self.levels(), *outlook_predictions(self, outlook, per_step)]


class SequencesConfig(TrainedConfig):
    """Attention over raw sequences. P = 0 means fresh ones at every step; batch_size >= P means full batches."""

    steps: int = Field(3000, ge=1, description="training steps")
    batch_size: int = Field(2000, ge=1, description="sequences in a training batch")
    P: int = Field(2000, ge=0, description="sequences in the training set; 0: fresh ones at every step")
    lr: float = Field(0.4, gt=0, description="learning rate")
    attention: Literal["linear", "softmax"] = Field("linear", description="weights as they are, or their softmax")
    blocks: Literal["trained", "zero"] = Field("trained", description="the blocks that Eq. 2 leaves out")


class RawSequences(Trained):
    """The same attention over the tokens themselves, with every block trained: the check on the exact task."""

    id = "linear-icl/sequences"
    title = "linear or softmax attention over the raw sequences, every block trained"
    Config: ClassVar[type[Config]] = SequencesConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"P": 1000, "batch_size": 1000, "eval_size": 1000},
        "paper": {"P": 5000, "batch_size": 5000, "w_init": 0.05, "lr": 0.1, "steps": 200_000},
        "fig3": {
            "attention": "softmax",
            "blocks": "zero",
            "P": 500,
            "batch_size": 500,
            "w_init": 0.05,
            "lr": 0.5,
            "steps": 3000,
        },
    }

    def build_model(self) -> InContextRegressor:
        c = self.config
        return self._model(FullAttention(self.start(), c.attention, c.every, frozen=c.blocks == "zero"))

    def rate_moments(self) -> Moments | None:
        return self.population if self.config.attention == "linear" else None

    def batches(self, device: torch.device | str) -> Callable[[int], Sequences]:
        """All P sequences at every step where a batch holds them, else batches of them."""
        if not 0 < self.config.P <= self.config.batch_size:
            return super().batches(device)
        everything: Sequences = move(self.training_set, device)
        return lambda step: everything  # noqa: ARG005

    def loss(self, model: Any, batch: Sequences) -> Tensor:
        """The mean squared error at the query, or at every token but the first (Eq. 9)."""
        asked = batch.y[:, 1:] if self.config.every else batch.y[:, -1:]
        error: Tensor = asked - model(batch.tokens)
        return error.square().mean()

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        """Eqs. 44 and 50 hold of Eq. 2, so only with the zero blocks, and of linear attention."""
        c = self.config
        return super().conserved(model) if (c.attention, c.blocks) == ("linear", "zero") else {}

    def stage_names(self) -> Sequence[str]:
        return super().stage_names() if self.config.attention == "linear" else []

    def predictions(self) -> Sequence[Prediction]:
        return self.levels() if self.config.attention == "linear" else []


class LinearFlow(Problem, Flow):
    """Eq. 24, for higher rank Eq. 45: the gradient flow of the population loss, in units of tau."""

    id = "linear-icl/flow"
    title = "the gradient flow of linear attention on the population loss"
    Config: ClassVar[type[Config]] = ProblemFlowConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"time": 8000},
        "paper": {"time": 80_000, "w_init": 0.05, "points": 1000},
    }

    def initial(self) -> State:
        return self.start()._asdict()

    def derivative(self, time: float, state: State) -> State:  # noqa: ARG002
        return rates(Weights(**state), self.population)._asdict()

    def observables(self, time: float, state: State) -> Iterable[Reading]:  # noqa: ARG002
        weights = Weights(**state)
        yield Reading("loss", float(loss_of(product(weights), self.population)))
        seen = component_readings(product(weights), *weights, self.fixed_points, self.covariance.eigenvectors)
        for reading in seen:
            yield replace(reading, name=f"principal_components/{reading.name}")
        now, first = theory.conserved(weights), theory.conserved(self.start())
        drift = max(float(np.abs(now[name] - first[name]).max() / np.abs(first[name]).max()) for name in now)
        yield Reading("conserved/drift", drift)

    def predictions(self) -> Sequence[Prediction]:
        outlook = outlook_predictions(self, Outlook(self, self.config.time), per_step=1.0)
        return [*self.levels(), *(found for found in outlook if found.name != "gradient flow")]
