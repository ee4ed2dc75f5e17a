"""The formulas of the regression variant (section 3) as pure functions.

V_k lies in the span of the orthonormal features V*_j, because a part outside it only decays. So head k is given by its
coordinates v_k [feature] and its attention s_k [position]. In the code v is [head, feature] and s is [head, position].
The target G of Proposition 1 is [feature, position], with m_j at the position of feature j. That position is j, counted
from 0; positions from h on carry no feature.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stagelens.experiments import Floats


def target(scales: Floats, T: int) -> Floats:
    """Returns G = sum_j m_j V*_j ⊗ s*_j, [feature, position] (Proposition 1)."""
    G = np.zeros((len(scales), T))
    np.fill_diagonal(G, scales)
    return G


def residual(v: Floats, s: Floats, G: Floats) -> Floats:
    """Returns G - P with P = sum_k V_k ⊗ s_k, [feature, position]."""
    return np.asarray(G - v.T @ s)


def loss_parts(v: Floats, s: Floats, G: Floats) -> Floats:
    """Returns what each (feature, position) adds to the loss |G - P|^2 / 2, [feature, position] (C.6)."""
    return np.asarray(residual(v, s, G) ** 2 / 2)


def tensor_loss(v: Floats, s: Floats, G: Floats) -> float:
    """Returns Proposition 1's loss |G - P|^2 / 2, by the inner products of section D."""
    cross = np.einsum("kj,ji,ki->", v, G, s)
    return float(((G**2).sum() - 2 * cross + ((v @ v.T) * (s @ s.T)).sum()) / 2)


def project(s: Floats, x: Floats) -> Floats:
    """Returns Pi(s) x = (diag(s) - s s^T) x for each head, the derivative of the softmax, [..., position]."""
    return np.asarray(s * (x - (s * x).sum(-1, keepdims=True)))


def score_rates(v: Floats, s: Floats, G: Floats) -> tuple[Floats, Floats]:
    """Returns dV/dt and dq/dt of Proposition 1's gradient flow, for scores q with s = softmax(q)."""
    gap = residual(v, s, G)
    return np.asarray(s @ gap.T), project(s, v @ gap)


def rates(v: Floats, s: Floats, G: Floats) -> tuple[Floats, Floats]:
    """Eq. 5: returns dV/dt = (G - P) s and ds/dt = Pi(s)^2 V^T (G - P)."""
    d_v, d_q = score_rates(v, s, G)
    return d_v, project(s, d_q)


def symmetric_rates(v: Floats, s: Floats, G: Floats, H: int) -> tuple[Floats, Floats]:
    """Returns dv/dt [feature] and ds/dt [position] of H identical heads (before Theorem 1)."""
    d_v = G @ s - H * (s @ s) * v
    d_s = project(s, project(s, v @ G - H * (v @ v) * s))
    return np.asarray(d_v), d_s


def deviation_rate(v: Floats, s: Floats, G: Floats, H: int) -> float:
    """Returns a bound on the growth rate of deviations from H identical heads at v [feature], s [position] (Theorem 2).

    The size of a deviation is the largest |V_k - V| or |s_k - s|. The bound is the norm of Eq. 5's Jacobian for
    this size: the largest sum of the spectral norms of a row's blocks. By Groenwall's inequality, a small deviation
    is at most eps exp(c t), where c is the largest rate on the way.
    """
    h, T = G.shape
    flat = np.concatenate([np.tile(v, H), np.tile(s, H)])
    moved = flat + 1e-30j * np.eye(len(flat))  # Eq. 5 is a polynomial, so an imaginary step is exact
    columns = [
        np.concatenate([part.imag.ravel() for part in rates(row[: H * h].reshape(H, h), row[H * h :].reshape(H, T), G)])
        for row in moved
    ]
    jacobian = np.stack(columns, axis=1) / 1e-30
    ends = [*range(0, H * h, h), *range(H * h, H * (h + T) + 1, T)]  # of the blocks V_1.., s_1..
    blocks = list(pairwise(ends))
    sums = [sum(float(np.linalg.norm(jacobian[a:b, c:d], 2)) for c, d in blocks) for a, b in blocks]
    return max(sums)


def competitive_end(G: Floats, H: int) -> tuple[Floats, Floats]:
    """Theorem 1: returns V = m_1/H V*_1 and s = s*_1: all heads attend to the most important position."""
    return G[:, 0] / H, np.eye(G.shape[1])[0]


def fixed_point(G: Floats, positions: list[int]) -> tuple[Floats, Floats]:
    """Returns V and s of a fixed point of Eq. 5: head k attends to positions[k] alone.

    Heads at the same position share its feature. A head at a position without a feature has V = 0.
    """
    s = np.eye(G.shape[1])[positions]
    sharing = s.sum(0)[positions]  # [head], how many heads are at this position
    return np.asarray((G[:, positions] / sharing).T), s


def plateau_losses(scales: Floats) -> Floats:
    """Returns the loss with the first 0, 1, ..., h features learned, the sum of m_j^2 / 2 over the others, [h + 1]."""
    halves = np.asarray(scales) ** 2 / 2
    return np.append(halves.sum() - np.append(0.0, halves.cumsum())[:-1], 0.0)


def early(t: float, G: Floats) -> tuple[Floats, Floats]:
    """Remark 1: returns V [feature] to first and s [position] to second order in t, from V = 0 and uniform attention.

    V = (t/T) G 1, and s = 1/T + t^2/(2 T^3) (g - mean(g)) with g_i = sum_j m_j G_ji: m_j^2 at feature j's position.
    So attention to the feature with the largest norm grows first.
    """
    T = G.shape[1]
    g = G.sum(1) @ G
    return np.asarray(t / T * G.sum(1)), 1 / T + t**2 / (2 * T**3) * (g - g.mean())


def late_attention(t: Floats, scales: Floats, H: int, T: int, position: int) -> Floats:
    """Returns the attention of identical heads to a position other than the first, long after the competition.

    Near Theorem 1's end V follows s. With D_i = (m_1^2 - m_i^2)/H (m_i = 0 without a feature) the flow is
    ds_i/dt = -s_i (D_i s_i^2 + sum_j D_j s_j^2). Its self-similar solution is the power law s_i = (2 T D_i t)^(-1/2).
    """
    own = scales[position] if position < len(scales) else 0.0
    return np.asarray((2 * T * (scales[0] ** 2 - own**2) * np.asarray(t) / H) ** -0.5)
