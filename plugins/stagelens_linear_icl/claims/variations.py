"""The claims about variations: ranks, softmax, initial weights, lengths, spectra and blocks (L6 to L10, L13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stagelens import Check, Claim, Run
from stagelens.base import generator
from stagelens.claims import Lab, at_least, at_most, close, equal, ordered, per_seed, reached, reported
from stagelens_linear_icl.claims import measures
from stagelens_linear_icl.claims.measures import LONG, SMALL, descents, separate
from stagelens_linear_icl.config import EIGHT, REPEATED
from stagelens_linear_icl.data import RegressionSequences, full_moments, moments_of, sample_sequences
from stagelens_linear_icl.flow import WeightPath, flow_path
from stagelens_linear_icl.losses import loss_of

RANKS = {1: 1_000_000, 2: 150_000, 4: 50_000, 8: 6_000}  # L6: the steps of each rank, until all drops are over
RANKS_LR = 0.8  # L6: stable for all ranks
SCALES = (0.02, 0.1, 0.5, 1.0, 3.0)  # L8: w_init, from distinct plateaus to none
SETS = (300, 3_000, 30_000)  # L13: sizes of the training set


class Ranks(Claim):
    id, title, reference = "L6", "with rank R the long plateaus are those at m divisible by R", "Figs. 2, 8; section 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for rank, steps in RANKS.items():
            found = {
                seed: measures.long_plateaus(path) or "none" for seed, path in self.paths(lab, rank, steps).items()
            }
            expected = list(range(0, 8, rank))
            yield per_seed(equal, f"rank {rank}: levels m of the long plateaus", found, expected, "Fig. 2")

    @staticmethod
    def paths(lab: Lab, rank: int, steps: int) -> dict[int, WeightPath]:
        """Returns descents; for rank 1 the flow, which is faster than so many steps."""
        settings: dict[str, Any] = EIGHT | {"lr": RANKS_LR, "R": rank}
        if rank > 1:
            return descents(separate(**settings, w_init=2 * SMALL, steps=steps), lab.seeds)
        problem = separate(**settings, w_init=SMALL)
        times = np.append(0.0, np.geomspace(10.0, 2 * RANKS_LR * steps, 4000))
        return {seed: flow_path(problem, problem.start(seed), times, rtol=1e-6) for seed in lab.seeds}


class Softmax(Claim):
    id, title, reference = "L7", "softmax attention falls in several drops too", "Fig. 3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        settings = {"P": 200, "batch_size": 200, "steps": 1300, "lr": 0.8, "eval_size": 100}
        runs = lab.each_seed("linear-icl/sequences", settings, preset="fig3", probes=("weight_norms",))

        def drops(run: Run) -> int:
            return len(run.stages("train_loss").transitions)

        yield per_seed(at_least, "drops of the training loss", runs, 3, self.reference, of=drops)


class Lazy(Claim):
    id, title, reference = "L8", "larger initial weights make shorter plateaus, and the largest none", "Fig. 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        where = self.reference
        times = np.append(0.0, np.geomspace(1e-2, 1e5, 2000))
        tasks = [separate(H=8, w_init=w_init) for w_init in SCALES]
        paths = {seed: [flow_path(task, task.start(seed), times, 1e-7) for task in tasks] for seed in lab.seeds}
        durations = {seed: [measures.plateau_time(path) for path in found[::-1]] for seed, found in paths.items()}
        yield per_seed(ordered, f"time on plateaus, w_init = {SCALES[-1]:g} down to {SCALES[0]:g}", durations, where)
        for index, expected in ((0, 4), (-1, 0)):
            counts = {seed: measures.accelerations(found[index]) for seed, found in paths.items()}
            yield per_seed(equal, f"number of plateaus, w_init = {SCALES[index]:g}", counts, expected, where)
        task = separate(H=4, w_init=SCALES[-1])
        few = [measures.accelerations(flow_path(task, task.start(seed), times)) for seed in lab.seeds]
        what = f"number of plateaus, w_init = {SCALES[-1]:g}, with only as many heads as eigenvectors (H = 4)"
        yield reported(what, few, where)


class VaryingLength(Claim):
    id, title, reference = "L9", "with contexts of varying length the plateaus are those of Eq. 12", "Eqs. 9-12, Fig. 5"

    def checks(self, lab: Lab) -> Iterable[Check]:
        task = separate(**LONG | {"w_init": 0.01, "steps": 100_000}, loss="next-token")
        yield from measures.level_checks(descents(task, lab.seeds), "Eq. 12, Fig. 5")
        sequences = sample_sequences(task.covariance, task.config.N, 20_000, generator(0, "train"))
        sampled = loss_of(task.fixed_points, moments_of(sequences, every=True))
        yield close("loss of Eq. 9 at M_0..M_D on 20,000 sequences", sampled, task.plateaus, 0.03, "Eqs. 9, 12")


class RepeatedEigenvalues(Claim):
    id, title = "L10", "repeated eigenvalues: plateaus of any length, at the same levels"
    reference = "Fig. 9, E.5"
    seeds = 6

    def checks(self, lab: Lab) -> Iterable[Check]:
        paths = descents(separate(**LONG, **REPEATED), lab.seeds)
        for m, pair in ((1, "0.35"), (3, "0.15")):
            lengths = np.array(
                [found[m] if len(found) > m else np.nan for found in map(measures.dwells, paths.values())]
            )
            ratio = reached(lengths.max() / lengths.min())
            yield at_least(f"longest / shortest plateau between the two eigenvalues {pair}", ratio, 2.0, "Fig. 9")
            what = f"lengths of the plateau between the two eigenvalues {pair}, in units of tau"
            yield reported(what, reached(lengths), "Fig. 9")
        levels = {seed: path.problem.plateaus[:-1] for seed, path in paths.items()}
        yield per_seed(close, "slowest loss at each level", paths, levels, 0.03, "Fig. 9", of=measures.slowest_losses)


class ZeroBlocks(Claim):
    id, title, reference = "L13", "the blocks that start at zero stay near zero, the nearer the more sequences", "E.1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        task, where = separate(w_init=0.5), self.reference
        found: dict[int, list[float]] = {}
        for seed in lab.seeds:
            x, y = sample_sequences(task.covariance, task.config.N, SETS[-1], generator(seed, "train"))
            sets = [full_moments(RegressionSequences(x[:P], y[:P])) for P in SETS]
            found[seed] = [measures.fraction_in_zero_blocks(moments, task.start(seed)) for moments in sets]
        what = f"largest fraction of the weights' norm in these blocks, {SETS[-1]:,} down to {SETS[0]} sequences"
        yield per_seed(ordered, what, {seed: fractions[::-1] for seed, fractions in found.items()}, where)
        largest = {seed: fractions[-1] for seed, fractions in found.items()}
        yield per_seed(at_most, f"the same with {SETS[-1]:,} sequences", largest, 0.05, where)
        mean = np.mean(list(found.values()), axis=0)
        yield reported("exponent of this fraction in the number of sequences", measures.exponent(SETS, mean), where)
