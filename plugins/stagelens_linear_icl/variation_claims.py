"""What the paper states about variations of its setting, measured: other ranks, attention, starts, lengths, spectra and
blocks (L6 to L10 and L13)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from stagelens import Check, Claim
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
from stagelens_linear_icl import theory
from stagelens_linear_icl.claims import LONG, SMALL, Path, descents, exponent, flowing, level_checks, separate
from stagelens_linear_icl.data import Moments, Sequences, full_moments, moments_of, sample_sequences
from stagelens_linear_icl.descent import Weights, loss_of
from stagelens_linear_icl.model import FullAttention, exact_loss

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
            yield in_every_seed(
                {s: equal(what, conspicuous(p) or "none", expected, "Fig. 2") for s, p in paths.items()}
            )


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
    there = path.loss <= 1.001 * path.levels[-1]
    end = int(there.argmax()) if there.any() else len(there)
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
            lengths = np.array([p.dwells[m] if len(p.dwells) > m else np.nan for p in paths.values()])
            spread = reached(lengths.max() / lengths.min())
            yield at_least(f"longest / shortest stay between the two {pair}", spread, 2.0, "Fig. 9")
            yield reported(f"stays between the two {pair}, in tau", reached(lengths), "Fig. 9")
        yield in_every_seed(
            {
                s: close("slowest loss at each level", slowest(p), p.levels[:-1], 0.03, "Fig. 9")
                for s, p in paths.items()
            }
        )


def slowest(path: Path) -> list[float | str]:
    """For m = 0..D-1, the loss where it moves least between the halves of drops m and m + 1; words: no drop m + 1."""
    ends = [0.0, *path.drops]
    speed = np.abs(np.gradient(path.loss, path.times))
    found: list[float | str] = []
    for begin, end in pairwise(ends):
        inside = np.flatnonzero((path.times >= begin) & (path.times <= end))
        found.append(float(path.loss[inside[speed[inside].argmin()]]))
    return [*found, *[NOT_REACHED] * (path.problem.config.D - len(found))]


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
