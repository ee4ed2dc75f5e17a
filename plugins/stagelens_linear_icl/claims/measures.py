"""What the claims compute: descents and flows from many seeds, and the numbers that are read off them.

Most claims need no training run, because descent on the exact loss takes microseconds per step. A drop of the loss
happens when half of it is done. A small start is w_init = 0.005: the smaller it is, the better the heads are aligned
before they grow, and the more of them grow one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stagelens import Check, detect_stages
from stagelens.base import generator
from stagelens.claims import Value, close, equal, per_seed, reached
from stagelens.experiments import Floats, nearest_pairs, recording_times
from stagelens.stages import Stages
from stagelens.timelines import line_fit
from stagelens_linear_icl import theory
from stagelens_linear_icl.data import RegressionMoments, examples, sample_sequences
from stagelens_linear_icl.flow import LinearFlow, WeightPath, descend, flow_path, record_steps
from stagelens_linear_icl.losses import exact_loss
from stagelens_linear_icl.model import AllBlocksAttention, HeadWeights, product, stack
from stagelens_linear_icl.predictions import ON_PLATEAU
from stagelens_linear_icl.probes import cosines
from stagelens_linear_icl.tasks import Separate

SMALL = 0.005  # w_init of a small start
LONG = {"w_init": SMALL, "lr": 0.4, "steps": 200_000}  # until all drops of the first six seeds are over
POINTS = 1500  # at which stages are detected, evenly spaced in log time


def separate(**settings: Any) -> Separate:
    """Returns the exact task with these settings."""
    return Separate(Separate.Config.model_validate(settings))


def descents(task: Separate, seeds: Iterable[int]) -> dict[int, WeightPath]:
    """Runs exact descent from the starts of `seeds`, all together, and records it finely enough to follow a drop."""
    seeds = list(seeds)
    lr, steps = task.config.lr, task.config.steps
    record = {*range(0, steps + 1, 10), *record_steps(steps)}
    found = descend(stack([task.start(seed) for seed in seeds]), task.moments, lr, steps, record)
    return {seed: found.path(task, index) for index, seed in enumerate(seeds)}


@cache
def small_starts(seeds: tuple[int, ...]) -> dict[int, WeightPath]:
    """Returns descents of Fig. 1 from small starts. L1, L2, L3 and L5 share them."""
    return descents(separate(**LONG), seeds)


def dwells(path: WeightPath) -> Floats:
    """Returns how long the loss stays at each level, from half of one drop to half of the next, [drops]."""
    return np.diff([0.0, *path.drops])


def stages(path: WeightPath) -> Stages:
    """Returns the stages of the loss, in log time."""
    wanted = np.searchsorted(path.times, np.geomspace(1.0, path.times[-1], POINTS))
    wanted = np.unique(wanted.clip(0, len(path.times) - 1))
    return detect_stages(path.times[wanted], path.loss[wanted], axis="log")


def level_checks(paths: dict[int, WeightPath], reference: str) -> Iterable[Check]:
    """Yields two checks: the loss falls in D drops, and its plateaus are at the levels of theory."""
    problem = next(iter(paths.values())).problem
    found = {seed: stages(path) for seed, path in paths.items()}
    drops = {seed: len(one.transitions) for seed, one in found.items()}
    yield per_seed(equal, "drops of the loss", drops, problem.config.D, reference)
    levels = {seed: matching_levels(problem.plateaus, one) for seed, one in found.items()}
    yield per_seed(close, "levels of the plateaus", levels, problem.plateaus, 0.03, reference)


def matching_levels(expected: Floats, found: Stages) -> Value:
    """Returns the level of the detected plateau that belongs to each expected level, in words if there is none."""
    levels = [plateau.level for plateau in found.plateaus]
    return reached([None if i is None else levels[i] for i in nearest_pairs(expected.tolist(), levels)])


def value_errors(path: WeightPath) -> list[float]:
    """Returns `value_error` of every eigenvector."""
    return [value_error(path, d) for d in range(path.problem.config.D)]


def value_error(path: WeightPath, d: int) -> float:
    """Returns the largest relative distance from Eq. 7 of the value of the head that learns e_{d+1}.

    It is measured from when the head leaves its plateau (1% of the drop is done) until 99% of e_{d+1} is learned. It is
    nan if that does not happen.
    """
    lam, inverse_length = path.problem.lam, path.problem.inverse_length
    learned_at = np.flatnonzero(path.learned[:, d] > 0.99)
    if not len(learned_at):
        return float("nan")
    value = np.abs(path.weights.v[: learned_at[0] + 1, path.head_of(d)])
    on_plateau = np.flatnonzero(value[:-1] < ON_PLATEAU * theory.settled_value(lam, d, inverse_length))
    if not len(on_plateau):
        return float("nan")
    begin = int(on_plateau[-1])
    curve = theory.value_curve(path.times[begin : len(value)], float(value[begin]), lam, d, inverse_length)
    return float(np.max(np.abs(value[begin:] / curve - 1)))


def best_cosines(path: WeightPath, side: str) -> Value:
    """Returns |cosine| with e_m of the key or query that learns it, on the plateau after drop m, for m = 1..D."""
    e, D = path.problem.covariance.eigenvectors, path.problem.config.D
    found: list[float | None] = [None] * D
    for m in range(len(path.drops)):
        after = path.weights.at(path.middles[m + 1])
        found[m] = float(cosines(getattr(after, side), e)[path.head_of(m), m])
    return reached(found)


def half_times(path: WeightPath) -> Value:
    """Returns the time at which half of each eigenvector is learned."""
    found = [path.time_learned(d, 0.5) for d in range(path.problem.config.D)]
    return reached(found, by=path.times[-1])


def regression_error(path: WeightPath, m: int) -> float:
    """Returns |prediction - Eq. 8| / |Eq. 8| on plateau m + 1 and fresh sequences; nan if it is not reached."""
    problem = path.problem
    if m > len(path.drops):
        return float("nan")
    sequences = sample_sequences(problem.covariance, problem.config.N, 2000, generator(problem.seed, "fresh"))
    beta, x = (part[:, 0].numpy() for part in examples(sequences)[:2])
    predicted = ((beta @ product(path.weights.at(path.middles[m]))) * x).sum(-1)
    expected = theory.regression(problem.covariance, m, problem.inverse_length, beta, x)
    return float(np.linalg.norm(predicted - expected) / np.linalg.norm(expected))


def descent_drift(path: WeightPath) -> float:
    """Returns the largest change of a conserved quantity, in units of the largest v^2."""
    now = theory.conserved(*path.weights)
    change = max(float(np.abs(values - values[0]).max()) for values in now.values())
    return change / float((path.weights.v**2).max())


def exponent(x: Iterable[float], y: Iterable[float]) -> float:
    """Returns the slope of log y against log x; nan if a number is missing."""
    return line_fit(np.log(list(x)), np.log(list(y))).slope


def aligned_drop(first: float, value: float) -> float:
    """Returns the time of the first drop from Eq. 34's start, with lambda_1 = `first` and v(0) = `value`.

    In that start one head has k = q = v e_1, and the others are zero.
    """
    problem = LinearFlow(LinearFlow.Config.model_validate({"spectrum": [first, 0.2, 0.15, 0.1]}))
    k = np.zeros((4, 1, 4))
    k[0, 0] = value * problem.covariance.eigenvectors[0]
    start = HeadWeights(np.array([value, 0.0, 0.0, 0.0]), k, k.copy())
    times = np.append(0.0, np.linspace(0.5, 1.5, 2000) * theory.plateau_duration(first, value))
    drop = flow_path(problem, start, times, rtol=1e-9).time_learned(0, 0.5)
    return np.nan if drop is None else drop


def first_drop(problem: theory.Problem, seed: int) -> float:
    """Returns the time of the first drop in the flow from a random start; nan if it is not reached."""
    end = 100 / (problem.lam[0] ** 2 * problem.config.w_init)
    drops = flow_path(problem, problem.start(seed), recording_times(end, log=3000, first=end / 1000)).drops
    return drops[0] if drops else np.nan


def long_plateaus(path: WeightPath) -> list[int]:
    """Returns the levels m = 0..D-1 at which the loss stays longer than a head that has grown needs for its next pair.

    A pair of key and query in a head with a large value grows like exp(lambda^2 v t), from about w_init / sqrt(HRD) to
    1. A plateau is long if the loss stays there for more than 1.5 times that time, with v = 1.
    """
    c, lam = path.problem.config, path.problem.lam
    short = np.log(np.sqrt(c.H * c.R * c.D) / c.w_init) / lam**2  # [D]
    return [m for m, dwell in enumerate(dwells(path)) if dwell > 1.5 * short[m]]


def plateau_time(path: WeightPath) -> float:
    """Returns the total time that the loss is at a level m < D: within 10% of the drops next to it."""
    levels = path.problem.plateaus  # [D + 1]
    below = -np.diff(levels)  # [D], the drop after each level
    above = np.append(below[0], below[:-1])
    high, low = levels[:-1] + 0.1 * above, levels[:-1] - 0.1 * below
    inside = (path.loss[:, None] < high) & (path.loss[:, None] > low)  # [T, D]
    return float(np.append(np.diff(path.times), 0.0) @ np.any(inside, axis=-1))


def accelerations(path: WeightPath) -> int:
    """Returns how often the loss at least doubles its speed after slowing down: once per plateau of a sigmoid curve.

    An exponential decay only slows down. The last thousandth of the descent does not count.
    """
    from scipy.signal import find_peaks

    at_end = path.loss <= 1.001 * path.problem.plateaus[-1]
    end = int(at_end.argmax()) if at_end.any() else len(at_end)
    times, loss = path.times[1:end], path.loss[1:end]  # without time 0, whose spacing differs from the others
    noise = 1e-6 * path.problem.plateaus[0]  # of the solver: smaller changes of the loss are none
    change = np.maximum(np.abs(np.diff(loss)), noise)
    log_speed = np.log(change / np.diff(times))
    falls = np.append(log_speed, np.min(log_speed, initial=0.0) - 1)  # so that a rise at the end is a peak too
    peaks, _ = find_peaks(falls, prominence=np.log(2))
    return len(peaks)


def slowest_losses(path: WeightPath) -> Value:
    """Returns the loss where it changes least between drops m and m + 1, for m = 0..D-1."""
    speed = np.abs(np.gradient(path.loss, path.times))
    found: list[float | None] = [None] * path.problem.config.D
    for m, (begin, end) in enumerate(pairwise([0.0, *path.drops])):
        inside = np.flatnonzero((path.times >= begin) & (path.times <= end))
        found[m] = float(path.loss[inside[speed[inside].argmin()]])
    return reached(found)


def fraction_in_zero_blocks(moments: RegressionMoments, start: HeadWeights, lr: float = 0.5, steps: int = 400) -> float:
    """Returns the largest fraction of the weights' norm that descent moves into the blocks that start at zero (E.1)."""
    attention = AllBlocksAttention(start)
    optimizer = torch.optim.SGD(attention.parameters(), lr=lr)
    largest = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        exact_loss(attention.tensor(), moments).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 10 == 0:
            norm = torch.cat([part.detach().flatten() for part in attention.parameters()]).norm()
            largest = max(largest, float(attention.zero_blocks() / norm))
    return largest
