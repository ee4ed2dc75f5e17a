"""The exact loss as a quadratic form of M, its gradient with respect to the weights, and its sharpness."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stagelens.experiments import Floats
from stagelens_linear_icl.data import RegressionMoments
from stagelens_linear_icl.model import HeadWeights


def exact_loss(M: Tensor, moments: RegressionMoments) -> Tensor:
    """Returns the loss of M [D, D], or of T [D+1, D+1, D] with the moments of all blocks, as a differentiable []."""
    flat = M.flatten()
    return moments.power + (flat * torch.sub(moments.second @ flat, moments.cross.flatten(), alpha=2)).sum()


def loss_of(M: Floats, moments: RegressionMoments) -> Floats:
    """Returns the same loss for a stack of M [..., D, D] in numpy, [...]."""
    cross = moments.cross.numpy()
    loss: Floats = moments.power.numpy() - ((cross + residual(M, cross, moments.second.numpy())) * M).sum((-1, -2))
    return loss


def residual(M: Floats, cross: Floats, second: Floats) -> Floats:
    """Returns G = E(beta (y_q - y) x_q^T) of Eq. 23, which is cross - second vec(M), [..., D, D]."""
    return cross - (second @ M.reshape(*M.shape[:-2], -1, 1)).reshape(M.shape)


def rates(weights: HeadWeights, moments: RegressionMoments) -> HeadWeights:
    """Returns tau dW/dt = -1/2 dL/dW of Eq. 45, which for R = 1 is Eq. 24."""
    R = weights.k.shape[-2]
    return as_heads(gradients(as_pairs(weights), R, moments.cross.numpy(), moments.second.numpy()), R)


Pairs = tuple[Floats, Floats, Floats]  # v [..., H R], k and q [..., H R, D]


def as_pairs(weights: HeadWeights) -> Pairs:
    """Returns a head of rank R as R pairs of key and query, each with the value of the head."""
    v, k, q = weights
    *lead, H, R, D = k.shape
    return v.repeat(R, axis=-1), k.reshape(*lead, H * R, D), q.reshape(*lead, H * R, D)


def as_heads(pairs: Pairs, R: int) -> HeadWeights:
    """Returns the heads of rank R that `pairs` belong to."""
    v, k, q = pairs
    *lead, P, D = k.shape
    shape = (*lead, P // R, R, D)
    return HeadWeights(v[..., ::R], k.reshape(shape), q.reshape(shape))


def gradients(pairs: Pairs, R: int, cross: Floats, second: Floats) -> Pairs:
    """Returns -1/2 dL/dW as pairs: sum_r k_r . G q_r, repeated R times, v G q and v G^T k. G is the residual."""
    v, k, q = pairs[0][..., None], pairs[1], pairs[2]
    G = residual((v * k).swapaxes(-1, -2) @ q, cross, second)
    Gq = q @ G.swapaxes(-1, -2)
    dv = (k * Gq).sum(-1)
    if R > 1:
        dv = dv.reshape(*dv.shape[:-1], -1, R).sum(-1).repeat(R, axis=-1)
    return dv, v * Gq, v * (k @ G)


def sharpness(weights: HeadWeights, moments: RegressionMoments) -> float:
    """Returns the largest eigenvalue of the loss's Hessian at zero residual, 2 J^T S J (Gauss-Newton).

    J is the derivative of vec(M) with respect to the weights of one seed. The nonzero eigenvalues of J^T S J are
    those of S J J^T, which is D^2 x D^2, and J J^T is a sum over the heads.
    """
    D = weights.k.shape[-1]
    eye = np.eye(D)
    JJ = np.zeros((D * D, D * D))
    for v_i, k_i, q_i in zip(*weights, strict=True):
        by_value = (k_i.T @ q_i).reshape(-1, 1)  # dM / dv_i
        JJ += by_value @ by_value.T + v_i**2 * (np.kron(eye, q_i.T @ q_i) + np.kron(k_i.T @ k_i, eye))
    return float(2 * np.linalg.eigvals(moments.second.numpy() @ JJ).real.max())
