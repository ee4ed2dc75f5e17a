"""What the paper states about its main setting, measured: L1 to L5, L11 and L12. `variation_claims` has the rest.

Most of it needs no training run: descent on the exact loss takes microseconds a step and all seeds go as one stack.
A drop counts as happening when half of it is done. A small start is w_init = 0.005: the smaller it is, the better the
heads are aligned before they grow, and the more of them grow one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens import Check, Claim, detect_stages
from stagelens.base import generator
from stagelens.claims import (
    NOT_REACHED,
    Lab,
    at_least,
    at_most,
    close,
    equal,
    in_every_seed,
    ordered,
    reached,
    reported,
)
from stagelens.experiments import nearest_pairs
from stagelens.stages import Stages
from stagelens_linear_icl import theory
from stagelens_linear_icl.data import Floats, Moments, examples, sample_sequences
from stagelens_linear_icl.descent import Descent, Weights, descend, flow, loss_of, product, rates, record_steps, stack
from stagelens_linear_icl.probe import cosines, learned
from stagelens_linear_icl.problem import AT_REST, Problem, crossing
from stagelens_linear_icl.tasks import LinearFlow, Separate

SMALL = 0.005
LONG = {"w_init": SMALL, "lr": 0.4, "steps": 200_000}  # until all drops of the first seeds are over
POINTS = 1500


@dataclass(frozen=True)
class Path:
    """The loss and weights of one seed over `times` [T], in units of tau, and the problem that they solve."""

    problem: Problem
    times: Floats
    loss: Floats
    weights: Weights

    @classmethod
    def of(cls, problem: Problem, descent: Descent) -> Path:
        return cls(problem, descent.times, descent.loss, descent.weights)

    @cached_property
    def levels(self) -> Floats:
        """Eq. 5, or 12, [D + 1]."""
        return theory.plateau_losses(self.problem.lam, self.problem.inverse_length)

    @cached_property
    def drops(self) -> list[float]:
        """When half of each drop is done; a drop that is not, is missing."""
        halves = (self.levels[1:] + self.levels[:-1]) / 2
        found = [crossing(self.times, self.loss, half) for half in halves]
        return [when for when in found if when is not None]

    @cached_property
    def dwells(self) -> Floats:
        """How long the loss stays at each level, from the half of one drop to that of the next, [drops]."""
        return np.diff([0.0, *self.drops])

    @cached_property
    def middles(self) -> list[int]:
        """The index of a time on each plateau, half way in log time; the last plateau is the end."""
        ends = [max(self.times[1], 1.0), *self.drops, self.times[-1]]
        return [int(np.abs(self.times - np.sqrt(a * b)).argmin()) for a, b in pairwise(ends)]

    @cached_property
    def stages(self) -> Stages:
        """The stages of the loss, on log time."""
        wanted = np.unique(
            np.searchsorted(self.times, np.geomspace(1.0, self.times[-1], POINTS)).clip(0, len(self.times) - 1)
        )
        return detect_stages(self.times[wanted], self.loss[wanted], axis="log")

    @cached_property
    def shares(self) -> Floats:
        """How much of each eigenvector is learned, [T, D]."""
        return learned(product(self.weights), self.problem.fixed_points)

    def at(self, index: int) -> Weights:
        return Weights(*(part[index] for part in self.weights))

    def head_of(self, d: int) -> int:
        """The head that does most for e_d at the end."""
        e = self.problem.covariance.eigenvectors[d]
        v, k, q = self.at(-1)
        return int(np.abs(v[:, None] * (k @ e) * (q @ e)).sum(-1).argmax())


def separate(**settings: Any) -> Separate:
    return Separate(Separate.Config.model_validate(settings))


def descents(task: Separate, seeds: Iterable[int], moments: Moments | None = None) -> dict[int, Path]:
    """Exact descent from the starts of `seeds`, as one stack, recorded finely enough to follow a drop."""
    seeds = list(seeds)
    lr, steps = task.config.lr, task.config.steps
    record = sorted({*range(0, steps + 1, 10), *record_steps(steps)})
    found = descend(stack([task.start(seed) for seed in seeds]), moments or task.moments, lr, steps, record)
    return {seed: Path.of(task, found.seed(index)) for index, seed in enumerate(seeds)}


@cache
def small_starts(seeds: tuple[int, ...]) -> dict[int, Path]:
    """Fig. 1 from a small start; L1, L2, L3 and L5 look at the same descents."""
    return descents(separate(**LONG), seeds)


def flowing(problem: Problem, times: Floats, seed: int, rtol: float = 1e-8) -> Path:
    """The gradient flow from the start of `seed`."""
    weights = flow(problem.start(seed), problem.population, times, rtol, rtol * 1e-3)
    return Path(problem, times, loss_of(product(weights), problem.population), weights)


def level_checks(paths: dict[int, Path], reference: str) -> Iterable[Check]:
    """D drops, and plateaus at the levels of theory."""
    D = next(iter(paths.values())).problem.config.D
    yield in_every_seed(
        {s: equal("drops of the loss", len(p.stages.transitions), D, reference) for s, p in paths.items()}
    )
    yield in_every_seed(
        {s: close("levels of the plateaus", _levels(p), p.levels, 0.03, reference) for s, p in paths.items()}
    )


def _levels(path: Path) -> list[float | str]:
    """The level of the plateau that belongs to each level of theory; words where none does."""
    found = [plateau.level for plateau in path.stages.plateaus]
    return [NOT_REACHED if i is None else found[i] for i in nearest_pairs(path.levels.tolist(), found)]


class Drops(Claim):
    id, title = "L1", "the loss falls in D drops, and rests where Eq. 5 says"
    reference = "Fig. 1a, Eq. 5"
    seeds = 6

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from level_checks(small_starts(lab.seeds), "Fig. 1a, Eq. 5")


def value_error(path: Path, d: int) -> float:
    """The largest relative distance of the head that learns e_d from Eq. 7, from when it leaves its plateau (the loss
    has moved by 1% of the drop) until 99% of e_d is learned; nan if that does not happen."""
    head, lam, inverse_length = path.head_of(d), path.problem.lam, path.problem.inverse_length
    value = np.abs(path.weights.v[:, head])
    end = _first(path.shares[:, d] > 0.99)
    resting = np.flatnonzero(value[:end] < AT_REST * theory.settled_value(lam, d, inverse_length))
    if end is None or not len(resting):
        return float("nan")
    begin = int(resting[-1])
    curve = theory.value_curve(path.times[begin : end + 1], float(value[begin]), lam, d, inverse_length)
    return float(np.max(np.abs(value[begin : end + 1] / curve - 1)))


def _first(there: NDArray[np.bool_]) -> int | None:
    """The index of the first true entry."""
    return int(there.argmax()) if there.any() else None


class ScalarEquation(Claim):
    id, title = "L2", "the value of a head follows the scalar equation through its drop"
    reference = "Eq. 7, Fig. 1b"

    def checks(self, lab: Lab) -> Iterable[Check]:
        problem = separate(**LONG)
        times = np.append(0.0, np.geomspace(100.0, 2 * LONG["lr"] * LONG["steps"], 20_000))
        what = "relative error of v through drops 1..D in the flow"
        paths = {seed: flowing(problem, times, seed) for seed in lab.seeds}
        yield in_every_seed({s: at_most(what, reached(value_errors(p)), 0.05, "Eq. 7") for s, p in paths.items()})
        what = f"the same in descent at lr = {LONG['lr']:g}, whose steps are no longer short against a drop"
        yield reported(what, reached([value_errors(path) for path in _shared(lab).values()]), "Eq. 7")


def value_errors(path: Path) -> list[float]:
    return [value_error(path, d) for d in range(path.problem.config.D)]


def _shared(lab: Lab) -> dict[int, Path]:
    """The lab's seeds of the descents that L1 makes."""
    shared = small_starts(tuple(range(max(Drops.seeds, len(lab.seeds)))))
    return {seed: shared[seed] for seed in lab.seeds}


def best_cosines(path: Path, side: str) -> list[float | str]:
    """For each drop m, on the plateau after it, |cosine| with e_m of the head that has learned it; words: no drop."""
    e = path.problem.covariance.eigenvectors
    found = [
        float(cosines(getattr(path.at(path.middles[m + 1]), side), e)[path.head_of(m), m])
        for m in range(len(path.drops))
    ]
    return [*found, *[NOT_REACHED] * (path.problem.config.D - len(found))]


class Alignment(Claim):
    id, title = "L3", "after each drop a head's key and query point along the next eigenvector"
    reference = "Fig. 1c"

    def checks(self, lab: Lab) -> Iterable[Check]:
        paths = _shared(lab)
        for side, name in (("k", "key"), ("q", "query")):
            what = f"|cosine| of a {name} with e_m after drop m"
            yield in_every_seed({s: at_least(what, best_cosines(p, side), 0.99, "Fig. 1c") for s, p in paths.items()})
        yield in_every_seed(
            {s: ordered("time at which half of e_m is learned", _half_times(p), "Fig. 1c") for s, p in paths.items()}
        )


def _half_times(path: Path) -> list[float | str]:
    found = [crossing(path.times, -share, -0.5) for share in path.shares.T]
    return [when if when is not None else f"not by {path.times[-1]:g}" for when in found]


class FixedPoints(Claim):
    id, title = "L4", "each set of eigenvectors is a fixed point, with the loss of Eq. 29"
    reference = "Eqs. 3, 4, 29"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        task = separate()
        lam, inverse_length = task.lam, task.inverse_length
        sets = list(chain.from_iterable(combinations(range(len(lam)), m) for m in range(len(lam) + 1)))
        gradients, errors, products = [], [], []
        for chosen in sets:
            weights = theory.fixed_point_weights(task.covariance, chosen, inverse_length, task.config.H)
            gradients.append(max(2 * float(np.abs(part).max()) for part in rates(weights, task.population)))
            products.append(product(weights))
            expected = theory.fixed_point_loss(lam, chosen, inverse_length)
            errors.append(float(abs(loss_of(product(weights), task.population) / expected - 1)))
        found = np.stack(products)  # [set, D, D]
        apart = np.abs(found[:, None] - found).max((-1, -2)) + np.eye(len(sets))  # [set, set]
        what = "smallest distance between the products M of two sets of eigenvectors"
        yield at_least(what, apart.min(), 0.1, "Eq. 3")
        yield at_most("largest entry of a gradient there", max(gradients), 1e-8, "Eq. 4")
        yield at_most("relative distance of the loss from Eq. 29", max(errors), 1e-8, "Eq. 29")


def regression_error(path: Path, m: int) -> float:
    """How far the model on plateau m + 1 is from Eq. 8 on fresh sequences: |said - Eq. 8| / |Eq. 8|; nan: no such."""
    problem = path.problem
    if m > len(path.drops):
        return float("nan")
    sequences = sample_sequences(problem.covariance, problem.config.N, 2000, generator(problem.seed, "fresh"))
    beta, x = (part[:, 0].numpy() for part in examples(sequences)[:2])
    said = ((beta @ product(path.at(path.middles[m]))) * x).sum(-1)
    expected = theory.regression(problem.covariance, m, problem.inverse_length, beta, x)
    return float(np.linalg.norm(said - expected) / np.linalg.norm(expected))


class ComponentRegression(Claim):
    id, title = "L5", "on a plateau the model is principal component regression in context"
    reference = "Eq. 8"

    def checks(self, lab: Lab) -> Iterable[Check]:
        what = "relative error against Eq. 8, m = 1..D"
        yield in_every_seed(
            {
                s: at_most(what, reached([regression_error(p, m) for m in range(1, 5)]), 0.02, "Eq. 8")
                for s, p in _shared(lab).items()
            }
        )


class Conservation(Claim):
    id, title = "L11", "training conserves k.k - q.q and k.k - v^2 in each head"
    reference = "Eqs. 44, 50"

    def checks(self, lab: Lab) -> Iterable[Check]:
        exact = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-14, "points": 50, "time": 4000.0}
        for rank, equation in ((1, "Eq. 44"), (2, "Eq. 50")):
            runs = lab.each_seed("linear-icl/flow", exact | {"R": rank}, preset="quick")
            what = f"rank {rank}: largest relative drift in the flow"
            drifts = {s: float(run.timeline.series("conserved/drift").max()) for s, run in runs.items()}
            yield in_every_seed({s: at_most(what, drift, 1e-6, equation) for s, drift in drifts.items()})
        for lr, steps in ((0.4, 5_000), (0.04, 50_000)):
            what = f"relative drift of descent over the same time, lr = {lr:g}"
            paths = descents(separate(lr=lr, steps=steps), lab.seeds)
            yield reported(what, [descent_drift(p) for p in paths.values()], "Eq. 44")


def descent_drift(path: Path) -> float:
    """The largest change of a conserved quantity, in units of the largest v^2 that there is."""
    now = theory.conserved(path.weights)
    change = max(float(np.abs(values - values[0]).max()) for values in now.values())
    return change / float((path.weights.v**2).max())


def exponent(x: Iterable[float], y: Iterable[float]) -> float:
    """The slope of log y against log x; nan if one of them is missing."""
    log_x, log_y = np.log([list(x), list(y)])
    return float(np.polyfit(log_x, log_y, 1)[0]) if np.isfinite([log_x, log_y]).all() else float("nan")


class Durations(Claim):
    id, title = "L12", "the first plateau lasts tau / (lambda_1^2 v(0))"
    reference = "Eqs. 38, 43"

    def checks(self, lab: Lab) -> Iterable[Check]:
        values, firsts = (1e-3, 2e-3, 5e-3, 1e-2), (0.3, 0.4, 0.5, 0.6)
        by_value = [aligned_drop(0.4, value) for value in values]
        by_lambda = [aligned_drop(first, 2e-3) for first in firsts]
        slopes = reached([exponent(values, by_value), exponent(firsts, by_lambda)])
        what = "aligned head: exponents in v(0) and lambda_1"
        yield close(what, slopes, [-1, -2], 0.1, "Eq. 38", relative=False)
        ratios = [when * 0.4**2 * value for when, value in zip(by_value, values, strict=True)]
        yield reported("time of the drop / Eq. 38, v(0) = 0.001 up to 0.01", reached(ratios), "Eq. 38")
        starts, scales = (0.005, 0.01, 0.02), (0.5, 1.0, 1.5)
        for s_name, grid, make, expected in (
            ("v(0)", starts, lambda w: {"w_init": w}, -1),
            ("lambda_1", scales, lambda c: {"w_init": SMALL, "spectrum": [0.4 * c, 0.3 * c, 0.2 * c, 0.1 * c]}, -2),
        ):
            what = f"random start: exponent in {s_name}"
            found = {s: exponent(grid, [first_drop(separate(**make(g)), s) for g in grid]) for s in lab.seeds}
            yield in_every_seed(
                {s: close(what, reached(e), expected, 0.1, "Eq. 38", relative=False) for s, e in found.items()}
            )


def aligned_drop(first: float, value: float) -> float:
    """The time of the first drop from Eq. 34's start: k = q = v e_1 in one head, with this lambda_1 and v(0)."""
    problem = LinearFlow(LinearFlow.Config.model_validate({"spectrum": [first, 0.2, 0.15, 0.1]}))
    k = np.zeros((4, 1, 4))
    k[0, 0] = value * problem.covariance.eigenvectors[0]
    start = Weights(np.array([value, 0.0, 0.0, 0.0]), k, k.copy())
    times = np.append(0.0, np.linspace(0.5, 1.5, 2000) * theory.plateau_duration(first, value))
    weights = flow(start, problem.population, times)
    drop = crossing(times, -learned(product(weights), problem.fixed_points)[:, 0], -0.5)
    return drop if drop is not None else np.nan


def first_drop(problem: Problem, seed: int) -> float:
    """The time of the first drop in the flow from a random start."""
    end = 100 / (problem.lam[0] ** 2 * problem.config.w_init)
    drops = flowing(problem, np.append(0.0, np.geomspace(end / 1000, end, 3000)), seed).drops
    return drops[0] if drops else np.nan
