"""The claims about the paper's main setting: L1 to L5, L11 and L12."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, combinations
from typing import Any

import numpy as np

from stagelens import Check, Claim
from stagelens.claims import Lab, at_least, at_most, close, on_average, ordered, per_seed, reached, reported
from stagelens_linear_icl import theory
from stagelens_linear_icl.claims import measures, paths
from stagelens_linear_icl.claims.measures import exponent
from stagelens_linear_icl.claims.paths import SAMPLED, SMALL, descents, separate
from stagelens_linear_icl.config import PAPER
from stagelens_linear_icl.flow import WeightPath
from stagelens_linear_icl.losses import loss_of, rates
from stagelens_linear_icl.model import product


class Drops(Claim):
    """The flow on the population and on 5,000 sequences as Fig. 1, and at budget long the authors' published values.

    `SMALL` starts are ours: the smaller the start, the more seeds have heads that grow one at a time. The last drop
    waits for the head that starts smallest, so no number of steps is enough for every seed. The flow is therefore
    integrated to a late time.
    """

    id, title, reference = "L1", "the loss falls in D drops, with plateaus at the levels of Eq. 5", "Fig. 1a, Eq. 5"
    seeds = 6  # as in Fig. 1a
    reason = {
        "quick": "reading: the paper gives no start. From ours, two heads grow together on 5,000 sequences in one seed "
        "of six, and one level of the population loss is 3.3% off in another. On the population all six hold",
        "long": "reading: the paper gives no start, rate or number of steps. From our start, five of six seeds hold on "
        "5,000 sequences. With the authors' published values one seed of six does not make its last drop in time, and "
        "with the caption's four heads four do not. On the population all six hold",
    }
    published: Mapping[str, Mapping[str, dict[str, Any]]] = {
        "quick": {},
        "long": {"the authors' values": PAPER, "the authors' values, but H = 4 as in the caption": PAPER | {"H": 4}},
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from measures.level_checks(paths.small_starts(lab.seeds), self.reference)
        found = paths.training_flows(SAMPLED, lab.seeds)
        yield from measures.training_level_checks(found, f"{SAMPLED['P']:,} sequences", self.reference)
        for name, settings in lab.of_budget(self.published).items():
            found = paths.training_descents(settings, lab.seeds)
            yield from measures.training_level_checks(found, name, self.reference)


def shared_flows(lab: Lab) -> dict[int, WeightPath]:
    """Returns the lab's seeds of the flows of L1."""
    first = lab.seeds[0]
    shared = paths.small_starts(tuple(range(first, first + max(Drops.seeds, len(lab.seeds)))))
    return {seed: shared[seed] for seed in lab.seeds}


class ScalarEquation(Claim):
    """Section 3.2 says that Eq. 7 holds during the plateau and the drop after it.

    It starts from the head's own value in the middle of the plateau, and once more where the head leaves the plateau.
    On the plateau the head's key and query are not yet along the eigenvector, and |k|, |q| and v are not yet equal.
    Eq. 31, which holds there, is homogeneous: a smaller start is slower, but no better aligned in the middle of its
    plateau. Smaller starts are reported.
    """

    id, title, reference = "L2", "the value of a head follows the scalar equation through its drop", "Eq. 7, Fig. 1b"
    reason = (
        "paper: on the plateau a head is not aligned, and a smaller start does not change that, because Eq. 31 is "
        "homogeneous. From when the head leaves the plateau, Eq. 7 is right within 5% in all drops that happen but "
        "one, in the seeds 10 to 12"
    )
    smaller = (SMALL / 10, SMALL / 100)
    tolerance = 0.05
    descent: dict[str, Any] = {"w_init": SMALL, "lr": 0.4, "steps": 200_000}

    def checks(self, lab: Lab) -> Iterable[Check]:
        found = shared_flows(lab)
        late = {seed: reached(measures.value_errors(path)) for seed, path in found.items()}
        what = "relative error of v through drops 1..D, from when the head leaves its plateau"
        yield per_seed(at_most, what, late, self.tolerance, "Eq. 7")
        early = {seed: reached(measures.value_errors(path, on_plateau=True)) for seed, path in found.items()}
        what = "relative error of v through drops 1..D, from the middle of the plateau"
        yield per_seed(at_most, what, early, self.tolerance, "Eq. 7, section 3.2")
        for w_init in self.smaller:
            slower = paths.flows(separate(w_init=w_init), lab.seeds)
            errors = [reached(measures.value_errors(path, on_plateau=True)) for path in slower.values()]
            yield reported(f"the same error from the middle of the plateau with w_init = {w_init:g}", errors, "Eq. 7")
        what = (
            f"error from leaving the plateau in descent at lr = {self.descent['lr']:g}, whose steps are long in a drop"
        )
        stepped = descents(separate(**self.descent), lab.seeds)
        yield reported(what, reached([measures.value_errors(path) for path in stepped.values()]), "Eq. 7")


class Alignment(Claim):
    """Compares keys and queries with the eigenvectors, on the plateau after each drop."""

    id, title, reference = "L3", "after each drop a head's key and query point along the next eigenvector", "Fig. 1c"

    def checks(self, lab: Lab) -> Iterable[Check]:
        shared, where = shared_flows(lab), self.reference
        for side, name in (("k", "key"), ("q", "query")):
            found = {seed: measures.best_cosines(path, side) for seed, path in shared.items()}
            yield per_seed(at_least, f"|cosine| of a {name} with e_m after drop m", found, 0.99, where)
        yield per_seed(ordered, "time at which half of e_m is learned", shared, where, of=measures.half_times)


class FixedPoints(Claim):
    """That the constructed weights are fixed points follows from Eq. 23, so it is a sanity check.

    That there are no others in function space is tested. A root finder starts at random weights. Every fixed point that
    it finds must have the product M of one of the 2^D sets. `exact` and `found` are bounds on rounding.
    """

    id, title, reference = "L4", "each set of eigenvectors is a fixed point, with the loss of Eq. 29", "Eqs. 3, 4, 29"
    trials = 40  # random starts of the root finder, for each seed
    exact, found = 1e-8, 1e-6

    def checks(self, lab: Lab) -> Iterable[Check]:
        task = separate()
        lam, inverse_length = task.lam, task.inverse_length
        sets = list(chain.from_iterable(combinations(range(len(lam)), m) for m in range(len(lam) + 1)))
        gradients, errors, products = [], [], []
        for learned in sets:
            weights = theory.fixed_point_weights(task.covariance, learned, inverse_length, task.config.H)
            gradients.append(max(2 * float(np.abs(part).max()) for part in rates(weights, task.population)))
            products.append(product(weights))
            expected = theory.fixed_point_loss(lam, learned, inverse_length)
            errors.append(float(abs(loss_of(products[-1], task.population) / expected - 1)))
        known = np.stack(products)  # [set, D, D]
        distance = np.abs(known[:, None] - known).max((-1, -2)) + np.eye(len(sets))  # [set, set]
        what = "smallest distance between the products M of two sets of eigenvectors"
        yield at_least(what, distance.min(), 0.1, "Eq. 3", sanity=True)
        yield at_most("largest entry of a gradient there", max(gradients), self.exact, "Eq. 4", sanity=True)
        yield at_most("relative distance of the loss from Eq. 29", max(errors), self.exact, "Eq. 29", sanity=True)
        roots = {seed: measures.found_fixed_points(task, seed, self.trials) for seed in lab.seeds}
        away = {
            seed: max(float(np.abs(known - M).max((-1, -2)).min()) for M in found) if found else "none found"
            for seed, found in roots.items()
        }
        what = (
            f"largest distance of M from the nearest of the 2^D sets, of fixed points from {self.trials} random starts"
        )
        yield per_seed(at_most, what, away, self.found, "Eq. 3")
        nearest = [{int(np.abs(known - M).max((-1, -2)).argmin()) for M in found} for found in roots.values()]
        yield reported(f"how many of the {len(sets)} sets were found", [len(one) for one in nearest], "Eq. 3")


class ComponentRegression(Claim):
    """Compares the model's predictions with Eq. 8 on each plateau."""

    id, title, reference = "L5", "on a plateau the model is principal component regression in context", "Eq. 8"

    def checks(self, lab: Lab) -> Iterable[Check]:
        shared = shared_flows(lab)
        errors = {
            seed: reached([measures.regression_error(path, m) for m in range(1, 5)]) for seed, path in shared.items()
        }
        yield per_seed(at_most, "relative error against Eq. 8, m = 1..D", errors, 0.02, self.reference)


class LinearConservation(Claim):
    """Judges the drift in the flow, for ranks 1 and 2. The drift of descent is reported."""

    id, title, reference = "L11", "training conserves k.k - q.q and k.k - v^2 in each head", "Eqs. 44, 50"

    def checks(self, lab: Lab) -> Iterable[Check]:
        exact = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-14, "points": 50, "time": 4000.0}
        for rank, equation in ((1, "Eq. 44"), (2, "Eq. 50")):
            runs = lab.each_seed("linear-icl/flow", exact | {"R": rank}, preset="quick")
            drifts = {seed: float(run.timeline.series("conserved/drift").max()) for seed, run in runs.items()}
            yield per_seed(at_most, f"rank {rank}: largest relative drift in the flow", drifts, 1e-6, equation)
        for lr, steps in ((0.4, 5_000), (0.04, 50_000)):
            what = f"relative drift of descent over the same time, lr = {lr:g}"
            stepped = descents(separate(lr=lr, steps=steps), lab.seeds)
            yield reported(what, [measures.descent_drift(path) for path in stepped.values()], "Eq. 44")


class Durations(Claim):
    """Exponents of the first plateau's length, with an aligned head and with random starts, and Eq. 43 later on.

    Only lambda_1 changes: a change of the whole spectrum is a change of units, as is, on the plateau, one of v(0).
    Eqs. 38 and 43 assume that a head is aligned from the beginning of its plateau. From a random start it is not, so
    the mean over seeds is judged, with its confidence interval; for Eq. 43, that the mean length is right within a
    factor of two (ours).
    """

    id, title, reference = "L12", "the first plateau lasts tau / (lambda_1^2 v(0))", "Eqs. 38, 43"
    seeds = 12
    reason = (
        "paper: Eqs. 38 and 43 take the head to be aligned from the beginning of its plateau. From random starts it "
        "aligns on the plateau; the later plateaus last 0.04 to 5.3 times as long as Eq. 43 says, the median twice as "
        "long. For an aligned head Eq. 38 is right within 1%"
    )
    values, firsts = (1e-3, 2e-3, 5e-3, 1e-2), (0.3, 0.4, 0.5, 0.6)
    starts = (0.005, 0.01, 0.02)
    tolerance = 0.1  # of an exponent
    factor = 2.0

    def checks(self, lab: Lab) -> Iterable[Check]:
        by_value = [measures.aligned_drop(0.4, value) for value in self.values]
        by_lambda = [measures.aligned_drop(first, 2e-3) for first in self.firsts]
        slopes = reached([exponent(self.values, by_value), exponent(self.firsts, by_lambda)])
        what = "aligned head: exponents in v(0) and lambda_1"
        yield close(what, slopes, [-1, -2], self.tolerance, "Eq. 38", relative=False)
        ratios = [time * 0.4**2 * value for time, value in zip(by_value, self.values, strict=True)]
        yield reported("time of the drop / Eq. 38, v(0) = 0.001 up to 0.01", reached(ratios), "Eq. 38")

        by_start = [separate(w_init=w_init) for w_init in self.starts]
        by_first = [separate(w_init=SMALL, spectrum=[first, 0.2, 0.15, 0.1]) for first in self.firsts]
        for name, grid, tasks, expected in (
            ("v(0)", self.starts, by_start, -1),
            ("lambda_1 alone", self.firsts, by_first, -2),
        ):
            drops = {seed: [measures.first_drop(task, seed) for task in tasks] for seed in lab.seeds}
            exponents = {seed: reached(exponent(grid, times)) for seed, times in drops.items()}
            what = f"random starts: mean exponent in {name}"
            yield on_average(close, what, exponents, expected, self.tolerance, "Eq. 38", relative=False)
            yield reported(f"random starts: exponent in {name} of each seed", list(exponents.values()), "Eq. 38")
        yield from self.later(lab)

    def later(self, lab: Lab) -> Iterable[Check]:
        """Yields the checks of Eq. 43: the plateaus after the first drop."""
        ratios = {seed: measures.duration_ratios(path) for seed, path in shared_flows(lab).items()}
        for index in range(3):
            logs = {seed: reached(float(np.log(found[index]))) for seed, found in ratios.items()}
            what = f"mean of log(length of plateau {index + 2} / Eq. 43)"
            yield on_average(close, what, logs, 0.0, np.log(self.factor), "Eq. 43", relative=False)
        yield reported("length of the plateaus 2..D / Eq. 43", reached(list(ratios.values())), "Eq. 43")
