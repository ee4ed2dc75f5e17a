"""The trained tasks: exact descent on the population or on P sequences, and training on raw sequences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stagelens import Group, Prediction, Schedule, Task
from stagelens.base import UsageError, generator
from stagelens.experiments import FixedBatch, exact_with_hooks, move
from stagelens_linear_icl import theory
from stagelens_linear_icl.config import (
    EIGHT,
    PAPER,
    PAPER_EIGHT,
    REPEATED,
    TRAINED,
    SeparateConfig,
    SequencesConfig,
    TrainedProblemConfig,
)
from stagelens_linear_icl.data import RegressionMoments, RegressionSequences, examples, moments_of, sample_sequences
from stagelens_linear_icl.flow import descend, largest_rate
from stagelens_linear_icl.losses import exact_loss
from stagelens_linear_icl.model import AllBlocksAttention, InContextRegressor, SeparateAttention, stack
from stagelens_linear_icl.predictions import FlowReference, plateau_levels

FIG2 = EIGHT | {"lr": 0.6, "steps": 50_000}


class TrainedProblem(theory.Problem, Task):
    """Base of both trained tasks: sequences, plain gradient descent, directions and conserved quantities."""

    Config = TrainedProblemConfig
    probes = ("principal_components",)
    without = {"induction": "the tokens are continuous vectors, and none of them repeats"}

    def sample(self, n: int, generator: torch.Generator) -> RegressionSequences:
        """Draws n sequences of N + 1 tokens."""
        return sample_sequences(self.covariance, self.config.N, n, generator)

    @cached_property
    def training_set(self) -> RegressionSequences:
        """The P sequences of the run's seed."""
        c = self.config
        return sample_sequences(self.covariance, c.N, c.P, generator(self.seed, "train"), c.whiten)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.stable_rate)

    @cached_property
    def stable_rate(self) -> float:
        """The config's learning rate. Raises `UsageError` if descent diverges at it, and gives one that works."""
        lr, moments = float(self.config.lr), self.rate_moments()
        if moments is None:
            return lr
        c = self.config
        learnable = range(min(c.D, c.H * c.R))
        settled = theory.fixed_point_weights(self.covariance, learnable, self.inverse_length, c.H, c.R)
        largest = largest_rate(self.start(), settled, moments)
        if lr > largest:  # an estimate, so descent is tried
            tried = descend(stack([self.start()]), moments, lr, min(c.steps, 2000), range(0, c.steps + 1, 10))
            first, *_, last = tried.loss[:, 0]
            if not np.isfinite(last) or last > 2 * first:
                raise UsageError(
                    f"lr={lr:g}: descent diverges at this rate; the largest stable one is about {largest:.2g}"
                )
        return lr

    @abstractmethod
    def rate_moments(self) -> RegressionMoments | None:
        """Returns the moments of the loss that is descended, or None if the loss has no such moments."""

    def groups(self) -> Mapping[str, Group]:
        """Returns the eigenspaces of the covariance: e_1, e_2, ..., those of equal eigenvalues as one."""
        names = dict(zip(self.directions(), self.lam.round(12), strict=True))
        spaces = [tuple(space) for _, space in groupby(names, names.__getitem__)]
        return {"+".join(space): Group(directions=space) for space in spaces}

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        """Returns Eq. 44, or Eq. 50 for R > 1: the flow conserves it exactly, descent nearly."""
        return theory.conserved(*model.attention.core())

    def schedule(self) -> Schedule:
        return Schedule(log=100, even=40)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_linear_icl.figures import figures_for

        return figures_for(run, self)

    def _model(self, attention: Any) -> InContextRegressor:
        return InContextRegressor(attention, self.config.N, torch.from_numpy(self.fixed_points))


class Separate(TrainedProblem):
    """Rank-R linear attention without the zero blocks, by exact descent: each step sees all sequences."""

    id = "linear-icl/separate"
    title = "linear attention learns regression in context one principal component at a time, by exact descent"
    Config = SeparateConfig
    presets = {
        "quick": {},
        "paper": PAPER,
        "paper-fig2": PAPER_EIGHT,
        "fig2": FIG2,
        "fig4": {},
        "fig5": {"loss": "next-token"},
        "fig7": {"N": 32, "H": 5, "R": 2},
        "fig8": FIG2 | {"R": 3},
        "fig9": REPEATED,
    }
    sources = TRAINED

    @cached_property
    def moments(self) -> RegressionMoments:
        """The moments of the training loss: those of the training set, or of the population if P = 0."""
        return moments_of(self.training_set, self.config.every) if self.config.P else self.population

    def build_model(self) -> InContextRegressor:
        _ = self.moments  # computed here once, and not in the first loss
        return self._model(SeparateAttention(self.start(), self.config.every))

    def rate_moments(self) -> RegressionMoments:
        return self.moments

    def batches(self, device: torch.device | str) -> FixedBatch:
        """Returns the moments at every step: a full batch."""
        return FixedBatch(self.moments, device)

    def loss(self, model: Any, batch: RegressionMoments | RegressionSequences) -> Tensor:
        """Returns the exact loss: of the given moments in training, of the population if sequences are given.

        With P > 0 a run's `train_loss` is therefore that of the P sequences, and its `loss` that of the population,
        whose plateaus Eq. 5 gives. On sequences the model is called as well, so that hooks can change the loss.
        """
        M: Tensor = model.product()  # [D, D]
        if isinstance(batch, RegressionMoments):
            return exact_loss(M, batch)
        beta, x, y = examples(batch, self.config.every)  # [n, Q, D], [n, Q, D], [n, Q]
        hooked: Tensor = (y - model(batch.tokens)).square().mean()
        plain = (y - ((beta @ M) * x).sum(-1)).square().mean()
        return exact_with_hooks(exact_loss(M, move(self.population, M.device)), hooked, plain)

    def metrics(self, output: Tensor, batch: RegressionSequences) -> dict[str, Tensor]:
        """Returns the squared error on the evaluation sequences alone."""
        _, _, y = examples(batch, self.config.every)
        return {"sampled_loss": (y - output).square().mean()}

    def predictions(self) -> Sequence[Prediction]:
        per_step = 2 * self.config.lr  # flow time of one step, in units of tau
        flow = FlowReference.of(self, self.config.steps * per_step)
        return [*plateau_levels(self), flow.loss_curve(per_step), *flow.predictions(per_step)]


class RawSequences(TrainedProblem):
    """The same attention over the tokens themselves, with every block trained. It checks the exact task."""

    id = "linear-icl/sequences"
    title = "linear or softmax attention over the raw sequences, every block trained"
    Config = SequencesConfig
    presets = {
        "quick": {"P": 1000, "batch_size": 1000, "eval_size": 1000},
        "paper": PAPER | {"batch_size": 5000},  # full batches, as the authors' train.py
        "fig3": {"attention": "softmax", "blocks": "zero", "P": 500, "batch_size": 500, "w_init": 0.05, "lr": 0.5},
    }
    sources = TRAINED | {"train.py of the authors' code: full batches": ("batch_size",)}

    def build_model(self) -> InContextRegressor:
        c = self.config
        return self._model(AllBlocksAttention(self.start(), c.attention, c.every, frozen=c.blocks == "zero"))

    def rate_moments(self) -> RegressionMoments | None:
        return self.population if self.config.attention == "linear" else None

    def batches(self, device: torch.device | str) -> Callable[[int], RegressionSequences]:
        """Returns all P sequences at every step if they fit into one batch, otherwise batches of them."""
        if 0 < self.config.P <= self.config.batch_size:
            return FixedBatch(self.training_set, device)
        return super().batches(device)

    def loss(self, model: Any, batch: RegressionSequences) -> Tensor:
        """Returns the mean squared error at the query, or at every token but the first (Eq. 9)."""
        y = batch.y[:, 1:] if self.config.every else batch.y[:, -1:]
        error: Tensor = y - model(batch.tokens)
        return error.square().mean()

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        """Returns Eq. 44 or 50 for linear attention with zero blocks, and nothing otherwise: they hold only there."""
        c = self.config
        return super().conserved(model) if (c.attention, c.blocks) == ("linear", "zero") else {}

    def stage_names(self) -> Sequence[str]:
        return super().stage_names() if self.config.attention == "linear" else []

    def predictions(self) -> Sequence[Prediction]:
        return plateau_levels(self) if self.config.attention == "linear" else []
