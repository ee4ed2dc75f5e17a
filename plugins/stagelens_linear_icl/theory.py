"""The paper's formulas, each a pure function with its equation's number.

Eigenvalues lambda_1..lambda_D come as an array `lam` [D], largest first. `inverse_length` is E(1/N), which is 1/N
where every context has the same length; with it, each formula holds for varying lengths too (B.3). Times are in units
of tau. Learned eigenvectors are named by their index from 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stagelens_linear_icl.data import Covariance, Floats
from stagelens_linear_icl.descent import Weights


def shrinkage(lam: Floats, inverse_length: float) -> Floats:
    """1 + E(1/N) (1 + tr(Lambda) / lambda_d), [D]: how far finite contexts pull the solution towards 0."""
    return np.asarray(1 + inverse_length * (1 + lam.sum() / lam))


def hat_eigenvalues(lam: Floats, inverse_length: float) -> Floats:
    """Eq. 18: a_d, the eigenvalues of E(Lambda_hat^2), [D]."""
    return lam**2 * shrinkage(lam, inverse_length)


def fixed_point(covariance: Covariance, learned: Iterable[int], inverse_length: float) -> Floats:
    """Eq. 4: M at the fixed points that have learned the eigenvectors `learned`, [D, D]."""
    lam = covariance.eigenvalues
    weight = 1 / (lam * shrinkage(lam, inverse_length))
    e = covariance.eigenvectors
    return sum((weight[d] * np.outer(e[d], e[d]) for d in learned), np.zeros_like(e))


def fixed_point_weights(
    covariance: Covariance, learned: Iterable[int], inverse_length: float, heads: int, rank: int = 1
) -> Weights:
    """Weights in M(S) (Eqs. 3, 46), balanced as Eqs. 44 and 50 make them from a small start; the other heads are zero.

    Each head holds up to `rank` of the learned eigenvectors. For rank 1 this is Eq. 6a: k = q = v e_d.
    """
    lam, e = covariance.eigenvalues, covariance.eigenvectors
    weight = 1 / (lam * shrinkage(lam, inverse_length))  # v |k| |q| of each eigenvector
    v, k = np.zeros(heads), np.zeros((heads, rank, len(lam)))
    for number, d in enumerate(learned):
        head, r = divmod(number, rank)
        k[head, r] = weight[d] ** 0.5 * e[d]
    v = ((k**2).sum((-1, -2))) ** (1 / 3)  # v^2 = sum_r |k_r|^2 and |k_r|^2 = weight / v
    k /= np.sqrt(np.where(v == 0, 1.0, v))[:, None, None]
    return Weights(v, k, k.copy())


def settled_value(lam: Floats, d: int, inverse_length: float) -> float:
    """Eq. 6a: the value weight of a head that has learned e_d, lambda_d^(-1/3) (...)^(-1/3)."""
    return float((lam[d] * shrinkage(lam, inverse_length)[d]) ** (-1 / 3))


def fixed_point_loss(lam: Floats, learned: Iterable[int], inverse_length: float) -> float:
    """Eq. 29: the loss at the fixed points that have learned the eigenvectors `learned`."""
    gain = lam / shrinkage(lam, inverse_length)
    return float(lam.sum() - sum(gain[d] for d in learned))


def plateau_loss(lam: Floats, m: int, inverse_length: float) -> float:
    """Eq. 5, and for varying lengths Eq. 12: the loss when the first m eigenvectors are learned."""
    return fixed_point_loss(lam, range(m), inverse_length)


def plateau_losses(lam: Floats, inverse_length: float) -> Floats:
    """Eqs. 5, 12 for m = 0..D, [D + 1]."""
    return np.array([plateau_loss(lam, m, inverse_length) for m in range(len(lam) + 1)])


def regression(covariance: Covariance, m: int, inverse_length: float, beta: Floats, x: Floats) -> Floats:
    """Eq. 8: what the model says on plateau m + 1, [n]: regression in context on the first m principal components.

    `beta` and `x` [n, D] are those of Eq. 2.
    """
    M = fixed_point(covariance, range(m), inverse_length)
    answer: Floats = ((beta @ M) * x).sum(-1)
    return answer


def value_rate(v: Floats, lam: Floats, d: int, inverse_length: float) -> Floats:
    """Eq. 7: tau dv/dt = lambda_d^2 v^2 - lambda_d a_d v^5 of the head that learns e_d."""
    return np.asarray(lam[d] ** 2 * v**2 - lam[d] * hat_eigenvalues(lam, inverse_length)[d] * v**5)


def value_curve(times: Floats, start: float, lam: Floats, d: int, inverse_length: float) -> Floats:
    """Eq. 7 solved from v(times[0]) = `start` > 0 at `times` [T], [T]."""
    from scipy.integrate import solve_ivp

    def rate(_: float, v: Floats) -> Floats:
        return value_rate(v, lam, d, inverse_length)

    if times[-1] == times[0]:
        return np.full(len(times), start)
    solved = solve_ivp(rate, (times[0], times[-1]), [start], "LSODA", t_eval=times, rtol=1e-10, atol=1e-12)
    curve: Floats = solved.y[0]
    return curve


def value_time(v: Floats, lam: Floats, d: int, inverse_length: float) -> Floats:
    """Eq. 37: the time at which the head that learns e_d has the value v, up to a constant.

    The integrand printed there has v^2 twice; v^2 - (a/lambda) v^5 is meant, and its integral is the one given.
    """
    c = (hat_eigenvalues(lam, inverse_length)[d] / lam[d]) ** (1 / 3)
    log = np.log((c**2 * v**2 + c * v + 1) / (c**2 * v**2 - 2 * c * v + 1))
    angle = np.arctan((2 * c * v + 1) / np.sqrt(3))
    time: Floats = (c / 6 * (log - 2 * np.sqrt(3) * angle) - 1 / v) / lam[d] ** 2
    return time


def plateau_duration(lam_next: float, value: float) -> float:
    """Eqs. 38, 43: tau / (lambda_{m+1}^2 v_{m+1}(t_m)), the length of a plateau that starts with that value."""
    return 1 / (lam_next**2 * value)


def conserved_rank_one(weights: Weights) -> dict[str, Floats]:
    """Eq. 44, for R = 1: k_i^T k_i - q_i^T q_i and k_i^T k_i - v_i^2, each [..., H]."""
    named = conserved(weights)
    return {"k.k - q.q": named["k.k - q.q"][..., 0], "k.k - v^2": named["k.k - v^2"]}


def conserved(weights: Weights) -> dict[str, Floats]:
    """Eq. 50: k_ir^T k_ir - q_ir^T q_ir, [..., H, R], and sum_r k_ir^T k_ir - v_i^2, [..., H]."""
    keys, queries = (weights.k**2).sum(-1), (weights.q**2).sum(-1)
    return {"k.k - q.q": keys - queries, "k.k - v^2": keys.sum(-1) - weights.v**2}
