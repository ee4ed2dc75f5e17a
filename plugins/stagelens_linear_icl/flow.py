"""Full-batch gradient descent on the exact loss, for many seeds at once, and its limit, the gradient flow.

Arrays of weights may have a leading dim [S] of seeds; all seeds are then stepped together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens import Flow, Prediction, Reading
from stagelens.experiments import Floats, State, recording_times, solve
from stagelens.timelines import first_crossing
from stagelens_linear_icl import theory
from stagelens_linear_icl.config import PAPER, PUBLISHED, ProblemFlowConfig
from stagelens_linear_icl.data import RegressionMoments
from stagelens_linear_icl.losses import Pairs, as_heads, as_pairs, gradients, loss_of, rates, sharpness
from stagelens_linear_icl.model import HeadWeights, product, stack
from stagelens_linear_icl.probes import component_readings, learned

MAX_STIFF = 200  # weights; with more, the Jacobian of an implicit method costs more time than it saves
ON_PLATEAU = 0.005 ** (1 / 3)  # of a head's final value; below it, less than 1% of the coming drop is done


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

    def path(self, problem: theory.Problem, index: int = 0) -> WeightPath:
        """Returns the path of one seed."""
        weights = HeadWeights(*(part[:, index] for part in self.weights))
        return WeightPath(problem, self.times, self.loss[:, index], weights)


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
    rate, jacobian = flat_rates(H, R, D, moments)
    start = np.concatenate([part.ravel() for part in weights])
    ways: dict[str, Any] = {"jac": lambda _, flat: jacobian(flat)} if len(start) <= MAX_STIFF else {"method": "RK45"}
    states = solve(lambda _, flat: rate(flat), start, times, rtol=rtol, atol=atol, **ways).states
    return as_weights(states, H, R, D)


def flat_rates(H: int, R: int, D: int, moments: RegressionMoments) -> tuple[Callable[[Any], Any], Callable[..., Any]]:
    """Returns Eq. 24 or 45 and its Jacobian as functions of all weights in one array, [..., weight]."""
    cross, second = moments.cross.numpy(), moments.second.numpy()

    def rate(flat: Any) -> Any:
        dv, dk, dq = gradients(_flat_pairs(flat, H, R, D), R, cross, second)
        shape = (*flat.shape[:-1], -1)
        return np.concatenate([dv[..., ::R], dk.reshape(shape), dq.reshape(shape)], axis=-1)

    def jacobian(flat: Floats) -> Floats:
        """Returns the exact Jacobian by one call with an imaginary step, because a rate is a polynomial."""
        steps = 1e-30j * np.eye(len(flat))
        derivative: Floats = rate(flat + steps).imag.T / 1e-30
        return derivative

    return rate, jacobian


def as_weights(flat: Floats, H: int, R: int, D: int) -> HeadWeights:
    """Returns the weights in an array [..., weight]."""
    return as_heads(_flat_pairs(flat, H, R, D), R)


def _flat_pairs(flat: Any, H: int, R: int, D: int) -> Pairs:
    v, k, q = np.split(flat, [H, H + H * R * D], axis=-1)  # [..., weight]
    shape = (*flat.shape[:-1], H * R, D)
    return v.repeat(R, axis=-1), k.reshape(shape), q.reshape(shape)


@dataclass(frozen=True)
class WeightPath:
    """The loss [T] and weights of one seed over `times` [T], in units of tau, and the problem that they solve."""

    problem: theory.Problem
    times: Floats
    loss: Floats
    weights: HeadWeights

    @cached_property
    def drops(self) -> list[float]:
        """The time at which half of each drop is done. Drops that are not reached are left out."""
        found = [first_crossing(self.times, self.loss, half, rising=False) for half in self.problem.half_drops]
        return [time for time in found if time is not None]

    @cached_property
    def middles(self) -> list[int]:
        """The index of the middle of each plateau in log time. The last plateau lasts until the end."""
        ends = [max(self.times[1], 1.0), *self.drops, self.times[-1]]
        return [int(np.abs(self.times - np.sqrt(a * b)).argmin()) for a, b in pairwise(ends)]

    @cached_property
    def learned(self) -> Floats:
        """The learned fraction of each eigenvector, [T, D]."""
        return learned(product(self.weights), self.problem.fixed_points)

    def time_learned(self, d: int, fraction: float) -> float | None:
        """Returns the time at which this fraction of e_{d+1} is learned, or None if it is not by the end."""
        return first_crossing(self.times, self.learned[:, d], fraction, rising=True)

    def head_of(self, d: int) -> int:
        """Returns the head that contributes most to e_{d+1} at the end."""
        (v, k, q), e = self.weights.at(-1), self.problem.covariance.eigenvectors[d]
        return int(np.abs(v[:, None] * (k @ e) * (q @ e)).sum(-1).argmax())

    def value_at(self, time: float, d: int) -> float:
        """Returns |v| at `time` of the head that learns e_{d+1}."""
        return abs(float(np.interp(time, self.times, self.weights.v[:, self.head_of(d)])))

    def leaving(self, d: int, learned: float) -> int | None:
        """Returns the index at which the head that learns e_{d+1} leaves its plateau.

        That is the last index with a small value before the fraction `learned` of e_{d+1} is learned; None if there is
        none, or if this fraction is not learned by the end.
        """
        if (end := self.time_learned(d, learned)) is None:
            return None
        settled = theory.settled_value(self.problem.lam, d, self.problem.inverse_length)
        small = np.abs(self.weights.v[:, self.head_of(d)]) < ON_PLATEAU * settled
        before = np.flatnonzero(small & (self.times < end))
        return int(before[-1]) if len(before) else None


def flow_path(problem: theory.Problem, start: HeadWeights, times: Floats, rtol: float = 1e-8) -> WeightPath:
    """Integrates the gradient flow of the population loss from `start`."""
    weights = gradient_flow(start, problem.population, times, rtol, rtol * 1e-3)
    return WeightPath(problem, times, loss_of(product(weights), problem.population), weights)


def largest_rate(weights: HeadWeights, settled: HeadWeights, moments: RegressionMoments, steps: int = 1000) -> float:
    """Estimates the largest rate at which descent from `weights` converges: 2 / the largest sharpness on its path.

    The path is sampled at its start, at its end from small weights (`settled`), and along a slow descent from
    `weights`, because large weights settle near their start.
    """
    slow = 0.5 / max(sharpness(weights, moments), sharpness(settled, moments))
    path = descend(stack([weights]), moments, slow, steps, record=range(0, steps + 1, steps // 10))
    points = [settled, *(path.weights.at(index).at(0) for index in range(len(path.steps)))]
    return 2 / max(sharpness(point, moments) for point in points)


class LinearFlow(theory.Problem, Flow):
    """Eq. 24, or Eq. 45 for R > 1: the gradient flow of the population loss, in units of tau."""

    id = "linear-icl/flow"
    title = "the gradient flow of linear attention on the population loss"
    Config = ProblemFlowConfig
    presets = {
        "quick": {"time": 8000},
        "paper": {"time": 2 * PAPER["lr"] * PAPER["steps"], "points": 1000}
        | {key: PAPER[key] for key in ("H", "w_init", "value_init")},
    }
    sources = PUBLISHED | {
        "the steps and the rate of the authors' README": ("time",),
        "ours": ("points",),
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

        return [*plateau_levels(self), *FlowReference.of(self, self.config.time).predictions(per_step=1.0)]
