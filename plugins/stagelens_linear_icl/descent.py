"""Full-batch gradient descent on the exact loss, for many seeds at once, and its limit, the gradient flow.

Everything here works on stacks: the weights of S seeds have a leading dimension [S], the moments may have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagelens import StagelensError
from stagelens.base import generator
from stagelens_linear_icl.data import Floats, Moments

MOST_STIFF = 200  # weights; beyond it the Jacobian that an implicit method needs costs more than it saves


class Weights(NamedTuple):
    """v [..., H], k [..., H, R, D] and q [..., H, R, D] of Eq. 2."""

    v: Floats
    k: Floats
    q: Floats


def initial_weights(H: int, R: int, D: int, w_init: float, seed: int) -> Weights:
    """Eq. 20: v ~ N(0, w_init^2 / H), entries of k and q ~ N(0, w_init^2 / HRD)."""
    import torch

    stream = generator(seed, "init")
    v, k, q = (torch.randn(*shape, generator=stream, dtype=torch.float64) for shape in ((H,), (H, R, D), (H, R, D)))
    wide, narrow = w_init / np.sqrt(H), w_init / np.sqrt(H * R * D)
    return Weights(wide * v.numpy(), narrow * k.numpy(), narrow * q.numpy())


def stack(weights: Iterable[Weights]) -> Weights:
    """The weights of several seeds as one stack."""
    return Weights(*(np.stack(parts) for parts in zip(*weights, strict=True)))


def product(weights: Weights) -> Floats:
    """M = sum_i sum_r v_i k_ir q_ir^T, [..., D, D]."""
    v, k, q = weights
    *lead, H, R, D = k.shape
    scaled = (v[..., None, None] * k).reshape(*lead, H * R, D)
    M: Floats = np.swapaxes(scaled, -1, -2) @ q.reshape(*lead, H * R, D)
    return M


def residual(M: Floats, moments: Moments) -> Floats:
    """G = E(beta (y_q - y) x_q^T) (Eq. 23) = cross - second vec(M), [..., D, D]."""
    flat = M.reshape(*M.shape[:-2], -1, 1)  # [..., D^2, 1]
    return moments.cross.numpy() - (moments.second.numpy() @ flat).reshape(M.shape)


def loss_of(M: Floats, moments: Moments) -> Floats:
    """The exact loss of M [..., D, D], [...]."""
    cross = moments.cross.numpy()
    loss: Floats = moments.power.numpy() - ((cross + residual(M, moments)) * M).sum((-1, -2))
    return loss


def rates(weights: Weights, moments: Moments) -> Weights:
    """tau dW/dt = -1/2 dL/dW: Eq. 45, which for R = 1 is Eq. 24."""
    v, k, q = weights
    *lead, H, R, D = k.shape
    pairs = (v.repeat(R, axis=-1), k.reshape(*lead, H * R, D), q.reshape(*lead, H * R, D))
    dv, dk, dq = _pulls(*pairs, moments.cross.numpy(), moments.second.numpy())
    return Weights(dv.reshape(*lead, H, R).sum(-1), dk.reshape(k.shape), dq.reshape(q.shape))


def _pulls(v: Floats, k: Floats, q: Floats, cross: Floats, second: Floats) -> tuple[Floats, Floats, Floats]:
    """k . G q [..., P], v G q and v G^T k [..., P, D] of P keys and queries with their heads' values: v [..., P]."""
    v = v[..., None]
    M = (v * k).swapaxes(-1, -2) @ q  # [..., D, D]
    G = cross - (second @ M.reshape(*M.shape[:-2], -1, 1)).reshape(M.shape)
    Gq = q @ G.swapaxes(-1, -2)
    return (k * Gq).sum(-1), v * Gq, v * (k @ G)


@dataclass(frozen=True)
class Descent:
    """What descent left at each recorded step: loss [step, S], and weights v [step, S, H], k and q."""

    steps: NDArray[np.int64]
    lr: float
    loss: Floats
    weights: Weights

    @property
    def times(self) -> Floats:
        """Flow time in units of tau: a step of rate lr follows dL/dW, the flow 1/2 dL/dW."""
        return np.asarray(2 * self.lr * self.steps, dtype=np.float64)

    def seed(self, index: int) -> Descent:
        """The part of one seed."""
        return Descent(self.steps, self.lr, self.loss[:, index], Weights(*(w[:, index] for w in self.weights)))


def descend(weights: Weights, moments: Moments, lr: float, steps: int, record: Sequence[int] | None = None) -> Descent:
    """`steps` of gradient descent at rate `lr` from `weights` (a stack of S), recorded at the steps in `record`.

    Without `record`: at 0, at the end, and at about 1,000 steps between, half of them even and half even in log time.
    Stops where a loss is not finite any more; that step is the last one recorded.
    """
    v0, k0, q0 = weights
    S, H, R, D = k0.shape
    v, k, q = v0.copy(), k0.reshape(S, H * R, D).copy(), q0.reshape(S, H * R, D).copy()
    cross = moments.cross.numpy()
    second = moments.second.numpy()
    step_size = 2 * lr
    wanted = set(record_steps(steps) if record is None else record)
    kept: list[tuple[int, Floats, Weights]] = []

    def keep(step: int) -> bool:
        now = Weights(v.copy(), k.reshape(S, H, R, D).copy(), q.reshape(S, H, R, D).copy())
        kept.append((step, loss_of(product(now), moments), now))
        return bool(np.isfinite(kept[-1][1]).all())

    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(steps + 1):
            if (step in wanted and not keep(step)) or step == steps:
                break
            dv, dk, dq = _pulls(v.repeat(R, axis=1) if R > 1 else v, k, q, cross, second)
            k += step_size * dk
            q += step_size * dq
            v += step_size * (dv if R == 1 else dv.reshape(S, H, R).sum(-1))
    numbers, losses, history = zip(*kept, strict=True)
    return Descent(np.array(numbers), lr, np.stack(losses), stack(history))


def record_steps(steps: int, count: int = 1000) -> list[int]:
    """Steps to record: half of them even, half even in log time."""
    spaced = np.concatenate([[0], np.linspace(0, steps, count // 2), np.geomspace(1, max(steps, 1), count // 2)])
    return [int(step) for step in np.unique(np.rint(spaced))]


def flow(weights: Weights, moments: Moments, times: Floats, rtol: float = 1e-9, atol: float = 1e-12) -> Weights:
    """The gradient flow (Eqs. 24, 45) of one seed at `times` [T], in units of tau: v [T, H], k and q [T, H, R, D]."""
    from scipy.integrate import solve_ivp

    H, R, D = weights.k.shape
    middle = H + H * R * D  # where k ends
    cross, second = moments.cross.numpy(), moments.second.numpy()

    def rate(_: float, flat: Any) -> Any:
        v, k, q = np.split(flat, [H, middle], axis=-1)  # [..., weight]
        k, q = (part.reshape(*part.shape[:-1], H * R, D) for part in (k, q))
        dv, dk, dq = _pulls(v if R == 1 else v.repeat(R, axis=-1), k, q, cross, second)
        dv = dv if R == 1 else dv.reshape(*v.shape, R).sum(-1)
        return np.concatenate([dv, *(part.reshape(*part.shape[:-2], -1) for part in (dk, dq))], axis=-1)

    def jacobian(time: float, flat: Floats) -> Floats:
        """Exact, and by one call: a rate is a polynomial, so that an imaginary step leaves its derivative alone."""
        steps = 1e-30j * np.eye(len(flat))
        derivative: Floats = rate(time, flat + steps).imag.T / 1e-30
        return derivative

    start = np.concatenate([part.ravel() for part in weights])
    ways: dict[str, Any] = {"method": "LSODA", "jac": jacobian} if len(start) <= MOST_STIFF else {"method": "RK45"}
    solved = solve_ivp(rate, (0.0, times[-1]), start, t_eval=times, rtol=rtol, atol=atol, **ways)
    if not solved.success:
        raise StagelensError(f"the flow cannot be integrated beyond time {solved.t[-1]:.3g}: {solved.message}")
    found = solved.y.T  # [T, weight]
    shape = (-1, H, R, D)
    return Weights(found[:, :H], found[:, H:middle].reshape(shape), found[:, middle:].reshape(shape))


def sharpness(weights: Weights, moments: Moments) -> float:
    """The largest eigenvalue of the Hessian of the loss where the residual vanishes, 2 J^T S J (Gauss-Newton).

    J is the derivative of vec(M) with respect to the weights of one seed. The nonzero eigenvalues of J^T S J are
    those of S J J^T, which is D^2 x D^2, and J J^T is a sum over the heads.
    """
    v, k, q = weights
    D = k.shape[-1]
    eye = np.eye(D)
    JJ = np.zeros((D * D, D * D))
    for v_i, k_i, q_i in zip(v, k, q, strict=True):
        by_value = (k_i.T @ q_i).reshape(-1, 1)  # dM / dv_i
        JJ += by_value @ by_value.T + v_i**2 * (np.kron(eye, q_i.T @ q_i) + np.kron(k_i.T @ k_i, eye))
    return float(2 * np.linalg.eigvals(moments.second.numpy() @ JJ).real.max())


def largest_rate(weights: Weights, settled: Weights, moments: Moments, steps: int = 1000) -> float:
    """An estimate of the largest rate at which descent from `weights` settles: 2 / the largest sharpness on its way.

    The way is sampled where it begins, where it leads to from small weights (`settled`), and, since large weights
    settle near where they are, by a slow descent from `weights`.
    """
    slow = 0.5 / max(sharpness(weights, moments), sharpness(settled, moments))
    way = descend(stack([weights]), moments, slow, steps, record=range(0, steps + 1, steps // 10)).seed(0)
    points = [settled, *(Weights(*parts) for parts in zip(*way.weights, strict=True))]
    return 2 / max(sharpness(point, moments) for point in points)
