"""What the paper states, measured: L1 to L13.

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

from stagelens.claims import Check, Claim, at_least, at_most, close, equal, in_every_seed, ordered, reported
from stagelens.lab import Lab
from stagelens.seeds import generator
from stagelens.stages import Stages, detect_stages
from stagelens_linear_icl import theory
from stagelens_linear_icl.data import Floats, Moments, Sequences, examples, full_moments, moments_of, sample_sequences
from stagelens_linear_icl.descent import Descent, Weights, descend, flow, loss_of, product, rates, record_steps, stack
from stagelens_linear_icl.model import FullAttention, exact_loss
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


def _levels(path: Path) -> list[float]:
    """The level of the plateau nearest to each level of theory."""
    found = [plateau.level for plateau in path.stages.plateaus]
    return [min(found, key=lambda level: abs(level - expected)) for expected in path.levels]


class Drops(Claim):
    id, title = "L1", "the loss falls in D drops, and rests where Eq. 5 says"
    reference = "Fig. 1a, Eq. 5"
    seeds = 6

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from level_checks(small_starts(lab.seeds), "Fig. 1a, Eq. 5")


def value_error(path: Path, d: int) -> float:
    """The largest relative distance of the head that learns e_d from Eq. 7, from when it leaves its plateau (the loss
    has moved by 1% of the drop) until 99% of e_d is learned."""
    head, lam, inverse_length = path.head_of(d), path.problem.lam, path.problem.inverse_length
    value = np.abs(path.weights.v[:, head])
    end = int(np.flatnonzero(path.shares[:, d] > 0.99)[0])
    begin = int(np.flatnonzero(value[:end] < AT_REST * theory.settled_value(lam, d, inverse_length))[-1])
    curve = theory.value_curve(path.times[begin : end + 1], float(value[begin]), lam, d, inverse_length)
    return float(np.max(np.abs(value[begin : end + 1] / curve - 1)))


class ScalarEquation(Claim):
    id, title = "L2", "the value of a head follows the scalar equation through its drop"
    reference = "Eq. 7, Fig. 1b"

    def checks(self, lab: Lab) -> Iterable[Check]:
        problem = separate(**LONG)
        times = np.append(0.0, np.geomspace(100.0, 2 * LONG["lr"] * LONG["steps"], 20_000))
        what = "relative error of v through drops 1..D in the flow"
        paths = {seed: flowing(problem, times, seed) for seed in lab.seeds}
        yield in_every_seed({s: at_most(what, value_errors(p), 0.05, "Eq. 7") for s, p in paths.items()})
        what = f"the same in descent at lr = {LONG['lr']:g}, whose steps are no longer short against a drop"
        yield reported(what, [value_errors(path) for path in _first(lab).values()], "Eq. 7")


def value_errors(path: Path) -> list[float]:
    return [value_error(path, d) for d in range(path.problem.config.D)]


def _first(lab: Lab) -> dict[int, Path]:
    """The lab's seeds of the descents that L1 makes."""
    shared = small_starts(tuple(range(max(Drops.seeds, len(lab.seeds)))))
    return {seed: shared[seed] for seed in lab.seeds}


def best_cosines(path: Path, side: str) -> list[float]:
    """For each drop m, on the plateau after it, |cosine| with e_m of the head that has learned it."""
    e = path.problem.covariance.eigenvectors
    return [
        float(cosines(getattr(path.at(path.middles[m + 1]), side), e)[path.head_of(m), m])
        for m in range(path.problem.config.D)
    ]


class Alignment(Claim):
    id, title = "L3", "after each drop a head's key and query point along the next eigenvector"
    reference = "Fig. 1c"

    def checks(self, lab: Lab) -> Iterable[Check]:
        paths = _first(lab)
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
        gradients, errors = [], []
        for chosen in sets:
            weights = theory.fixed_point_weights(task.covariance, chosen, inverse_length, task.config.H)
            gradients.append(max(2 * float(np.abs(part).max()) for part in rates(weights, task.population)))
            expected = theory.fixed_point_loss(lam, chosen, inverse_length)
            errors.append(float(abs(loss_of(product(weights), task.population) / expected - 1)))
        yield equal("sets of eigenvectors", len(sets), 2 ** len(lam), "Eq. 3")
        yield at_most("largest entry of a gradient there", max(gradients), 1e-8, "Eq. 4")
        yield at_most("relative distance of the loss from Eq. 29", max(errors), 1e-8, "Eq. 29")


def regression_error(path: Path, m: int) -> float:
    """How far the model on plateau m + 1 is from Eq. 8 on fresh sequences: |said - Eq. 8| / |Eq. 8|."""
    problem = path.problem
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
                s: at_most(what, [regression_error(p, m) for m in range(1, 5)], 0.02, "Eq. 8")
                for s, p in _first(lab).items()
            }
        )


# Steps of descent for each rank; rank 1 would take so many that the flow is quicker. The rate is stable for all.
RANKS = {1: 1_000_000, 2: 150_000, 4: 50_000, 8: 6_000}
EIGHT: dict[str, Any] = {"D": 8, "H": 9, "spectrum": "power:1", "lr": 0.8}


def conspicuous(path: Path) -> list[int]:
    """The levels m = 0..D-1 at which the loss stays longer than a learned head would need to go on.

    A pair of key and query in a head whose value has grown grows like exp(lambda^2 v t), from about
    w_init / sqrt(HRD) to 1. A plateau is conspicuous where the loss stays longer than 1.5 times that, with v = 1.
    """
    c, lam = path.problem.config, path.problem.lam
    brief = np.log(np.sqrt(c.H * c.R * c.D) / c.w_init) / lam**2  # [D]
    return [m for m, dwell in enumerate(path.dwells) if dwell > 1.5 * brief[m]]


class Ranks(Claim):
    id, title = "L6", "with rank R the long plateaus are those at m divisible by R"
    reference = "Figs. 2, 8; section 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for rank, steps in RANKS.items():
            if rank == 1:
                problem = separate(**EIGHT, R=1, w_init=SMALL)
                times = np.append(0.0, np.geomspace(10.0, 2 * EIGHT["lr"] * steps, 4000))
                paths = {seed: flowing(problem, times, seed, rtol=1e-6) for seed in lab.seeds}
            else:
                paths = descents(separate(**EIGHT, R=rank, w_init=2 * SMALL, steps=steps), lab.seeds)
            what = f"rank {rank}: conspicuous plateaus at m"
            expected = list(range(0, 8, rank))
            yield in_every_seed({s: equal(what, conspicuous(p), expected, "Fig. 2") for s, p in paths.items()})


class Softmax(Claim):
    id, title = "L7", "softmax attention falls in several drops too"
    reference = "Fig. 3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        settings = {"P": 200, "batch_size": 200, "steps": 1300, "lr": 0.8, "eval_size": 100}
        runs = lab.each_seed("linear-icl/sequences", settings, preset="fig3", probes=("weight_norms",))
        yield in_every_seed(
            {
                s: at_least("drops of the training loss", len(run.stages("train_loss").transitions), 3, "Fig. 3")
                for s, run in runs.items()
            }
        )


SCALES = (0.02, 0.1, 0.5, 1.0, 3.0)


def resting_time(path: Path) -> float:
    """How long the loss is within 10% of the neighbouring drops of one of the levels m < D, in all."""
    below = -np.diff(path.levels)  # [D], the drop after each level
    above = np.append(below[0], below[:-1])
    high, low = path.levels[:-1] + 0.1 * above, path.levels[:-1] - 0.1 * below
    inside = (path.loss[:, None] < high) & (path.loss[:, None] > low)  # [T, D]
    return float(np.append(np.diff(path.times), 0.0) @ np.any(inside, axis=-1))


def accelerations(path: Path) -> int:
    """How often the loss, having slowed down, doubles its speed again: the plateaus of a sigmoid-shaped curve. An
    exponential-shaped one only slows down. The last thousandth of the way to the end does not count."""
    end = int(np.flatnonzero(path.loss <= 1.001 * path.levels[-1])[0])
    times, loss = path.times[1:end], path.loss[1:end]  # without time 0, from which the spacing is not that of the rest
    change = np.maximum(np.abs(np.diff(loss)), 1e-6 * path.levels[0])  # below it, the solver's noise
    speed = change / np.diff(times)
    count, slowing, extreme = 0, True, np.inf  # of the speed since it last turned
    for now in speed:
        extreme = min(extreme, now) if slowing else max(extreme, now)
        if slowing and now > 2 * extreme:
            count, slowing, extreme = count + 1, False, now
        elif not slowing and now < extreme / 2:
            slowing, extreme = True, now
    return count


class Lazy(Claim):
    id, title = "L8", "larger initial weights make shorter plateaus, and the largest none"
    reference = "Fig. 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        times = np.append(0.0, np.geomspace(1e-2, 1e5, 2000))
        paths = {s: [flowing(separate(H=8, w_init=w), times, s, 1e-7) for w in SCALES] for s in lab.seeds}
        what = f"time on plateaus, w_init = {SCALES[-1]:g} down to {SCALES[0]:g}"
        yield in_every_seed({s: ordered(what, list(map(resting_time, ps[::-1])), "Fig. 4") for s, ps in paths.items()})
        for index, expected in ((0, 4), (-1, 0)):
            what = f"plateaus, w_init = {SCALES[index]:g}"
            yield in_every_seed(
                {s: equal(what, accelerations(ps[index]), expected, "Fig. 4") for s, ps in paths.items()}
            )
        few = [accelerations(flowing(separate(H=4, w_init=SCALES[-1]), times, s)) for s in lab.seeds]
        yield reported(f"plateaus, w_init = {SCALES[-1]:g} with as few heads as eigenvectors (H = 4)", few, "Fig. 4")


class VaryingLength(Claim):
    id, title = "L9", "with contexts of varying length the plateaus are those of Eq. 12"
    reference = "Eqs. 9-12, Fig. 5"

    def checks(self, lab: Lab) -> Iterable[Check]:
        task = separate(**LONG | {"w_init": 0.01, "steps": 100_000}, loss="next-token")
        yield from level_checks(descents(task, lab.seeds), "Eq. 12, Fig. 5")
        sequences = sample_sequences(task.covariance, task.config.N, 20_000, generator(0, "train"))
        sampled = moments_of(sequences, every=True)
        ours = [loss_of(point, sampled) for point in task.fixed_points]
        expected = theory.plateau_losses(task.lam, task.inverse_length)
        yield close("loss of Eq. 9 at M_0..M_D on 20,000 sequences", ours, expected, 0.03, "Eqs. 9, 12")


class RepeatedEigenvalues(Claim):
    id, title = "L10", "repeated eigenvalues: plateaus of any length, at the same levels"
    reference = "Fig. 9, E.5"
    seeds = 6

    def checks(self, lab: Lab) -> Iterable[Check]:
        paths = descents(separate(**LONG, spectrum=[0.35, 0.35, 0.15, 0.15]), lab.seeds)
        for m, pair in ((1, "0.35"), (3, "0.15")):
            lengths = [float(p.dwells[m]) for p in paths.values()]
            spread = max(lengths) / min(lengths)
            yield at_least(f"longest / shortest stay between the two {pair}", spread, 2.0, "Fig. 9")
            yield reported(f"stays between the two {pair}, in tau", lengths, "Fig. 9")
        yield in_every_seed(
            {
                s: close("slowest loss at each level", slowest(p), p.levels[:-1], 0.03, "Fig. 9")
                for s, p in paths.items()
            }
        )


def slowest(path: Path) -> list[float]:
    """For m = 0..D-1, the loss where it moves least between the halves of drops m and m + 1."""
    ends = [0.0, *path.drops]
    speed = np.abs(np.gradient(path.loss, path.times))
    found = []
    for begin, end in pairwise(ends):
        inside = np.flatnonzero((path.times >= begin) & (path.times <= end))
        found.append(float(path.loss[inside[speed[inside].argmin()]]))
    return found


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
    """The slope of log y against log x."""
    return float(np.polyfit(np.log(list(x)), np.log(list(y)), 1)[0])


class Durations(Claim):
    id, title = "L12", "the first plateau lasts tau / (lambda_1^2 v(0))"
    reference = "Eqs. 38, 43"

    def checks(self, lab: Lab) -> Iterable[Check]:
        values, firsts = (1e-3, 2e-3, 5e-3, 1e-2), (0.3, 0.4, 0.5, 0.6)
        by_value = [aligned_drop(0.4, value) for value in values]
        by_lambda = [aligned_drop(first, 2e-3) for first in firsts]
        yield close("aligned head: exponent in v(0)", exponent(values, by_value), -1, 0.1, "Eq. 38", relative=False)
        yield close(
            "aligned head: exponent in lambda_1", exponent(firsts, by_lambda), -2, 0.1, "Eq. 38", relative=False
        )
        ratios = [when * 0.4**2 * value for when, value in zip(by_value, values, strict=True)]
        yield reported("time of the drop / Eq. 38, v(0) = 0.001 up to 0.01", ratios, "Eq. 38")
        starts, scales = (0.005, 0.01, 0.02), (0.5, 1.0, 1.5)
        for s_name, grid, make, expected in (
            ("v(0)", starts, lambda w: {"w_init": w}, -1),
            ("lambda_1", scales, lambda c: {"w_init": SMALL, "spectrum": [0.4 * c, 0.3 * c, 0.2 * c, 0.1 * c]}, -2),
        ):
            what = f"random start: exponent in {s_name}"
            slopes = {s: exponent(grid, [first_drop(separate(**make(g)), s) for g in grid]) for s in lab.seeds}
            yield in_every_seed(
                {s: close(what, slope, expected, 0.1, "Eq. 38", relative=False) for s, slope in slopes.items()}
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


SETS = (300, 3_000, 30_000)


def share_of_zero_blocks(moments: Moments, start: Weights, lr: float = 0.5, steps: int = 400) -> float:
    """The largest share of the weights' norm that descent puts in the blocks that start at zero (E.1)."""
    import torch

    attention = FullAttention(start)
    optimizer = torch.optim.SGD(attention.parameters(), lr=lr)
    largest = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        exact_loss(attention.tensor(), moments).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 10 == 0:
            whole = torch.cat([part.detach().flatten() for part in attention.parameters()]).norm()
            largest = max(largest, float(attention.zero_blocks() / whole))
    return largest


class ZeroBlocks(Claim):
    id, title = "L13", "the blocks that start at zero stay near it, the more sequences the nearer"
    reference = "E.1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        task = separate(w_init=0.5)
        shares: dict[int, list[float]] = {}
        for seed in lab.seeds:
            drawn = sample_sequences(task.covariance, task.config.N, SETS[-1], generator(seed, "train"))
            sets = [Sequences(drawn.x[:P], drawn.y[:P]) for P in SETS]
            shares[seed] = [share_of_zero_blocks(full_moments(one), task.start(seed)) for one in sets]
        what = f"largest share of the weights' norm in those blocks, {SETS[-1]:,} down to {SETS[0]} sequences"
        yield in_every_seed({s: ordered(what, found[::-1], "E.1") for s, found in shares.items()})
        what = f"the same with {SETS[-1]:,} sequences"
        yield in_every_seed({s: at_most(what, found[-1], 0.05, "E.1") for s, found in shares.items()})
        mean = np.mean(list(shares.values()), axis=0)
        yield reported("exponent of that share in the number of sequences", exponent(SETS, mean), "E.1")
