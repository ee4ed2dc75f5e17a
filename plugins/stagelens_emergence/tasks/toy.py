"""The toy model, trained on its exact expected loss or on sampled sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stagelens import Group, Prediction, Schedule, Task
from stagelens.base import generator
from stagelens.experiments import FixedBatch, exact_with_hooks, move
from stagelens_emergence.config import EmergenceToyConfig
from stagelens_emergence.data.toy import (
    Draws,
    RelevantMoments,
    SingleLocationBatch,
    relevant_moments,
    sample_draws,
    sample_sequences,
    target_weights,
)
from stagelens_emergence.losses import drawn_loss, expected_loss, half_error
from stagelens_emergence.model import ToyTransformer
from stagelens_emergence.theory import ReducedModel, model_flow


class EmergenceToy(Task):
    """Gradient descent on (a, W). `loss` is the test loss of D.1: on data without cross-sample repetition."""

    id = "emergence/toy"
    title = "one attention vector and one weight matrix learn to read a single token; exact expected loss"
    Config = EmergenceToyConfig
    presets = {
        "quick": {},
        "paper": {"T": 512, "steps": 25_000},
        # A.3.4: T, d, batch size 32 and learning rate 1 (the defaults), W and W* from N(0, 1/d). The steps are ours.
        "fig9": {"T": 256, "d": 256, "sampled": True, "init_scale": 1.0, "target": "gaussian", "steps": 9000},
    }
    sources = {
        "Fig. 1": ("T", "d"),
        "Table 1": ("lr",),
        "Assumptions 3 and 4": ("target", "init_scale"),
        "ours": ("steps",),
    }
    probes = ("single_location", "plateau_length")
    without = {
        "head_specialization": "the model has one head, and specialization compares heads",
        "induction": "the attention belongs to positions and does not depend on the tokens",
        "qk_alignment": "the attention scores belong to positions, without keys and queries",
    }

    @property
    def dtype(self) -> torch.dtype:
        """float64 for the exact loss, float32 for sampled sequences."""
        return torch.float32 if self.config.sampled else torch.float64

    @cached_property
    def W_star(self) -> Tensor:
        """W* [d, d] of the run's seed."""
        c = self.config
        return target_weights(c.d, c.target, generator(self.seed, "target")).to(self.dtype)

    def build_model(self) -> ToyTransformer:
        c = self.config
        normal = torch.randn(c.d, c.d, generator=generator(self.seed, "init"), dtype=torch.float64)
        return ToyTransformer(c.T, c.B, (c.init_scale / c.d**0.5 * normal).to(self.dtype), self.W_star)

    def sample(self, n: int, generator: torch.Generator) -> SingleLocationBatch:
        """Draws n test sequences: with B, without p."""
        return sample_sequences(self.W_star, self.config.T, self.config.B, 0.0, n, generator)

    def sample_train(self, n: int, generator: torch.Generator) -> Draws:
        """Draws for n training sequences what their loss needs: with B and p."""
        c = self.config
        return sample_draws(c.d, c.T, c.B, c.p, n, generator, self.dtype)

    def batches(self, device: torch.device | str) -> Callable[[int], RelevantMoments | Draws]:
        """Returns step -> fresh draws if `sampled`, else the moments of the data at every step."""
        if self.config.sampled:
            return super().batches(device)
        return FixedBatch(relevant_moments(self.config.d, self.config.p), device)

    def loss(self, model: Any, batch: RelevantMoments | Draws | SingleLocationBatch) -> Tensor:
        """Returns the mean of |y - y*|^2 / 2: on moments and draws in training, on sequences in evaluation.

        The evaluation loss is the exact test loss, plus what hooks change in the error on the sequences.
        """
        if isinstance(batch, RelevantMoments):
            return expected_loss(model, batch)
        if isinstance(batch, Draws):
            return drawn_loss(model, batch)
        exact = expected_loss(model, move(self.test_moments, batch.x.device))
        plain = half_error(torch.einsum("k,bkd->bd", model.alpha, batch.x) @ model.W.T, batch.y)
        return exact_with_hooks(exact, half_error(model(batch.x), batch.y), plain)

    @cached_property
    def test_moments(self) -> RelevantMoments:
        """The moments of the test data, which have no cross-sample repetition."""
        return RelevantMoments(relevant_moments(self.config.d, 0.0).relevant.to(self.dtype))

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.lr)

    def groups(self) -> Mapping[str, Group]:
        c = self.config
        return {"relevant": Group(positions=tuple(range(c.T - c.B, c.T)))}

    @property
    def reduced(self) -> ReducedModel:
        """The same problem in two or three variables."""
        c = self.config
        return model_flow(c.T, c.d, c.B, c.p)

    def predictions(self) -> Sequence[Prediction]:
        from stagelens_emergence.predictions import toy_predictions

        return toy_predictions(self.reduced, self.config.lr)

    def stage_names(self) -> Sequence[str]:
        return ["attention emerges"]

    def schedule(self) -> Schedule:
        return Schedule(log=20, even=100)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_emergence.figures.toy import toy_figures

        return toy_figures(run)
