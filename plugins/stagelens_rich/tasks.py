"""The trained tasks: six parameters layer by layer, and the same with tokens of D dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from stagelens import Group, Prediction, Schedule, Task, TaskConfig, Timeline, TrainingPhase
from stagelens.base import generator
from stagelens.experiments import Config, Floats
from stagelens_rich import theory
from stagelens_rich.data import mixed_target, sample_tokens
from stagelens_rich.flow import STAGES, RichFlow, RichFlowConfig
from stagelens_rich.losses import closed_form
from stagelens_rich.model import LEARNED, MixedTransformer
from stagelens_rich.problem import Mixture, setting_of, time_predictions
from stagelens_rich.theory import PhaseTimes, Tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens import Run

PROBES = ("attention_sparsity", "head_specialization", "weight_norms", "conserved")
NORM = "weight_norms/norm"
SECOND = "blocks.1.attn."
PARTS = ("loss_4gram", "loss_induction")


@dataclass(frozen=True)
class LayerwiseSchedule(Schedule):
    """The schedule of each stage, one after the other."""

    first: int = 0

    def planned(self, steps: int) -> tuple[int, ...]:
        second = (self.first + step for step in super().planned(max(steps - self.first, 1)))
        before = super().planned(self.first) if self.first else ()
        return tuple(sorted({*before, *second}))


class Mixed(Task):
    """What both tasks share: the mixed target, the square loss in its two parts, and the balance law."""

    metric: ClassVar[str] = "induction_decades"
    probes: ClassVar[Sequence[str] | None] = PROBES

    def parts(self, output: Tensor, batch: Tensor) -> Tensor:
        """L_G4 and L_IH2 of the model's output [n, 2, D] on tokens [n, L, D], [2] (after Eq. 3)."""
        error = output - mixed_target(batch, self.config.alpha_star, self.config.score)
        return 0.5 * error.square().sum(-1).mean(0) / batch.shape[-1]

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return self.parts(model(batch), batch).sum()

    def metrics(self, output: Tensor, batch: Tensor) -> Mapping[str, Tensor]:
        parts, nothing = self.parts(output, batch), self.parts(torch.zeros_like(output), batch)
        decades = (parts[1] / nothing[1] + theory.FLOOR).log10()
        return dict(zip(PARTS, parts, strict=True)) | {"induction_decades": decades}

    def groups(self) -> Mapping[str, Group]:
        """The token before the query: what layer 1 should fetch; through it, head (2,1) reads x_(L-2)."""
        return {"previous": Group(offsets=(1,))}

    def conserved(self, model: Any) -> Mapping[str, Tensor]:
        """Lemma 3: |w_Q^2 - w_K^2|, or with matrices the norm of W_Q W_Q^T - W_K W_K^T."""
        Q, K = model.second.W_Q, model.second.W_K
        return {"|W_Q W_Q^T - W_K W_K^T|": (Q @ Q.T - K @ K.T).norm()}


class ToyTaskConfig(Mixture, TaskConfig):
    """`steps` counts both stages: `first_steps` for the first layer, the rest for the second."""

    tokens: Tokens = Field("gaussian", description="gaussian, or boolean: +1 and -1 (Fig. 3)")
    steps: int = Field(3300, description="training steps of both stages")
    batch_size: int = Field(250, description="sequences in a training batch")
    lr: float = Field(1.5, description="learning rate of Stage II")
    eval_size: int = Field(2000, description="sequences in the fixed evaluation batch")
    first_steps: int = Field(500, description="steps of Stage I; 0: the first layer starts out learned")
    first_lr: float = Field(3000.0, description="learning rate of Stage I, whose gradient is of order sigma_init/L")

    @field_validator("first_steps")
    @classmethod
    def _count(cls, value: int) -> int:
        if value < 0:
            raise ValueError("it should be at least 0")
        return value

    @field_validator("first_lr")
    @classmethod
    def _rate(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("it should be above 0")
        return value

    @model_validator(mode="after")
    def _two_stages(self) -> ToyTaskConfig:
        if self.first_steps >= self.steps:
            raise ValueError(
                f"first_steps={self.first_steps} of steps={self.steps} leave none for the second layer; "
                f"give steps > {self.first_steps}, or first_steps=0"
            )
        return self

    @property
    def score(self) -> float:
        """What the target's attention multiplies x_L x_(s-1) with."""
        return self.w_star**2


class Toy(Mixed):
    """Six parameters, the first layer's before the second's, by online SGD on the square loss (3)."""

    id = "rich/toy"
    title = "six parameters learn a 4-gram first and an induction head after a plateau; layerwise, online SGD"
    Config: ClassVar[type[Config]] = ToyTaskConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"steps": 200_000, "first_steps": 100_000, "batch_size": 1000, "lr": 0.1, "first_lr": 0.1},
    }

    def build_model(self) -> MixedTransformer:
        c = self.config
        w_Q, w_K = (torch.full((1, 1), c.sigma_init) for _ in range(2))
        return MixedTransformer(c.L, w_Q, w_K, c.sigma_init, c.sigma_init if c.first_steps else LEARNED)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """[n, L, 1]"""
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
        """Which measurements are of Stage II, bool [step], and the flow's time at each of those."""
        c = self.config
        inside = timeline.steps >= c.first_steps
        return inside, (timeline.steps[inside] - c.first_steps) * c.lr

    def measured_times(self, timeline: Timeline) -> PhaseTimes:
        """Theorem 4's times by their definitions, in the flow's time: steps of Stage II by `lr`."""
        inside, times = self.times(timeline)
        four_gram, induction = (timeline.scalar(name)[1][inside] for name in PARTS)
        h = timeline.scalar(NORM, {"parameter": f"{SECOND}w_V2"})[1][inside]
        return theory.phase_times(times, four_gram, induction, h, setting_of(self.config).h_star)

    @cached_property
    def flow(self) -> Timeline:
        """The flow on the closed forms with w_Q and w_K apart, as far as the run goes."""
        from stagelens.experiments import integrate

        c = self.config
        own = {key: getattr(c, key) for key in ("L", "alpha_star", "w_star", "sigma_init", "tokens")}
        config = RichFlowConfig(**own, system="five", time=(c.steps - c.first_steps) * c.lr, points=1000)
        return Timeline(integrate(RichFlow(config)).measurements)

    def predictions(self) -> Sequence[Prediction]:
        """Both losses by the flow, the plateau's level, and Theorem 4's times."""
        c = self.config
        s = setting_of(c, c.tokens)

        def curve(name: str) -> Callable[[Floats], Floats]:
            return lambda steps: np.interp((steps - c.first_steps) * c.lr, *self.flow.scalar(name))

        window = (float(c.first_steps), float(c.steps))
        curves = [
            Prediction(f"flow, {name}", "curve", curve(name), f"Eq. {number}", series=name, window=window)
            for name, number in zip(PARTS, (7, 10), strict=True)
        ]
        plateau = float(theory.induction_loss(0.0, s.h_plateau, s))
        level = Prediction("plateau", "level", plateau, "Eq. 10 at w = 0", series="loss_induction")
        expected = theory.expected_times(s, pair=1)
        return [*curves, level, *time_predictions(expected, self.measured_times, lambda t: c.first_steps + t / c.lr)]

    def stage_names(self) -> Sequence[str]:
        return STAGES

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_rich import figures

        return {"fig1" if self.config.tokens == "gaussian" else "fig3": figures.phases(run)}


class HighDimConfig(Mixture, TaskConfig):
    """Tokens of D dimensions (B.3). `exact` trains on the closed forms, else on fresh sequences at every step."""

    L: int = Field(40, description="tokens in a sequence")
    w_star: float = Field(0.49, description="the target attends by (w*/D) x_L . x_(s-1)")
    D: int = Field(100, ge=1, description="dimensions of a token")
    optimizer: Literal["adam", "gd"] = Field("adam", description="Adam, or plain gradient descent")
    exact: bool = Field(True, description="the population loss in closed form; false: sampled sequences")
    steps: int = Field(2500, description="training steps")
    batch_size: int = Field(1000, description="sequences in a training batch, where they are sampled")
    lr: float = Field(0.0, description="learning rate; unless given, 5e-4 for Adam and 0.1 for gradient descent")
    eval_size: int = Field(100, description="sequences in the fixed evaluation batch")

    @model_validator(mode="after")
    def _rate(self) -> HighDimConfig:
        if self.lr == 0:
            object.__setattr__(self, "lr", {"adam": 5e-4, "gd": 0.1}[self.optimizer])
        if self.exact and self.train_size:
            raise ValueError("the exact loss has no training set; give train_size=0, or exact=false")
        return self

    @property
    def score(self) -> float:
        """What the target's attention multiplies x_L . x_(s-1) with: w* = 0.49 I/D is its matrix."""
        return float(self.w_star / self.D)


class HighDim(Mixed):
    """W_Q and W_K of D by D from a random start of norm sigma_init; the first layer has learned."""

    id = "rich/high-dim"
    title = "the same with tokens of 100 dimensions, by gradient descent or Adam"
    Config: ClassVar[type[Config]] = HighDimConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"steps": 100_000, "exact": False},
        "fig4": {},
    }

    def build_model(self) -> MixedTransformer:
        c = self.config
        start = torch.randn(2, c.D, c.D, generator=generator(self.seed, "init"))
        W_Q, W_K = (c.sigma_init * W / W.norm() for W in start)
        return MixedTransformer(c.L, W_Q, W_K, c.sigma_init, LEARNED)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """[n, L, D]"""
        return sample_tokens(n, self.config.L, self.config.D, "gaussian", generator)

    def batches(self, device: torch.device | str) -> Callable[[int], Tensor | None]:
        """No sequences at all where the loss is exact."""
        return (lambda step: None) if self.config.exact else super().batches(device)  # noqa: ARG005

    def loss(self, model: Any, batch: Tensor | None) -> Tensor:
        """The closed form, or the loss on the sequences of a batch."""
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
        """The balance law is one of gradient descent, not of Adam."""
        return super().conserved(model) if self.config.optimizer == "gd" else {}

    def plateau(self) -> float:
        """L_IH2 per dimension where W_Q, W_K = 0 and w_V2 has adapted."""
        c = self.config
        a, D = c.score, c.D
        psi = {k: (1 - (k * a) ** 2) ** (-D / 2) for k in (1, 2)}
        return float((psi[2] - psi[1] ** 2) / (2 * (1 + c.alpha_star) ** 2 * (c.L - 2)))

    def predictions(self) -> Sequence[Prediction]:
        return [Prediction("plateau", "level", self.plateau(), "Eq. 10 in D dimensions at w = 0", "loss_induction")]

    def schedule(self) -> Schedule:
        return Schedule(log=30, even=60)

    def stage_names(self) -> Sequence[str]:
        return STAGES

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_rich import figures

        return {"fig4": figures.optimizers(run)} if run.manifest.preset == "fig4" else {"phases": figures.phases(run)}
