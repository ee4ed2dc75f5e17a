"""The claims about the regression variant and its gradient flow: M10 to M13."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stagelens import Check, Claim
from stagelens.base import generator
from stagelens.claims import Lab, at_least, at_most, close, ordered, per_seed, reached, reported
from stagelens.timelines import line_fit
from stagelens_markov import theory
from stagelens_markov.claims import measures
from stagelens_markov.flow import PARTED

TASK = "markov/flow"
SIZES: dict[str, Any] = {}  # changes to the preset, which has the sizes of C.6
EPSILONS = (1e-10, 1e-12, 1e-14, 1e-16)  # variances of the initial attention: deviations from 1e-5 down to 1e-8
NEAR: dict[str, Any] = {"T": 10, "rtol": 1e-10, "atol": 1e-14, "points": 300}  # Theorem 2, with fewer positions


class FeaturesInOrder(Claim):
    """Measures when half of each feature's loss is gone in the flow."""

    id, title = "M10", "the flow learns features in the order of their norms, far apart in time"
    reference = "C.6, Fig. 10"
    apart = 2.0  # the least ratio of two times

    def checks(self, lab: Lab) -> Iterable[Check]:
        found, where = lab.each_seed(TASK, SIZES), self.reference
        times = {seed: measures.feature_times(run) for seed, run in found.items()}
        yield per_seed(ordered, "time at which half of feature k's loss is gone, k = 1..h", times, where)
        yield per_seed(
            at_least, "each of these times over the one before", times, self.apart, where, of=measures.time_ratios
        )
        what = "loss minus the sum of its (feature, position) parts, in units of the first loss"
        yield per_seed(at_most, what, found, 1e-6, where, of=measures.decomposition_error, sanity=True)
        smaller = lab.each_seed(TASK, {**SIZES, "b0": 1.0})
        ratios = {seed: measures.time_ratios(measures.feature_times(run)) for seed, run in smaller.items()}
        what = "each time over the one before with m_h = b0 = 1 (Table 1 has 10; C.6 gives no value)"
        yield per_seed(reported, what, ratios, where)


class SymmetricEnd(Claim):
    """Theorem 1 asks only for the order of Eq. 6. With V(0) < 0 attention first leaves the most important position,
    where the feature is most wrong. The order of s turns around, and the flow can end at another position. The
    proof holds for V(0) >= 0, where both sides of the order grow together.
    """

    id, title, reference = "M11", "identical heads end at the most important position", "Theorem 1"
    reason = (
        "paper: Eq. 6 does not ask for V(0) >= 0, which the proof needs. From V(0) < 0 in the order of Eq. 6 the flow "
        "ends at another position; from V(0) >= 0 the theorem holds"
    )

    def checks(self, lab: Lab) -> Iterable[Check]:
        where = self.reference
        found = lab.each_seed(TASK, {**SIZES, "system": "symmetric", "start": "ordered", "time": 1e6})
        distances = {seed: run.timeline.series("distance") for seed, run in found.items()}
        last = {seed: float(distance[-1]) for seed, distance in distances.items()}
        what = "last distance from V = m_1/H V*_1, s = s*_1, from a random start that fulfils Eq. 6"
        yield per_seed(at_most, what, last, 1e-2, where)
        changes = {seed: float(np.diff(distance[len(distance) // 2 :]).max()) for seed, distance in distances.items()}
        what = "largest change of the distance between two records of the later half: it keeps falling"
        yield per_seed(at_most, what, changes, 0.0, where)
        exponents = {seed: measures.late_exponent(run, "distance") for seed, run in found.items()}
        negative = lab.each_seed(TASK, {**SIZES, "system": "symmetric", "start": "negative", "time": 1e6})
        ends = {seed: measures.last_position(run) for seed, run in negative.items()}
        what = "position with the largest attention at the end, from V(0) < 0 that fulfils Eq. 6"
        yield per_seed(close, what, ends, 1.0, 0.0, f"{where}, Eq. 6")
        what = "exponent of the distance in time over the last factor of ten (-1/2 by a local expansion)"
        yield per_seed(reported, what, exponents, where)


class Deviations(Claim):
    """Theorem 2 bounds the deviation, and so the shortest time until heads separate: log(1/eps)/c, where the paper
    prints 1/(-c log eps). Its constant c depends on H and G alone. Here c is the largest norm of the flow's Jacobian on
    the path of identical heads, so it is known without any run. How long heads stay together beyond that time is not
    in the theorem and is reported. They part at the rate m_2 s_2, and attention s_2 to the second position falls like
    t^(-1/2) while all heads attend to the first. So the deviation grows like exp(const sqrt(t)), and the heads separate
    after a time like log(1/eps)^2, unless eps is so large that they part before.
    """

    id, title = "M12", "small differences between heads grow at most exponentially until the heads separate"
    reference = "Theorem 2"
    rounding = 1.01  # the bound is on the linearized flow; eps is small, not zero

    def checks(self, lab: Lab) -> Iterable[Check]:
        where = self.reference
        runs = [lab.each_seed(TASK, {**NEAR, "eps": eps, "time": 600.0}) for eps in EPSILONS]
        c = measures.theory_rate(runs[0][lab.seeds[0]])
        yield reported("c: the largest norm of the flow's Jacobian on the path of identical heads", c, where)
        excess = {seed: [measures.over_bound(found[seed], c) for found in runs] for seed in lab.seeds}
        what = f"largest deviation over eps exp(c t) until it is {PARTED:g}, eps falling"
        yield per_seed(at_most, what, excess, self.rounding, where)
        earliest = {seed: reached([measures.earliest_parting(found[seed], c) for found in runs]) for seed in lab.seeds}
        what = f"parting time in units of log({PARTED:g}/eps)/c, eps falling"
        yield per_seed(at_least, what, earliest, 1 / self.rounding, where)
        rates = {seed: [measures.growth_rate(found[seed]) for found in runs] for seed in lab.seeds}
        yield per_seed(reported, "the least c for which the bound holds in each run, eps falling", rates, where)
        times = {seed: [measures.parting_time(found[seed]) for found in runs] for seed in lab.seeds}
        starts = {s: [float(found[s].timeline.series("deviation")[0]) for found in runs] for s in lab.seeds}
        exponents = {seed: reached(measures.parting_exponent(starts[seed], times[seed])) for seed in lab.seeds}
        yield per_seed(reported, "exponent of the parting time in log(1/eps); ours, not in the paper", exponents, where)
        yield per_seed(reported, "parting times", times, where, of=reached)
        what = "R2 of a line through sqrt(parting time), and through the time, over log(1/eps)"
        lines = {s: [line_fit(np.log(starts[s]), y).r2 for y in (np.sqrt(times[s]), times[s])] for s in lab.seeds}
        yield per_seed(reported, what, lines, where, of=reached)


class TensorForm(Claim):
    """The population is finite: X = ±sqrt(d T) times a matrix with a single 1 has exactly E[x_i x_j^T] = I if i = j and
    0 otherwise, which the proof uses. (Assumption 1 asks only for the traces, E<x_i, x_j>; see the README.)
    """

    id, title, reference = "M13", "the gradient flow is that of a tensor factorization", "Proposition 1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        errors = {seed: gradient_errors(seed) for seed in lab.seeds}
        for index, name in enumerate("Vq"):
            what = f"largest relative distance of dL/d{name} by autograd on the population loss from the tensor form"
            yield per_seed(at_most, what, {seed: error[index] for seed, error in errors.items()}, 1e-6, self.reference)


def gradient_errors(seed: int, d: int = 4, T: int = 6, h: int = 3, H: int = 4) -> list[float]:
    """Returns the relative distance of autograd's gradients of Eq. 8 in V and in q from Proposition 1's."""
    import torch

    random = generator(seed, "proposition 1")
    scales = np.sort(torch.rand(h, generator=random, dtype=torch.float64).numpy() + 0.5)[::-1]
    basis, _ = torch.linalg.qr(torch.randn(d * d, h, generator=random, dtype=torch.float64))
    features = basis.T.reshape(h, d, d)  # V*_j, orthonormal (Assumption 2)
    v = torch.randn(H, h, generator=random, dtype=torch.float64)
    V = torch.einsum("kj,jab->kab", v, features).requires_grad_()
    q = torch.randn(H, T, generator=random, dtype=torch.float64).requires_grad_()

    ones = torch.eye(d * T, dtype=torch.float64).view(d * T, d, T) * (d * T) ** 0.5
    X = torch.cat([ones, -ones])  # [sample, d, T]
    A = torch.as_tensor(scales.copy())[:, None, None] * features
    target = torch.einsum("jab,nbj->na", A, X[..., :h])  # feature j is carried by position j
    output = torch.einsum("kab,nbi,ki->na", V, X, q.softmax(-1))
    noise = torch.randn(1, d, generator=random, dtype=torch.float64)
    errors = [output - target - sign * noise for sign in (1, -1)]  # noise of mean zero
    torch.stack(errors).square().sum(-1).mean().div(2).backward()  # type: ignore[no-untyped-call]

    s = q.detach().softmax(-1).numpy()
    d_v, d_q = theory.score_rates(v.numpy(), s, theory.target(scales, T))
    expected = np.einsum("kj,jab->kab", -d_v, features.numpy()), -d_q
    assert V.grad is not None and q.grad is not None
    found = V.grad.numpy(), q.grad.numpy()
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True)]
