"""The toy tasks: six parameters trained layer by layer, and the same with tokens of D dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stagelens import Group, Prediction, Schedule, Task, Timeline, TrainingPhase
from stagelens.base import generator
from stagelens.experiments import Batch, FixedBatch, Floats, integrate
from stagelens_rich import theory
from stagelens_rich.config import HighDimConfig, RichFlowConfig, RichToyConfig
from stagelens_rich.data.toy import INDUCTION_TARGET, mixed_groups, sample_tokens
from stagelens_rich.flow import STAGES, ParameterFlow
from stagelens_rich.losses import closed_form, partial_losses
from stagelens_rich.model import LEARNED, MixedTransformer
from stagelens_rich.predictions import plateau_prediction, time_predictions
from stagelens_rich.theory import PhaseTimes

PARTS = ("loss_4gram", "loss_induction")  # the readings of L_G4 and L_IH2


def second_layer(timeline: Timeline, name: str) -> Floats:
    """Returns the norm of a parameter of the second layer, [step]; the norm of a number is its absolute value."""
    values: Floats = timeline.scalar("weight_norms/norm", {"parameter": f"blocks.1.attn.{name}"})[1]
    return values


@dataclass(frozen=True)
class LayerwiseSchedule(Schedule):
    """The schedule of Stage I, which has `first` steps, and then the same schedule for Stage II."""

    first: int = 0

    def planned(self, steps: int) -> tuple[int, ...]:
        second = (self.first + step for step in super().planned(max(steps - self.first, 1)))
        before = super().planned(self.first) if self.first else ()
        return tuple(sorted({*before, *second}))


class Mixed(Task):
    """The base of both tasks: the mixed target, the square loss in its two parts, and the balance law."""

    metric = "induction_decades"

    def parts(self, output: Tensor, batch: Tensor) -> Tensor:
        """Returns L_G4 and L_IH2, [2], of the model's output [n, 2, D] on tokens [n, L, D]."""
        return partial_losses(output, batch, self.config.alpha_star, self.config.score)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return self.parts(model(batch), batch).sum()

    def metrics(self, output: Tensor, batch: Tensor) -> Mapping[str, Tensor]:
        parts, nothing = self.parts(output, batch), self.parts(torch.zeros_like(output), batch)
        relative = (parts[1] / nothing[1] + theory.FLOOR).log10()
        return dict(zip(PARTS, parts, strict=True)) | {"induction_decades": relative}

    def groups(self) -> Mapping[str, Group]:
        return mixed_groups()

    def induction_target(self) -> Group:
        return INDUCTION_TARGET

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        """Returns Lemma 3's |w_Q^2 - w_K^2|; for matrices it is the norm of W_Q W_Q^T - W_K W_K^T."""
        Q, K = model.second.W_Q, model.second.W_K
        squares = Q**2 - K**2 if Q.dim() == 1 else Q @ Q.T - K @ K.T
        return {"|W_Q W_Q^T - W_K W_K^T|": squares.norm()}

    def stage_names(self) -> Sequence[str]:
        return STAGES


class RichToy(Mixed):
    """Six parameters, first those of the first layer, then those of the second, by online SGD (section 3)."""

    id = "rich/toy"
    title = "six parameters learn a 4-gram first and an induction head after a plateau; layerwise, online SGD"
    Config = RichToyConfig
    presets = {
        "quick": {},
        "paper": {"steps": 200_000, "first_steps": 100_000, "batch_size": 1000, "lr": 0.1, "first_lr": 0.1},
    }
    sources = {
        "B.1": ("L", "alpha_star", "w_star", "sigma_init", "steps", "first_steps", "batch_size", "lr", "first_lr")
    }
    without = {"qk_alignment": "keys and queries are single numbers, which have one component by definition"}

    def build_model(self) -> MixedTransformer:
        c = self.config
        w_Q, w_K = (torch.full((1, 1), c.sigma_init) for _ in range(2))
        return MixedTransformer(c.L, w_Q, w_K, c.sigma_init, c.sigma_init if c.first_steps else LEARNED)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns tokens [n, L, 1]."""
        return sample_tokens(n, self.config.L, 1, self.config.tokens, generator)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        c = self.config
        first, second = (list(block.parameters()) for block in model.blocks)
        return torch.optim.SGD([{"params": second}, {"params": first, "lr": c.first_lr}], lr=c.lr)

    def phases(self) -> Sequence[TrainingPhase]:
        c = self.config
        second = TrainingPhase("Stage II: second layer", c.steps - c.first_steps, ("blocks.1.*",))
        first = TrainingPhase("Stage I: first layer", c.first_steps, ("blocks.0.*",))
        return [first, second] if c.first_steps else [second]

    def schedule(self) -> Schedule:
        return LayerwiseSchedule(log=40, even=60, first=self.config.first_steps)

    def times(self, timeline: Timeline) -> tuple[Floats, Floats]:
        """Returns which measurements are of Stage II, bool [step], and the flow's time at each of those."""
        c = self.config
        inside = timeline.steps >= c.first_steps
        return inside, (timeline.steps[inside] - c.first_steps) * c.lr

    def measured_times(self, timeline: Timeline) -> PhaseTimes:
        """Returns Theorem 4's times by their definitions, in the flow's time: steps of Stage II times `lr`."""
        inside, times = self.times(timeline)
        four_gram, induction = (timeline.scalar(name)[1][inside] for name in PARTS)
        h = second_layer(timeline, "w_V2")[inside]
        return theory.phase_times(times, four_gram, induction, h, self.config.setting.h_star)

    @cached_property
    def flow(self) -> Timeline:
        """The flow on the closed forms with two parameters w_Q and w_K, up to the end of the run."""
        c = self.config
        own = {key: getattr(c, key) for key in ("L", "alpha_star", "w_star", "sigma_init", "tokens")}
        config = RichFlowConfig(**own, system="five", time=(c.steps - c.first_steps) * c.lr, points=1000)
        return Timeline(integrate(ParameterFlow(config)).measurements)

    def predictions(self) -> Sequence[Prediction]:
        """Returns both losses of the flow, the plateau's level, and Theorem 4's times."""
        c = self.config

        def curve(name: str) -> Callable[[Floats], Floats]:
            return lambda steps: np.interp((steps - c.first_steps) * c.lr, *self.flow.scalar(name))

        window = (float(c.first_steps), float(c.steps))
        curves = [
            Prediction(f"flow, {name}", "curve", curve(name), f"Eq. {number}", series=name, window=window)
            for name, number in zip(PARTS, (7, 10), strict=True)
        ]
        expected = theory.expected_times(c.setting, pair=1)
        times = time_predictions(expected, self.measured_times, lambda t: c.first_steps + t / c.lr)
        return [*curves, plateau_prediction(c.setting), *times]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_rich.figures.toy import phases

        return {"fig1" if self.config.tokens == "gaussian" else "fig3": phases(run)}


class HighDim(Mixed):
    """Matrices W_Q and W_K [D, D] with a random initialization of norm sigma_init; the first layer has learned."""

    id = "rich/high-dim"
    title = "the same with tokens of 100 dimensions, by gradient descent or Adam"
    Config = HighDimConfig
    presets = {
        "quick": {},
        "paper": {"steps": 100_000, "exact": False, "weights": "vector"},
        "fig4": {},
    }
    sources = {
        "B.3": ("D", "w_star", "sigma_init", "lr"),
        "B.3, which prints W_K, W_Q in R^D": ("weights",),
        "B.1": ("L", "alpha_star", "steps", "batch_size", "exact"),
    }

    def build_model(self) -> MixedTransformer:
        c = self.config
        shape = (c.D, c.D) if c.weights == "matrix" else (c.D,)
        start = torch.randn(2, *shape, generator=generator(self.seed, "init"))
        W_Q, W_K = (c.sigma_init * W / W.norm() for W in start)
        return MixedTransformer(c.L, W_Q, W_K, c.sigma_init, LEARNED)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns tokens [n, L, D]."""
        return sample_tokens(n, self.config.L, self.config.D, "gaussian", generator)

    def batches(self, device: torch.device | str) -> Callable[[int], Batch]:
        """Returns a function from a step to its batch; if the loss is exact, the batch is None."""
        return FixedBatch(None) if self.config.exact else super().batches(device)

    def loss(self, model: Any, batch: Tensor | None) -> Tensor:
        """Returns the closed form if `batch` is None, otherwise the loss on its sequences."""
        if batch is not None:
            return super().loss(model, batch)
        c = self.config
        return closed_form(model.second, c.alpha_star, c.score, c.L).sum()

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if self.config.optimizer == "adam" else torch.optim.SGD
        return kind(model.parameters(), lr=self.config.lr)

    def phases(self) -> Sequence[TrainingPhase]:
        return [TrainingPhase("Stage II: second layer", self.config.steps, ("blocks.1.*",))]

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        """Returns the balance law for gradient descent; Adam does not conserve it."""
        return super().conserved(model) if self.config.optimizer == "gd" else {}

    def plateau(self) -> float:
        """Returns L_IH2 per dimension for W_Q = W_K = 0 and the best w_V2."""
        c = self.config
        psi = {k: (1 - (k * c.score) ** 2) ** (-c.D / 2) for k in (1, 2)}
        return float((psi[2] - psi[1] ** 2) / (2 * (1 + c.alpha_star) ** 2 * (c.L - 2)))

    def predictions(self) -> Sequence[Prediction]:
        return [Prediction("plateau", "level", self.plateau(), "Eq. 10 in D dimensions at w = 0", "loss_induction")]

    def schedule(self) -> Schedule:
        return Schedule(log=30, even=60)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_rich.figures.toy import optimizers, phases

        return {"fig4": optimizers(run)} if run.manifest.preset == "fig4" else {"phases": phases(run)}
