"""The paper's formulas as pure functions, and `Problem`, which applies them to a config.

Eigenvalues lambda_1..lambda_D come as an array `lam` [D], largest first. `inverse_length` is E(1/N), which is 1/N if
every context has the same length; with it, each formula also holds for varying lengths (B.3). Times are in units of
tau. Learned eigenvectors are given by their index from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stagelens.experiments import Floats, solve
from stagelens_linear_icl.data import (
    Covariance,
    RegressionMoments,
    covariance_from,
    mean_inverse_length,
    population_moments,
)
from stagelens_linear_icl.model import HeadWeights, initial_weights


def shrinkage(lam: Floats, inverse_length: float) -> Floats:
    """Returns 1 + E(1/N) (1 + tr(Lambda) / lambda_d), [D]: how much finite contexts shrink the solution."""
    return np.asarray(1 + inverse_length * (1 + lam.sum() / lam))


def hat_eigenvalues(lam: Floats, inverse_length: float) -> Floats:
    """Eq. 18: returns a_d, the eigenvalues of E(Lambda_hat^2), [D]."""
    return lam**2 * shrinkage(lam, inverse_length)


def fixed_point(covariance: Covariance, learned: Iterable[int], inverse_length: float) -> Floats:
    """Eq. 4: returns M at the fixed points that have learned the eigenvectors `learned`, [D, D]."""
    lam = covariance.eigenvalues
    weight = 1 / (lam * shrinkage(lam, inverse_length))
    e = covariance.eigenvectors
    return sum((weight[d] * np.outer(e[d], e[d]) for d in learned), np.zeros_like(e))


def fixed_point_weights(
    covariance: Covariance, learned: Iterable[int], inverse_length: float, heads: int, rank: int = 1
) -> HeadWeights:
    """Returns weights in M(S) (Eqs. 3, 46), balanced as in Eqs. 44 and 50 after a small start.

    Each head holds up to `rank` of the learned eigenvectors; the other heads are zero. For rank 1 this is Eq. 6a:
    k = q = v e_d.
    """
    lam, e = covariance.eigenvalues, covariance.eigenvectors
    weight = 1 / (lam * shrinkage(lam, inverse_length))  # v |k| |q| of each eigenvector
    k = np.zeros((heads, rank, len(lam)))
    for number, d in enumerate(learned):
        head, r = divmod(number, rank)
        k[head, r] = weight[d] ** 0.5 * e[d]
    v = ((k**2).sum((-1, -2))) ** (1 / 3)  # v^2 = sum_r |k_r|^2 and |k_r|^2 = weight / v
    k /= np.sqrt(np.where(v == 0, 1.0, v))[:, None, None]
    return HeadWeights(v, k, k.copy())


def settled_value(lam: Floats, d: int, inverse_length: float) -> float:
    """Eq. 6a: returns the value of a head that has learned e_d, (lambda_d shrinkage_d)^(-1/3)."""
    return float((lam[d] * shrinkage(lam, inverse_length)[d]) ** (-1 / 3))


def fixed_point_loss(lam: Floats, learned: Iterable[int], inverse_length: float) -> float:
    """Eq. 29: returns the loss at the fixed points that have learned the eigenvectors `learned`."""
    gain = lam / shrinkage(lam, inverse_length)
    return float(lam.sum() - sum(gain[d] for d in learned))


def plateau_losses(lam: Floats, inverse_length: float) -> Floats:
    """Eq. 5, and Eq. 12 for varying lengths: returns the loss with the first m = 0..D eigenvectors learned, [D + 1]."""
    return np.array([fixed_point_loss(lam, range(m), inverse_length) for m in range(len(lam) + 1)])


def regression(covariance: Covariance, m: int, inverse_length: float, beta: Floats, x: Floats) -> Floats:
    """Eq. 8: returns the predictions on plateau m + 1, [n], from beta and x [n, D] of Eq. 2.

    They are those of regression in context on the first m principal components.
    """
    M = fixed_point(covariance, range(m), inverse_length)
    answer: Floats = ((beta @ M) * x).sum(-1)
    return answer


def value_rate(v: Floats, lam: Floats, d: int, inverse_length: float) -> Floats:
    """Eq. 7: returns tau dv/dt = lambda_d^2 v^2 - lambda_d a_d v^5 of the head that learns e_d."""
    return np.asarray(lam[d] ** 2 * v**2 - lam[d] * hat_eigenvalues(lam, inverse_length)[d] * v**5)


def value_curve(times: Floats, start: float, lam: Floats, d: int, inverse_length: float) -> Floats:
    """Returns the solution of Eq. 7 at `times` [T] with v(times[0]) = `start` > 0, [T]."""

    def rate(_: float, v: Floats) -> Floats:
        return value_rate(v, lam, d, inverse_length)

    return solve(rate, [start], times, rtol=1e-10, atol=1e-12).states[:, 0]


def value_time(v: Floats, lam: Floats, d: int, inverse_length: float) -> Floats:
    """Eq. 37: returns the time at which the head that learns e_d has the value v, up to a constant.

    The paper prints v^2 twice in the integrand; v^2 - (a/lambda) v^5 is meant, and its integral is the printed one.
    """
    c = (hat_eigenvalues(lam, inverse_length)[d] / lam[d]) ** (1 / 3)
    log = np.log((c**2 * v**2 + c * v + 1) / (c**2 * v**2 - 2 * c * v + 1))
    angle = np.arctan((2 * c * v + 1) / np.sqrt(3))
    time: Floats = (c / 6 * (log - 2 * np.sqrt(3) * angle) - 1 / v) / lam[d] ** 2
    return time


def plateau_duration(lam_next: float, value: float) -> float:
    """Eqs. 38, 43: returns the length of a plateau, tau / (lambda_{m+1}^2 v_{m+1}(t_m)), from its initial value."""
    return 1 / (lam_next**2 * value)


def conserved(v: Any, k: Any, q: Any) -> dict[str, Any]:
    """Eq. 50 (Eq. 44 for R = 1): returns |k_ir|^2 - |q_ir|^2, [..., H, R], and sum_r |k_ir|^2 - v_i^2, [..., H].

    v [..., H], k and q [..., H, R, D] are arrays or tensors.
    """
    keys, queries = (k**2).sum(-1), (q**2).sum(-1)
    return {"k.k - q.q": keys - queries, "k.k - v^2": keys.sum(-1) - v**2}


class Problem:
    """Mixed into a task or flow with a `ProblemConfig`: its covariance, its initial weights and its theory."""

    config: Any
    seed: int

    @cached_property
    def covariance(self) -> Covariance:
        return covariance_from(self.config)

    @property
    def lam(self) -> Floats:
        """lambda_1..lambda_D, largest first."""
        return self.covariance.eigenvalues

    @property
    def inverse_length(self) -> float:
        """E(1/N)."""
        return mean_inverse_length(self.config.N, self.config.every)

    @cached_property
    def population(self) -> RegressionMoments:
        """The moments of the distribution of sequences."""
        return population_moments(self.covariance, self.inverse_length)

    @cached_property
    def fixed_points(self) -> Floats:
        """M_0..M_D, [D + 1, D, D]."""
        sets = [range(m) for m in range(self.config.D + 1)]
        return np.stack([fixed_point(self.covariance, learned, self.inverse_length) for learned in sets])

    @cached_property
    def plateaus(self) -> Floats:
        """The plateau losses L(M_0)..L(M_D) of Eq. 5 or 12, [D + 1]."""
        return plateau_losses(self.lam, self.inverse_length)

    @property
    def half_drops(self) -> Floats:
        """The loss half-way through each drop, from L(M_{m-1}) to L(M_m), [D]."""
        return (self.plateaus[1:] + self.plateaus[:-1]) / 2

    def start(self, seed: int | None = None) -> HeadWeights:
        """Returns the initial weights (Eq. 20) of `seed`, by default of the run's seed."""
        c = self.config
        return initial_weights(c.H, c.R, c.D, c.w_init, self.seed if seed is None else seed, c.value_init)

    def directions(self) -> Mapping[str, Tensor]:
        """Returns e_1..e_D as directions of the tokens (x, y), [D + 1] each."""
        e = torch.from_numpy(np.pad(self.covariance.eigenvectors, ((0, 0), (0, 1))))
        return {f"e{d}": direction for d, direction in enumerate(e, start=1)}

    def stage_names(self) -> Sequence[str]:
        """Names each drop after its eigenvector. For R > 1 one drop may be several eigenvectors, so it has no name."""
        return [f"e{d} learned" for d in range(1, self.config.D + 1)] if self.config.R == 1 else []
