"""What the three tasks share: the config of the regression problem, and what theory says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from stagelens import FlowConfig, Prediction, TaskConfig, Timeline
from stagelens.base import UsageError, generator
from stagelens.experiments import Config
from stagelens_linear_icl import theory
from stagelens_linear_icl.data import (
    Covariance,
    Floats,
    Moments,
    covariance_of,
    mean_inverse_length,
    population_moments,
    random_covariance,
)
from stagelens_linear_icl.descent import Weights, descend, flow, initial_weights, largest_rate, loss_of, product, stack
from stagelens_linear_icl.probe import learned

Spectrum = tuple[float, ...] | tuple[tuple[float, ...], ...] | str
FORMS = "give D eigenvalues (0.4,0.3,0.2,0.1), a power law (power:1), or a matrix ([[2,1],[1,2]])"
STEEPEST, LARGEST = 20, 1e6  # of power laws, and of what a covariance holds
JUST_LEARNED = 0.9  # of an eigenvector: t_d of Fig. 6, when the loss has just undergone the d-th drop
AT_REST = 0.005 ** (1 / 3)  # of a head's value where it settles: the loss has moved by 1% of the coming drop


class ProblemConfig(Config):
    """Sections 2.1 and 2.2."""

    D: int = Field(4, ge=1, description="dimension of x")
    N: int = Field(31, ge=1, description="length of the context; the largest where lengths vary")
    H: int = Field(4, ge=1, description="number of heads")
    R: int = Field(1, ge=1, description="rank of keys and queries")
    spectrum: Spectrum = Field((0.4, 0.3, 0.2, 0.1), description="eigenvalues of Lambda, power:exponent, or Lambda")
    eigenvectors: int = Field(0, ge=0, description="seed of Lambda's eigenvectors")
    w_init: float = Field(0.1, gt=0, le=1000, description="size of the initial weights (Eq. 20)")
    loss: Literal["query", "next-token"] = Field("query", description="scored: y_q, or every y but the first (Eq. 9)")

    @field_validator("spectrum", mode="before")
    @classmethod
    def _spectrum(cls, given: Any) -> Any:
        if isinstance(given, str):
            return _power_law(given)
        values = np.array(given, dtype=object)
        if values.ndim not in (1, 2) or not all(isinstance(v, int | float) for v in values.flat) or not values.size:
            raise ValueError(FORMS)
        numbers = values.astype(float)
        if numbers.ndim == 1 and not (numbers > 0).all():
            raise ValueError(f"the eigenvalues of a covariance are positive; {FORMS}")
        if not (np.abs(numbers) <= LARGEST).all():
            raise ValueError(f"the covariance should be of size 1, and at most {LARGEST:g}; {FORMS}")
        if numbers.ndim == 2:
            _check_matrix(numbers)
        return given

    @model_validator(mode="after")
    def _sizes(self) -> ProblemConfig:
        if not isinstance(self.spectrum, str) and len(self.spectrum) != self.D:
            what = "eigenvalues" if isinstance(self.spectrum[0], float) else "rows"
            raise ValueError(f"spectrum has {len(self.spectrum)} {what} and D is {self.D}; make them agree")
        if self.R > self.D:
            raise ValueError(f"rank R={self.R} is larger than D={self.D}; give R of at most D")
        return self

    @property
    def every(self) -> bool:
        """Whether each token but the first is scored, not the last one alone."""
        return self.loss == "next-token"


def _power_law(text: str) -> str:
    name, _, exponent = text.partition(":")
    try:
        steep = float(exponent)
    except ValueError:
        steep = np.nan
    if name != "power" or not abs(steep) <= STEEPEST:
        raise ValueError(f"{FORMS}; the exponent of a power law lies between -{STEEPEST} and {STEEPEST}")
    return text


def _check_matrix(matrix: Floats) -> None:
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a covariance is square, and this matrix is {matrix.shape[0]} by {matrix.shape[1]}")
    if not np.allclose(matrix, matrix.T):
        raise ValueError("a covariance is symmetric, and this matrix is not; give (A + A^T) / 2")
    if (least := np.linalg.eigvalsh(matrix)[0]) <= 0:
        raise ValueError(f"a covariance has positive eigenvalues, and the least of this matrix is {least:.3g}")


class TrainedConfig(TaskConfig, ProblemConfig):
    """A problem that is trained on P sequences. `train_size` is the toolkit's name for P."""

    P: int = Field(0, ge=0, description="sequences in the training set")

    @model_validator(mode="before")
    @classmethod
    def _one_size(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "train_size" in values and values["train_size"] != values.get("P", 0):
            raise ValueError("the size of the training set is called P here; give P instead of train_size")
        return values | {"train_size": values.get("P", 0)}


class ProblemFlowConfig(FlowConfig, ProblemConfig):
    """A problem whose gradient flow is integrated; its loss is the population's."""


def covariance_from(config: ProblemConfig) -> Covariance:
    """Lambda as the config says."""
    spectrum = config.spectrum
    if isinstance(spectrum, str):  # lambda_d proportional to d^-exponent, with trace 1
        law = np.arange(1, config.D + 1) ** -float(spectrum.partition(":")[2])
        return random_covariance(law / law.sum(), generator(config.eigenvectors, "eigenvectors"))
    values = np.array(spectrum, dtype=float)
    if values.ndim == 2:
        return covariance_of(values)
    return random_covariance(values, generator(config.eigenvectors, "eigenvectors"))


class Problem:
    """Mixed into a task or flow with a `ProblemConfig`: its covariance, its start and its theory."""

    config: Any
    seed: int

    @cached_property
    def covariance(self) -> Covariance:
        return covariance_from(self.config)

    @property
    def lam(self) -> Floats:
        """lambda_1..lambda_D, largest first."""
        return self.covariance.eigenvalues

    @property
    def inverse_length(self) -> float:
        """E(1/N)."""
        return mean_inverse_length(self.config.N, self.config.every)

    @cached_property
    def population(self) -> Moments:
        """The moments of the distribution of sequences."""
        return population_moments(self.covariance, self.inverse_length)

    @cached_property
    def fixed_points(self) -> Floats:
        """M_0..M_D, [D + 1, D, D]."""
        learned_first = [range(m) for m in range(self.config.D + 1)]
        return np.stack([theory.fixed_point(self.covariance, first, self.inverse_length) for first in learned_first])

    def start(self, seed: int | None = None) -> Weights:
        """The initial weights of the run's seed, or of another (Eq. 20)."""
        c = self.config
        return initial_weights(c.H, c.R, c.D, c.w_init, self.seed if seed is None else seed)

    def directions(self) -> Mapping[str, Tensor]:
        """e_1..e_D as directions of the tokens (x, y)."""
        e = torch.from_numpy(np.pad(self.covariance.eigenvectors, ((0, 0), (0, 1))))
        return {f"e{d}": direction for d, direction in enumerate(e, start=1)}

    def stage_names(self) -> Sequence[str]:
        """For R = 1 each drop is one eigenvector; for larger R one drop may be several."""
        return [f"e{d} learned" for d in range(1, self.config.D + 1)] if self.config.R == 1 else []

    def levels(self) -> list[Prediction]:
        """Eq. 5, or 12: where the loss rests."""
        losses = theory.plateau_losses(self.lam, self.inverse_length)
        where = "Eq. 12" if self.config.every else "Eq. 5"
        return [Prediction(f"L(M_{m})", "level", float(loss), where) for m, loss in enumerate(losses)]

    def drop(self, m: int, timeline: Timeline) -> float | None:
        """The step at which the loss passed half of the drop from L(M_{m-1}) to L(M_m), interpolated."""
        losses = theory.plateau_losses(self.lam, self.inverse_length)
        return crossing(*timeline.scalar("loss"), (losses[m - 1] + losses[m]) / 2)

    def refuse_divergence(self, lr: float, steps: int, moments: Moments) -> None:
        """An error where descent from the run's start diverges; it says the largest rate that would do."""
        c = self.config
        held = range(min(c.D, c.H * c.R))
        settled = theory.fixed_point_weights(self.covariance, held, self.inverse_length, c.H, c.R)
        largest = largest_rate(self.start(), settled, moments)
        if lr <= largest:
            return
        tried = descend(stack([self.start()]), moments, lr, min(steps, 2000), record=range(0, steps + 1, 10))
        if not np.isfinite(tried.loss[-1, 0]) or tried.loss[-1, 0] > 2 * tried.loss[0, 0]:
            raise UsageError(f"lr={lr:g}: descent diverges at this rate; the largest stable one is about {largest:.2g}")


def crossing(steps: Any, values: Floats, level: float) -> float | None:
    """The first step at which falling `values` [step] passed `level`, interpolated; None where they did not."""
    below = np.flatnonzero(values < level)
    if not len(below) or below[0] == 0:
        return None
    at = below[0]
    share = (values[at - 1] - level) / (values[at - 1] - values[at])
    return float(steps[at - 1] + share * (steps[at] - steps[at - 1]))


class Outlook:
    """What theory says about one run of descent: the flow from its start, and the scalar equation of each head.

    `times` [T] are in units of tau. `shares` [T, D] says how much of each eigenvector is learned.
    """

    def __init__(self, problem: Problem, end: float, points: int = 800) -> None:
        self.problem = problem
        self.times = np.append(0.0, np.geomspace(end * 1e-4, end, points))
        self.weights = flow(problem.start(), problem.population, self.times, rtol=1e-7, atol=1e-10)
        self.shares = learned(product(self.weights), problem.fixed_points)
        self.losses = loss_of(product(self.weights), problem.population)

    def time_of(self, d: int, share: float) -> float | None:
        """When this share of e_d (from 0) is learned; None: not by the end."""
        return crossing(self.times, -self.shares[:, d], -share)

    def head_of(self, d: int) -> int:
        """The head that does most for e_d at the end."""
        e = self.problem.covariance.eigenvectors[d]
        v, k, q = (part[-1] for part in self.weights)
        return int(np.abs(v[:, None] * (k @ e) * (q @ e)).sum(-1).argmax())

    def value(self, head: int, time: float) -> float:
        """The flow's v of `head` at `time`."""
        return float(np.interp(time, self.times, self.weights.v[:, head]))

    def drop_time(self, d: int) -> float | None:
        """Eqs. 38, 43: t_m + tau / (lambda^2 v(t_m)), with the value of the head that will learn e_d."""
        begin = 0.0 if d == 0 else self.time_of(d - 1, JUST_LEARNED)
        if begin is None or self.time_of(d, 0.5) is None:
            return None
        value = abs(self.value(self.head_of(d), begin))
        return begin + theory.plateau_duration(float(self.problem.lam[d]), value) if value else None

    def leaving(self, d: int) -> tuple[int, float, float] | None:
        """Where Eq. 7 starts for e_d: the head that learns it, the time at which it leaves the plateau, its value."""
        end = self.time_of(d, JUST_LEARNED)
        if end is None:
            return None
        head = self.head_of(d)
        size = np.abs(self.weights.v[:, head])
        resting = size < AT_REST * theory.settled_value(self.problem.lam, d, self.problem.inverse_length)
        before = np.flatnonzero(resting & (self.times < end))
        if not len(before):
            return None
        return head, float(self.times[before[-1]]), float(self.weights.v[before[-1], head])


def outlook_predictions(problem: Problem, outlook: Outlook, per_step: float) -> list[Prediction]:
    """The flow's loss, Eq. 7's value weights and Eq. 43's times, on an axis of which one step is `per_step` tau."""
    lam, inverse_length = problem.lam, problem.inverse_length
    times, losses = outlook.times, outlook.losses
    found = [
        Prediction(
            "gradient flow",
            "curve",
            lambda steps: np.interp(steps * per_step, times, losses),
            "Eq. 24" if problem.config.R == 1 else "Eq. 45",
        )
    ]
    for d in range(len(lam)):
        when = outlook.drop_time(d)
        if when is not None:
            step = when / per_step
            found.append(
                Prediction(
                    f"drop {d + 1}",
                    "time",
                    step,
                    "Eq. 43" if d else "Eq. 38",
                    measure=_drop(problem, d),
                    compared_with=f"step at which the loss is half-way from L(M_{d}) to L(M_{d + 1})",
                )
            )
        begin = outlook.leaving(d) if problem.config.R == 1 else None
        if begin is not None:
            head, time, value = begin

            def curve(steps: Floats, d: int = d, time: float = time, value: float = value) -> Floats:
                asked = np.append(time, np.maximum(steps * per_step, time))
                unique, back = np.unique(asked, return_inverse=True)
                solved = theory.value_curve(unique, abs(value), lam, d, inverse_length)
                return np.asarray(np.sign(value) * solved[back[1:]])

            found.append(
                Prediction(
                    f"v of head {head}, e{d + 1}",
                    "curve",
                    curve,
                    "Eq. 7",
                    series="principal_components/value",
                    window=(time / per_step, np.inf),
                    place={"head": head},
                )
            )
    return found


def _drop(problem: Problem, d: int) -> Any:
    return lambda timeline: problem.drop(d + 1, timeline)
