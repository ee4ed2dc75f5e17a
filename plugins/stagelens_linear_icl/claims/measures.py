"""What the claims read off descents and flows. A drop of the loss happens when half of it is done."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stagelens import Check, Run, detect_stages
from stagelens.base import derive, generator
from stagelens.claims import Value, at_most, close, equal, per_seed, reached
from stagelens.experiments import Floats, nearest_pairs, recording_times
from stagelens.stages import Stages
from stagelens.timelines import line_fit
from stagelens_linear_icl import theory
from stagelens_linear_icl.claims.paths import population_path
from stagelens_linear_icl.data import RegressionMoments, examples, sample_sequences
from stagelens_linear_icl.flow import LinearFlow, WeightPath, as_weights, flat_rates, flow_path
from stagelens_linear_icl.losses import exact_loss
from stagelens_linear_icl.model import AllBlocksAttention, HeadWeights, product
from stagelens_linear_icl.predictions import JUST_LEARNED
from stagelens_linear_icl.probes import cosines
from stagelens_linear_icl.tasks import Separate

LEARNED = 0.99  # of an eigenvector, at which its head has settled
POINTS = 1500  # at which stages are detected, evenly spaced in log time


def sampling_errors(problem: Any) -> Floats:
    """Returns the standard error of the training loss at M_0..M_D, over the P training sequences, [D + 1]."""
    beta, x, y = (part[:, 0].numpy() for part in examples(problem.training_set))
    squared = [(y - ((beta @ M) * x).sum(-1)) ** 2 for M in problem.fixed_points]
    return np.array([part.std() / len(part) ** 0.5 for part in squared])


def run_drops(run: Run) -> int:
    """Returns the number of drops of a run's training loss."""
    return len(run.stages("train_loss").transitions)


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


def training_level_checks(paths: dict[int, WeightPath], name: str, reference: str) -> Iterable[Check]:
    """Yields the checks of descents on P sequences: drops and levels of the training loss, and of the population's.

    A level of the training loss scatters with the sequences, so its distance from theory is in units of the standard
    error at that level. Three of them are the limit, by convention.
    """
    problem = next(iter(paths.values())).problem
    found = {seed: stages(path) for seed, path in paths.items()}
    drops = {seed: len(one.transitions) for seed, one in found.items()}
    yield per_seed(equal, f"{name}: drops of the training loss", drops, problem.config.D, reference)
    errors = {seed: level_errors(path, found[seed]) for seed, path in paths.items()}
    yield per_seed(at_most, f"{name}: |level - Eq. 5| of the training loss, in standard errors", errors, 3.0, reference)
    levels = {seed: matching_levels(problem.plateaus, stages(population_path(path))) for seed, path in paths.items()}
    what = f"{name}: levels of the population loss"
    yield per_seed(close, what, levels, problem.plateaus, 0.03, reference)


def level_errors(path: WeightPath, found: Stages) -> Value:
    """Returns the distance of each plateau of the training loss from Eq. 5, in standard errors."""
    levels = matching_levels(path.problem.plateaus, found)
    pairs = zip(levels, path.problem.plateaus, sampling_errors(path.problem), strict=True)
    return [level if isinstance(level, str) else abs(level - expected) / error for level, expected, error in pairs]


def matching_levels(expected: Floats, found: Stages) -> Value:
    """Returns the level of the detected plateau that belongs to each expected level, in words if there is none."""
    levels = [plateau.level for plateau in found.plateaus]
    return reached([None if i is None else levels[i] for i in nearest_pairs(expected.tolist(), levels)])


def value_errors(path: WeightPath, on_plateau: bool = False) -> list[float]:
    """Returns `value_error` of every eigenvector."""
    return [value_error(path, d, on_plateau) for d in range(path.problem.config.D)]


def value_error(path: WeightPath, d: int, on_plateau: bool = False) -> float:
    """Returns the largest relative distance from Eq. 7 of the value of the head that learns e_{d+1}.

    It is measured until 99% of e_{d+1} is learned. It starts when the head leaves its plateau (1% of the drop is done),
    or with `on_plateau` at the middle of the plateau. It is nan if that does not happen.
    """
    end = np.flatnonzero(path.learned[:, d] > LEARNED)
    begin = middle_of_plateau(path, d) if on_plateau else path.leaving(d, LEARNED)
    if not len(end) or begin is None:
        return float("nan")
    lam, inverse_length = path.problem.lam, path.problem.inverse_length
    value = np.abs(path.weights.v[: end[0] + 1, path.head_of(d)])
    curve = theory.value_curve(path.times[begin : len(value)], float(value[begin]), lam, d, inverse_length)
    return float(np.max(np.abs(value[begin:] / curve - 1)))


def plateau_of(path: WeightPath, d: int) -> tuple[float, float] | None:
    """Returns the times at which the plateau before e_{d+1} begins (Fig. 6's t_d) and half of e_{d+1} is learned."""
    begin = 0.0 if d == 0 else path.time_learned(d - 1, JUST_LEARNED)
    end = path.time_learned(d, 0.5)
    return None if begin is None or end is None or end <= begin else (begin, end)


def middle_of_plateau(path: WeightPath, d: int) -> int | None:
    """Returns the index of the middle, in time, of the plateau before e_{d+1}."""
    plateau = plateau_of(path, d)
    return None if plateau is None else int(np.searchsorted(path.times, sum(plateau) / 2))


def duration_ratios(path: WeightPath) -> list[float]:
    """Returns the length of the plateaus after the drops 1..D-1 over Eq. 43's, tau / (lambda^2 v(t_m))."""
    found = []
    for d in range(1, path.problem.config.D):
        plateau = plateau_of(path, d)
        if plateau is None:
            found.append(float("nan"))
            continue
        expected = theory.plateau_duration(float(path.problem.lam[d]), path.value_at(plateau[0], d))
        found.append((plateau[1] - plateau[0]) / expected)
    return found


def found_fixed_points(task: Separate, seed: int, trials: int) -> list[Floats]:
    """Returns the products M [D, D] of the fixed points that a root finder reaches from random weights."""
    from scipy.optimize import least_squares

    rng = np.random.default_rng(derive(seed, "fixed points"))
    rate, jacobian = flat_rates(task.config.H, task.config.R, task.config.D, task.population)
    count = len(np.concatenate([part.ravel() for part in task.start()]))
    found = []
    for _ in range(trials):
        start = rng.choice([0.3, 0.7, 1.2]) * rng.normal(size=count)  # small and large weights
        root = least_squares(rate, start, jacobian, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=2000)
        if np.abs(root.fun).max() < 1e-8:
            found.append(product(as_weights(root.x, task.config.H, task.config.R, task.config.D)))
    return found


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
    stays = [*dwells(path), path.times[-1] - (path.drops[-1] if path.drops else 0.0)]  # the last one is not over
    return [m for m, stay in enumerate(stays[: c.D]) if stay > 1.5 * short[m]]


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
