"""The claims about the paper's main setting: L1 to L5, L11 and L12."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations

import numpy as np

from stagelens import Check, Claim
from stagelens.claims import Lab, at_least, at_most, close, ordered, per_seed, reached, reported
from stagelens_linear_icl import theory
from stagelens_linear_icl.claims import measures
from stagelens_linear_icl.claims.measures import LONG, SMALL, descents, exponent, separate
from stagelens_linear_icl.flow import WeightPath, flow_path
from stagelens_linear_icl.losses import loss_of, rates
from stagelens_linear_icl.model import product


class Drops(Claim):
    id, title, reference = "L1", "the loss falls in D drops, with plateaus at the levels of Eq. 5", "Fig. 1a, Eq. 5"
    seeds = 6

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from measures.level_checks(measures.small_starts(lab.seeds), self.reference)


def shared_descents(lab: Lab) -> dict[int, WeightPath]:
    """Returns the lab's seeds of the descents of L1."""
    shared = measures.small_starts(tuple(range(max(Drops.seeds, len(lab.seeds)))))
    return {seed: shared[seed] for seed in lab.seeds}


class ScalarEquation(Claim):
    id, title, reference = "L2", "the value of a head follows the scalar equation through its drop", "Eq. 7, Fig. 1b"

    def checks(self, lab: Lab) -> Iterable[Check]:
        problem = separate(**LONG)
        times = np.append(0.0, np.geomspace(100.0, 2 * LONG["lr"] * LONG["steps"], 20_000))
        errors = {
            seed: reached(measures.value_errors(flow_path(problem, problem.start(seed), times))) for seed in lab.seeds
        }
        yield per_seed(at_most, "relative error of v through drops 1..D in the flow", errors, 0.05, "Eq. 7")
        what = f"the same error in descent at lr = {LONG['lr']:g}, whose steps are not short compared with a drop"
        yield reported(what, reached([measures.value_errors(path) for path in shared_descents(lab).values()]), "Eq. 7")


class Alignment(Claim):
    id, title, reference = "L3", "after each drop a head's key and query point along the next eigenvector", "Fig. 1c"

    def checks(self, lab: Lab) -> Iterable[Check]:
        paths, where = shared_descents(lab), self.reference
        for side, name in (("k", "key"), ("q", "query")):
            found = {seed: measures.best_cosines(path, side) for seed, path in paths.items()}
            yield per_seed(at_least, f"|cosine| of a {name} with e_m after drop m", found, 0.99, where)
        yield per_seed(ordered, "time at which half of e_m is learned", paths, where, of=measures.half_times)


class FixedPoints(Claim):
    id, title, reference = "L4", "each set of eigenvectors is a fixed point, with the loss of Eq. 29", "Eqs. 3, 4, 29"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
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
        found = np.stack(products)  # [set, D, D]
        distance = np.abs(found[:, None] - found).max((-1, -2)) + np.eye(len(sets))  # [set, set]
        what = "smallest distance between the products M of two sets of eigenvectors"
        yield at_least(what, distance.min(), 0.1, "Eq. 3")
        yield at_most("largest entry of a gradient there", max(gradients), 1e-8, "Eq. 4")
        yield at_most("relative distance of the loss from Eq. 29", max(errors), 1e-8, "Eq. 29")


class ComponentRegression(Claim):
    id, title, reference = "L5", "on a plateau the model is principal component regression in context", "Eq. 8"

    def checks(self, lab: Lab) -> Iterable[Check]:
        paths = shared_descents(lab)
        errors = {
            seed: reached([measures.regression_error(path, m) for m in range(1, 5)]) for seed, path in paths.items()
        }
        yield per_seed(at_most, "relative error against Eq. 8, m = 1..D", errors, 0.02, self.reference)


class LinearConservation(Claim):
    id, title, reference = "L11", "training conserves k.k - q.q and k.k - v^2 in each head", "Eqs. 44, 50"

    def checks(self, lab: Lab) -> Iterable[Check]:
        exact = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-14, "points": 50, "time": 4000.0}
        for rank, equation in ((1, "Eq. 44"), (2, "Eq. 50")):
            runs = lab.each_seed("linear-icl/flow", exact | {"R": rank}, preset="quick")
            drifts = {seed: float(run.timeline.series("conserved/drift").max()) for seed, run in runs.items()}
            yield per_seed(at_most, f"rank {rank}: largest relative drift in the flow", drifts, 1e-6, equation)
        for lr, steps in ((0.4, 5_000), (0.04, 50_000)):
            what = f"relative drift of descent over the same time, lr = {lr:g}"
            paths = descents(separate(lr=lr, steps=steps), lab.seeds)
            yield reported(what, [measures.descent_drift(path) for path in paths.values()], "Eq. 44")


class Durations(Claim):
    id, title, reference = "L12", "the first plateau lasts tau / (lambda_1^2 v(0))", "Eqs. 38, 43"

    def checks(self, lab: Lab) -> Iterable[Check]:
        values, firsts = (1e-3, 2e-3, 5e-3, 1e-2), (0.3, 0.4, 0.5, 0.6)
        by_value = [measures.aligned_drop(0.4, value) for value in values]
        by_lambda = [measures.aligned_drop(first, 2e-3) for first in firsts]
        slopes = reached([exponent(values, by_value), exponent(firsts, by_lambda)])
        what = "aligned head: exponents in v(0) and lambda_1"
        yield close(what, slopes, [-1, -2], 0.1, "Eq. 38", relative=False)
        ratios = [time * 0.4**2 * value for time, value in zip(by_value, values, strict=True)]
        yield reported("time of the drop / Eq. 38, v(0) = 0.001 up to 0.01", reached(ratios), "Eq. 38")

        starts, scales = (0.005, 0.01, 0.02), (0.5, 1.0, 1.5)
        by_start = [separate(w_init=w_init) for w_init in starts]
        by_scale = [separate(w_init=SMALL, spectrum=[s * x for x in (0.4, 0.3, 0.2, 0.1)]) for s in scales]
        for name, grid, tasks, expected in (("v(0)", starts, by_start, -1), ("lambda_1", scales, by_scale, -2)):
            drops = {seed: [measures.first_drop(task, seed) for task in tasks] for seed in lab.seeds}
            exponents = {seed: reached(exponent(grid, times)) for seed, times in drops.items()}
            what = f"random start: exponent in {name}"
            yield per_seed(close, what, exponents, expected, 0.1, "Eq. 38", relative=False)
