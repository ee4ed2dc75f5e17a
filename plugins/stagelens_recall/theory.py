"""The paper's formulas: plateaus, population gradient, Theorem 3.1, timescales.

Symbols follow the paper: k is the order of the task, |R| the number of responses. Head h has the scores w^h [position]
over the tokens 1..k counted from the end, and the weight beta_h in the second layer. `gain` is 1 + gamma of the proofs:
the weight of a match in the scores. For A.2's matrix I - gamma 1 1^T it is 1 for every gamma.
Forms of the paper that the numbers contradict are included and marked, so that claims can compare both.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, permutations
from math import factorial, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import brentq

Floats = NDArray[np.float64]


def solution(order: int, responses: int, heads: int) -> Floats:
    """Returns Q^T K of the solution of A.2 with c = 1: B kron I~, [(heads + 1) token, (heads + 1) token].

    B has its ones above the diagonal: slot i - 1 of the query, which has token i from its end, meets slot i of the key.
    I~ is I - 1 1^T / k on the symbols that are permuted, and 0 on the responses.
    """
    block = np.zeros((order + responses, order + responses))
    block[:order, :order] = np.eye(order) - 1 / order
    return np.kron(np.eye(heads + 1, k=1), block).astype(np.float64)


def plateau_loss(order: int, responses: int, matched: int) -> float:
    """Returns (1 - 1/(k-j)!)(1 - 1/|R|), the dot-product loss while j tokens are matched (from Eq. 2)."""
    return (1 - 1 / factorial(order - matched)) * (1 - 1 / responses)


def half_way(order: int, responses: int, matched: int = 0) -> float:
    """Returns the dot-product loss half-way between the plateaus with j and with j + 1 tokens matched."""
    return (plateau_loss(order, responses, matched) + plateau_loss(order, responses, matched + 1)) / 2


def plateau_cross_entropy(order: int, responses: int, matched: int) -> float:
    """Returns the cross-entropy while j tokens are matched.

    It is -E log((1 + B)/m) with B ~ Binomial(m - 1, 1/|R|) and m = (k-j)!.
    """
    from scipy.stats import binom  # slow to import

    m = factorial(order - matched)
    others = np.arange(m)  # B: how many of the other candidates share the response
    return float((binom.pmf(others, m - 1, 1 / responses) * np.log(m / (1 + others))).sum())


@lru_cache(maxsize=16)
def matches(order: int, heads: int) -> Floats:
    """Returns 1{q_(k-h) = pi_(t,k-i)} for the query q = pi_1, [permutation t, head h, position i].

    Relabelling the tokens turns every query into this one and maps the set of permutations to itself. So one query
    represents the population.
    """
    from_end = np.array(list(permutations(range(order))))[:, ::-1]  # [t, i]
    table: Floats = (from_end[:, None, :] == from_end[0, :heads, None]).astype(np.float64)
    table.flags.writeable = False  # the cache shares it
    return table


def table_size(order: int, heads: int) -> int:
    """Returns the number of elements of `matches`."""
    return factorial(order) * heads * order


def attention(w: Floats) -> Floats:
    """Returns the softmax of scores w [..., position]."""
    weights = np.exp(w - w.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def recall(w: Floats, beta: Floats, gain: float = 1.0) -> Floats:
    """Returns the second layer's attention s [permutation] from w [head, position] and beta [head] (Eqs. 9a-9c)."""
    agreement = np.einsum("thi,hi->th", matches(w.shape[1], len(w)), attention(w))
    return attention(gain * agreement @ beta**2)


def population_loss(w: Floats, beta: Floats, responses: int, gain: float = 1.0) -> float:
    """Returns the exact population loss (Eq. 2): the mean over maps is (1 - 1/|R|)(1 - s_q)."""
    return float((1 - 1 / responses) * (1 - recall(w, beta, gain)[0]))


def population_gradient(w: Floats, beta: Floats, responses: int, gain: float = 1.0) -> tuple[Floats, Floats]:
    """Returns the exact d loss / d w [head, position] and d loss / d beta [head] (the mean of Lemma C.1)."""
    a, s = attention(w), recall(w, beta, gain)
    slope = (1 - 1 / responses) * s[0] * s  # d loss / d score of each permutation
    slope[0] = -(1 - 1 / responses) * s[0] * s[1:].sum()
    delta = gain * np.einsum("t,thi->hi", slope, matches(w.shape[1], len(w)))  # Delta_(h,i), with the gain
    mean = (a * delta).sum(1)  # [head]
    return beta[:, None] ** 2 * a * (delta - mean[:, None]), 2 * beta * mean


def match_score(alpha: Any, beta: Any, order: int, gain: float = 1.0) -> Any:
    """Returns what a match of head h adds to a score (Eq. 13).

    gamma_h = (1 + gamma) beta^2 (e^alpha - 1)/(e^alpha + k - 1)
    """
    return gain * beta**2 * np.expm1(alpha) / (np.expm1(alpha) + order)


def first_jump_loss(alpha: Any, beta: Any, order: int, responses: int, gain: float = 1.0) -> Any:
    """Returns the population loss if only head 1 has learned, from Lemma C.3's softmax."""
    odds = np.exp(-match_score(alpha, beta, order, gain))
    s = 1 / ((1 + (order - 1) * odds) * factorial(order - 1))
    return (1 - 1 / responses) * (1 - s)


def xi(alpha: Any, beta: Any, order: int, responses: int, gain: float = 1.0) -> Any:
    """Returns -(1 + gamma) E Delta_11 of Lemma C.3, the rate in Theorem 3.1c. Eq. 4 of the paper has twice this."""
    odds = np.exp(-match_score(alpha, beta, order, gain))  # e^(-gamma_1), which does not overflow
    return gain * odds / (1 + (order - 1) * odds) ** 2 * (1 - 1 / responses) / factorial(order - 2)


def first_jump_rates(alpha: Any, beta: Any, order: int, responses: int, gain: float = 1.0) -> tuple[Any, Any]:
    """Returns d alpha / dt and d beta / dt of Theorem 3.1c."""
    rate = xi(alpha, beta, order, responses, gain)
    size = np.expm1(alpha) + order  # e^alpha + k - 1
    d_alpha = beta**2 * np.exp(alpha) / size**2 * order**2 / (order - 1) * rate
    return d_alpha, 2 * beta * np.expm1(alpha) / size * rate


def f(alpha: Any, order: int, sign: int = 1, xp: Any = np) -> Any:
    """Returns f(alpha) of Theorem 3.1d; `xp` is the array library, numpy or torch.

    `sign` is that of the last term: +1 in the proof, -1 in the theorem's statement. The derivative of the proof's form
    is (k-1)/k^2 (e^alpha - 1)(e^alpha + k - 1)/e^alpha, so f - beta^2/4 is constant.
    """
    k = order
    return 2 * (k - 1) / k**2 * (xp.sinh(alpha) - alpha) + sign * (k - 1) / k * (xp.expm1(-alpha) + alpha)


def conserved(alpha: Any, beta: Any, order: int, sign: int = 1, xp: Any = np) -> Any:
    """Returns f(alpha) - beta^2/4 of each head (Theorem 3.1d)."""
    return f(alpha, order, sign, xp) - beta**2 / 4


def alpha_of(w: Any) -> Any:
    """Returns alpha_h = w^h_h minus the mean of the head's other scores, [head], from w [head, position] (3.1a)."""
    order = w.shape[-1]
    own = w.diagonal()
    return own - (w.sum(-1) - own) / (order - 1)


def small_alpha(time: Any, epsilon: float, order: int, responses: int) -> Any:
    """Returns alpha on the first plateau from beta = epsilon: (epsilon/c) tan(c epsilon Xi_0 t/(k-1)).

    f = (k-1)/(2k) alpha^2 + ... gives beta^2 = epsilon^2 + c^2 alpha^2 with c^2 = 2 (k-1)/k. The paper has 4 for c^2.
    """
    c = sqrt(2 * (order - 1) / order)
    return epsilon / c * np.tan(c * epsilon * xi(0.0, 0.0, order, responses) * time / (order - 1))


def escape_law(epsilon: float, order: int, responses: int) -> float:
    """Returns the length of the first plateau from a small beta = epsilon: the time at which `small_alpha` diverges."""
    c = sqrt(2 * (order - 1) / order)
    return float(pi / 2 * (order - 1) / (c * epsilon * xi(0.0, 0.0, order, responses)))


def escape_time(epsilon: float, order: int, responses: int) -> float:
    """Returns the time at which the first jump is half-way down, from beta = epsilon of any size.

    s_q, and so the loss, is then half-way between its plateaus.
    """

    def beyond(alpha: float) -> float:  # 0 if matching permutations have the fraction (1 + 1/k)/2 of the attention
        odds = np.exp(-match_score(alpha, conserved_beta(alpha, epsilon, order), order))
        return float(1 / (1 + (order - 1) * odds) - (1 + 1 / order) / 2)

    return time_to(brentq(beyond, 0.0, 50.0), epsilon, order, responses)


def conserved_beta(alpha: float, epsilon: float, order: int) -> float:
    """Returns beta at alpha, from beta = epsilon at alpha = 0: beta^2 = epsilon^2 + 4 f(alpha) (Theorem 3.1d)."""
    return sqrt(epsilon**2 + 4 * f(alpha, order))


def time_to(alpha: float, epsilon: float, order: int, responses: int) -> float:
    """Returns the time at which the first jump reaches alpha, from beta = epsilon: one integral over alpha."""

    def time_per_alpha(a: float) -> float:
        return float(1 / first_jump_rates(a, conserved_beta(a, epsilon, order), order, responses)[0])

    inner = [epsilon * 4.0**i for i in range(40) if epsilon * 4.0**i < alpha]
    edges = [0.0, *inner, alpha]
    return float(sum(quad(time_per_alpha, low, high, epsrel=1e-10)[0] for low, high in pairwise(edges)))


def alpha_at(time: float, epsilon: float, order: int, responses: int) -> float:
    """Returns alpha at a time after the first jump, from beta = epsilon: `time_to`, solved for alpha."""

    def late(alpha: float) -> float:
        return float(np.log(time_to(alpha, epsilon, order, responses) / time))

    latest = np.log1p(order**2 / (4 * (order - 1)) * (np.log(time) + 20))  # beta^2 is about log t there, plus 20
    return float(brentq(late, epsilon, latest, xtol=1e-9))
