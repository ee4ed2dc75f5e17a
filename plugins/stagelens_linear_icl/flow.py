"""Full-batch gradient descent on the exact loss, for many seeds at once, and its limit, the gradient flow.

Arrays of weights may have a leading dim [S] of seeds; all seeds are then stepped together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stagelens import Flow, Prediction, Reading
from stagelens.experiments import Config, Floats, State, recording_times, solve
from stagelens_linear_icl import theory
from stagelens_linear_icl.config import ProblemFlowConfig
from stagelens_linear_icl.data import RegressionMoments
from stagelens_linear_icl.losses import as_heads, as_pairs, gradients, loss_of, rates, sharpness
from stagelens_linear_icl.model import HeadWeights, product, stack
from stagelens_linear_icl.probes import component_readings

MAX_STIFF = 200  # weights; with more, the Jacobian of an implicit method costs more time than it saves


@dataclass(frozen=True)
class Descent:
    """The recorded steps of a descent: loss [step, S], and weights v [step, S, H], k and q [step, S, H, R, D]."""

    steps: NDArray[np.int64]
    lr: float
    loss: Floats
    weights: HeadWeights

    @property
    def times(self) -> Floats:
        """Flow time in units of tau: a step of size lr follows dL/dW, the flow follows 1/2 dL/dW."""
        return np.asarray(2 * self.lr * self.steps, dtype=np.float64)

    def seed(self, index: int) -> Descent:
        """Returns the descent of one seed, without the seed dim."""
        weights = HeadWeights(*(part[:, index] for part in self.weights))
        return Descent(self.steps, self.lr, self.loss[:, index], weights)


def descend(
    weights: HeadWeights, moments: RegressionMoments, lr: float, steps: int, record: Iterable[int] | None = None
) -> Descent:
    """Runs `steps` of gradient descent at rate `lr` from `weights` (a stack of S seeds).

    Records the steps in `record`, by default those of `record_steps`. Stops after recording a loss that is not finite.
    """
    R = weights.k.shape[-2]
    v, k, q = as_pairs(weights)
    pairs = v.copy(), k.copy(), q.copy()
    cross, second = moments.cross.numpy(), moments.second.numpy()
    wanted = set(record_steps(steps) if record is None else record)
    recorded: list[tuple[int, Floats, HeadWeights]] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(steps + 1):
            if step in wanted:
                now = HeadWeights(*(part.copy() for part in as_heads(pairs, R)))
                recorded.append((step, loss_of(product(now), moments), now))
                if not np.isfinite(recorded[-1][1]).all():
                    break
            for part, gradient in zip(pairs, gradients(pairs, R, cross, second), strict=True):
                part += 2 * lr * gradient
    numbers, losses, history = zip(*recorded, strict=True)
    return Descent(np.array(numbers), lr, np.stack(losses), stack(history))


def record_steps(steps: int, count: int = 1000) -> list[int]:
    """Returns about `count` steps from 0 to `steps`: half evenly spaced, half evenly spaced in log time."""
    times = recording_times(steps, even=count // 2, log=count // 2, first=1)
    return [int(step) for step in np.unique(np.rint(times))]


def gradient_flow(
    weights: HeadWeights, moments: RegressionMoments, times: Floats, rtol: float = 1e-9, atol: float = 1e-12
) -> HeadWeights:
    """Integrates Eq. 24 or 45 for one seed. Returns v [T, H], k and q [T, H, R, D] at `times` [T], in units of tau."""
    H, R, D = weights.k.shape
    ends = [H, H + H * R * D]

    def unflatten(flat: Any) -> HeadWeights:
        v, k, q = np.split(flat, ends, axis=-1)  # [..., weight]
        shape = (*v.shape[:-1], H, R, D)
        return HeadWeights(v, k.reshape(shape), q.reshape(shape))

    def rate(_: float, flat: Any) -> Any:
        dv, dk, dq = rates(unflatten(flat), moments)
        shape = (*dv.shape[:-1], -1)
        return np.concatenate([dv, dk.reshape(shape), dq.reshape(shape)], axis=-1)

    def jacobian(time: float, flat: Floats) -> Floats:
        """Returns the exact Jacobian by one call with an imaginary step, because a rate is a polynomial."""
        steps = 1e-30j * np.eye(len(flat))
        derivative: Floats = rate(time, flat + steps).imag.T / 1e-30
        return derivative

    start = np.concatenate([part.ravel() for part in weights])
    ways: dict[str, Any] = {"jac": jacobian} if len(start) <= MAX_STIFF else {"method": "RK45"}
    return unflatten(solve(rate, start, times, rtol=rtol, atol=atol, **ways).states)


def largest_rate(weights: HeadWeights, settled: HeadWeights, moments: RegressionMoments, steps: int = 1000) -> float:
    """Estimates the largest rate at which descent from `weights` converges: 2 / the largest sharpness on its path.

    The path is sampled at its start, at its end from small weights (`settled`), and along a slow descent from
    `weights`, because large weights settle near their start.
    """
    slow = 0.5 / max(sharpness(weights, moments), sharpness(settled, moments))
    path = descend(stack([weights]), moments, slow, steps, record=range(0, steps + 1, steps // 10)).seed(0)
    points = [settled, *(path.weights.at(index) for index in range(len(path.steps)))]
    return 2 / max(sharpness(point, moments) for point in points)


class LinearFlow(theory.Problem, Flow):
    """Eq. 24, or Eq. 45 for R > 1: the gradient flow of the population loss, in units of tau."""

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
        return rates(HeadWeights(**state), self.population)._asdict()

    def observables(self, time: float, state: State) -> Iterable[Reading]:  # noqa: ARG002
        weights = HeadWeights(**state)
        M = product(weights)
        yield Reading("loss", float(loss_of(M, self.population)))
        for reading in component_readings(M, *weights, self.fixed_points, self.covariance.eigenvectors):
            yield replace(reading, name=f"principal_components/{reading.name}")
        now, first = theory.conserved(*weights), theory.conserved(*self.start())
        drift = max(float(np.abs(now[name] - first[name]).max() / np.abs(first[name]).max()) for name in now)
        yield Reading("conserved/drift", drift)

    def predictions(self) -> Sequence[Prediction]:
        from stagelens_linear_icl.predictions import FlowReference, plateau_levels

        return [*plateau_levels(self), *FlowReference(self, self.config.time).predictions(per_step=1.0)]
