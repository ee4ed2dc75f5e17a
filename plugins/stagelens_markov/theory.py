"""The regression variant (section 3) as pure functions, each with its equation's number.

V_k lies in the span of the orthonormal features V*_j (a part outside it would only decay), so a head is its
coordinates v_k [feature] and its attention s_k [position]: v is [head, feature], s is [head, position]. The target G
of Proposition 1 is [feature, position]: m_j at feature j's own position. Feature j's position is j, from 0, and the
positions from h on matter to nobody.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def target(scales: Floats, T: int) -> Floats:
    """G = sum_j m_j V*_j ⊗ s*_j, [feature, position] (Proposition 1)."""
    G = np.zeros((len(scales), T))
    np.fill_diagonal(G, scales)
    return G


def residual(v: Floats, s: Floats, G: Floats) -> Floats:
    """G - P with P = sum_k V_k ⊗ s_k, [feature, position]."""
    return np.asarray(G - v.T @ s)


def loss_parts(v: Floats, s: Floats, G: Floats) -> Floats:
    """What each (feature, position) adds to the loss |G - P|^2 / 2, [feature, position] (C.6)."""
    return np.asarray(residual(v, s, G) ** 2 / 2)


def tensor_loss(v: Floats, s: Floats, G: Floats) -> float:
    """Proposition 1's loss |G - P|^2 / 2, by the inner products of section D: sum_kl <V_k, V_l> <s_k, s_l>, ..."""
    cross = np.einsum("kj,ji,ki->", v, G, s)
    return float(((G**2).sum() - 2 * cross + ((v @ v.T) * (s @ s.T)).sum()) / 2)


def project(s: Floats, x: Floats) -> Floats:
    """Pi(s) x = (diag(s) - s s^T) x, for each head: the derivative of the softmax, [..., position]."""
    return np.asarray(s * (x - (s * x).sum(-1, keepdims=True)))


def score_rates(v: Floats, s: Floats, G: Floats) -> tuple[Floats, Floats]:
    """dV/dt and dq/dt of Proposition 1's gradient flow, for scores q with s = softmax(q)."""
    gap = residual(v, s, G)
    return np.asarray(s @ gap.T), project(s, v @ gap)


def rates(v: Floats, s: Floats, G: Floats) -> tuple[Floats, Floats]:
    """Eq. 5: dV/dt = (G - P) s and ds/dt = Pi(s)^2 V^T (G - P)."""
    d_v, d_q = score_rates(v, s, G)
    return d_v, project(s, d_q)


def symmetric_rates(v: Floats, s: Floats, G: Floats, H: int) -> tuple[Floats, Floats]:
    """The flow of H heads that are all alike, of v [feature] and s [position] (before Theorem 1)."""
    d_v = G @ s - H * (s @ s) * v
    d_s = project(s, project(s, v @ G - H * (v @ v) * s))
    return np.asarray(d_v), d_s


def competitive_end(G: Floats, H: int) -> tuple[Floats, Floats]:
    """Theorem 1: V = m_1/H V*_1 and s = s*_1, where all heads look at the most important position."""
    return G[:, 0] / H, np.eye(G.shape[1])[0]


def fixed_point(G: Floats, positions: list[int]) -> tuple[Floats, Floats]:
    """A fixed point of Eq. 5: head k looks at positions[k] alone; heads that share a position share its feature.

    A head on a position that carries no feature does nothing.
    """
    s = np.eye(G.shape[1])[positions]
    sharing = s.sum(0)[positions]  # [head], how many heads look where this one does
    return np.asarray((G[:, positions] / sharing).T), s


def plateau_losses(scales: Floats) -> Floats:
    """The loss when the 0, 1, ..., h most important features are learned: sum of m_j^2 / 2 over the rest, [h + 1]."""
    halves = np.asarray(scales) ** 2 / 2
    return np.append(halves.sum() - np.append(0.0, halves.cumsum())[:-1], 0.0)


def early(t: float, G: Floats) -> tuple[Floats, Floats]:
    """Remark 1: V [feature] to first and s [position] to second order in t, from V = 0 and even attention.

    V = (t/T) G 1, and s = 1/T + t^2/(2 T^3) (g - mean(g)) with g_i = sum_j m_j G_ji: m_j^2 at feature j's position.
    So attention to the feature of the largest norm grows first.
    """
    T = G.shape[1]
    g = G.sum(1) @ G
    return np.asarray(t / T * G.sum(1)), 1 / T + t**2 / (2 * T**3) * (g - g.mean())


def late_attention(t: Floats, scales: Floats, H: int, T: int, position: int) -> Floats:
    """Attention of heads that are all alike to a position other than the first, long after the competition.

    Near Theorem 1's end V follows s, and with D_i = (m_1^2 - m_i^2)/H (m_i = 0 where there is no feature)
    ds_i/dt = -s_i (D_i s_i^2 + sum_j D_j s_j^2), whose self-similar solution is s_i = (2 T D_i t)^(-1/2): a power law.
    """
    own = scales[position] if position < len(scales) else 0.0
    return np.asarray((2 * T * (scales[0] ** 2 - own**2) * np.asarray(t) / H) ** -0.5)
