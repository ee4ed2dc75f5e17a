"""The toy model reduced to a few numbers: its loss, gradients and Hessian, and what follows from them.

Under the paper's assumptions (A.1) the attention scores differ only by Delta a = a_T - a_1, and columns of W that see
the same data stay parallel to those of W*. So the state is one number w_g for each group g of columns, and Delta a: one
group without cross-sample repetition (A.3), and with it two, the repeated column and the rest (A.4). Both systems are
the same formula, with sigma_g the variance of the relevant token along a column of the group and r_g the norm of W*'s
columns in it. Here w is [group, ...] and Delta a is [...], numbers or arrays. A.4 has B = 1; here B and p go together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import hypot, isnan, log, pi, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Form = Literal["arcsinh", "appendix", "main text"]
SHARE = 0.2  # of the initial loss: where the plateau ends (D.1)


@dataclass(frozen=True)
class Reduced:
    """T tokens of dimension d, B of them the relevant one, which is the same in all samples with probability p.

    `split` keeps the repeated column apart (3 variables, Eqs. 17-21), as p > 0 must; else there are 2 (Eqs. 12-14).
    `each` lets every score a_t move by its own gradient, as in the model of Eq. 2. Eqs. 4, 14 and 20 let Delta a itself
    move by its gradient, which is another flow: see `mobility`.
    """

    T: int
    d: int
    B: int = 1
    p: float = 0.0
    split: bool = False
    each: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", self.split or self.p > 0)

    @cached_property
    def sigma(self) -> tuple[float, ...]:
        """sigma_g: sigma~ = p + (1-p)/d and sigma = (1-p)/d, or 1/d alone."""
        rest = (1 - self.p) / self.d
        return (self.p + rest, rest) if self.split else (rest,)

    @cached_property
    def norm(self) -> tuple[float, ...]:
        """r_g: the norms of W*'s columns, which are 1 each (Assumption 3)."""
        return (1.0, sqrt(self.d - 1)) if self.split else (sqrt(self.d),)

    @cached_property
    def noise(self) -> float:
        """1 / (d (T - B)): what (1 - B alpha)^2 w^2 weighs in the loss; nothing where every token is relevant."""
        return 1 / (self.d * (self.T - self.B)) if self.B < self.T else 0.0

    @cached_property
    def without_repetition(self) -> Reduced:
        """The same model on the test data of D.1: the same B, and p = 0."""
        return Reduced(self.T, self.d, self.B, 0.0, self.split, self.each)

    @cached_property
    def mobility(self) -> float:
        """How fast Delta a moves by a unit of its gradient: 1 in Eq. 14, and 1/B + 1/(T - B) in the model.

        There the B scores of the relevant token share the gradient, and the T - B others its opposite.
        """
        others = 1 / (self.T - self.B) if self.B < self.T else 0.0
        return 1 / self.B + others if self.each else 1.0

    @cached_property
    def rate(self) -> float:
        """lambda, at which the start is left: B / (sqrt(d) T) in Eq. 15; A.4.2 without limits, times sqrt(mobility)."""
        first = hypot(*(s * r for s, r in zip(self.sigma, self.norm, strict=True)))
        return self.B / self.T * first * sqrt(self.mobility)

    def attention(self, delta_a: Any) -> Any:
        """alpha, to one relevant token (Eq. 9)."""
        return 1 / ((self.T - self.B) * np.exp(-delta_a) + self.B)

    def loss(self, w: Any, delta_a: Any) -> Any:
        """Eqs. 12 and 17."""
        m = self.B * self.attention(delta_a)
        signal = sum(s * (m * w_g - r) ** 2 for w_g, s, r in self._groups(w))
        return 0.5 * ((1 - m) ** 2 * sum(w_g**2 for w_g in w) * self.noise + signal)

    def gradient(self, w: Any, delta_a: Any) -> tuple[list[Any], Any]:
        """d loss / d w [group, ...] and d loss / d Delta a [...] (Eqs. 13-14, 18-21)."""
        alpha = self.attention(delta_a)
        m = self.B * alpha
        missed = [s * (m * w_g - r) for w_g, s, r in self._groups(w)]
        by_w = [(1 - m) ** 2 * self.noise * w_g + m * e for w_g, e in zip(w, missed, strict=True)]
        by_alpha = sum(w_g * (e - (1 - m) * self.noise * w_g) for w_g, e in zip(w, missed, strict=True))
        return by_w, alpha * (1 - m) * self.B * by_alpha

    def velocity(self, w: Any, delta_a: Any) -> tuple[list[Any], Any]:
        """d w / dt [group, ...] and d Delta a / dt [...] of the flow."""
        by_w, by_a = self.gradient(w, delta_a)
        return [-slope for slope in by_w], -self.mobility * by_a

    def hessian(self, w: Any, delta_a: Any) -> Floats:
        """[..., group + 1, group + 1], Delta a last.

        The paper's d^2 L / d Delta a^2 lacks a factor alpha (1 - B alpha), A.4's mixed terms a factor 2 in the noise.
        """
        alpha = self.attention(delta_a)
        m = self.B * alpha
        slope = alpha * (1 - m)  # d alpha / d Delta a
        size = len(self.norm) + 1
        hessian = np.zeros((*np.shape(delta_a), size, size))
        for g, (w_g, s, r) in enumerate(self._groups(w)):
            hessian[..., g, g] = (1 - m) ** 2 * self.noise + m**2 * s
            mixed = self.B * slope * (s * (2 * m * w_g - r) - 2 * (1 - m) * self.noise * w_g)
            hessian[..., g, -1] = hessian[..., -1, g] = mixed
        by_alpha_twice = self.B**2 * sum((self.noise + s) * w_g**2 for w_g, s, _ in self._groups(w))
        hessian[..., -1, -1] = (1 - 2 * m) * self.gradient(w, delta_a)[1] + slope**2 * by_alpha_twice
        return hessian

    def equilibrium(self, alpha: Any) -> list[Any]:
        """w_inf(alpha) [group, ...]: where d loss / d w = 0 (A.3.3)."""
        m = self.B * alpha
        return [m * s * r / ((1 - m) ** 2 * self.noise + m**2 * s) for s, r in zip(self.sigma, self.norm, strict=True)]

    def projection(self, w: Any) -> Any:
        """<W*, W> / |W*| of footnote 1, [...]."""
        return sum(w_g * r for w_g, r in zip(w, self.norm, strict=True)) / sqrt(self.d)

    def along_target(self, w: float) -> list[float]:
        """The w_g of a W that is parallel to W*, with <W*, W> / |W*| = w."""
        return [w * r / sqrt(self.d) for r in self.norm]

    def _groups(self, w: Any) -> Iterable[tuple[Any, float, float]]:
        """(w_g, sigma_g, r_g) of each group."""
        return zip(w, self.sigma, self.norm, strict=True)

    def linearization(self) -> tuple[Floats, Floats]:
        """The flow's velocity [group + 1] at the start and its Jacobian, before A.3.2 and A.4.2 take limits."""
        start = [0.0] * len(self.norm)
        w, delta_a = self.velocity(start, 0.0)
        moves = np.array([1.0] * len(self.norm) + [self.mobility])
        return np.array([*w, delta_a]), -moves[:, None] * self.hessian(start, 0.0)

    def plateau_law(self) -> float:
        """sqrt(pi/2) / lambda: how long the plateau lasts while alpha << 1; the growth of alpha itself is kept.

        With alpha = e^(Delta a) / T the flow is u' = g e^(Delta a), Delta a' = mu g u e^(Delta a), where u is w along
        the first gradient, g its size and mu the mobility. So Delta a = mu u^2 / 2, and u' = g e^(mu u^2 / 2) takes
        this time to reach infinity. For p = 0 and T >> B it is sqrt(pi/2) sqrt(d) T / B in Eqs. 13-14, and
        sqrt(pi/2) sqrt(d) T / sqrt(B) in the model, where every score moves by itself.
        """
        return sqrt(pi / 2) / self.rate

    def horizon(self) -> float:
        """A time by which the plateau is over and w has settled, where it ever does."""
        settling = self.d / (1 - self.p) if self.p < 1 else 0.0
        return 5 * (self.plateau_law() + settling)


def repetition(p: Any, d: Any) -> Any:
    """f(p, d) = sqrt(p^2 d + (1-p)^2) of Eq. 22."""
    return np.sqrt(p**2 * d + (1 - p) ** 2)


def linear_w(time: Any, rate: float) -> Any:
    """w = sinh(lambda t) (A.3.2)."""
    return np.sinh(rate * time)


def linear_delta_a(time: Any, rate: float) -> Any:
    """Delta a = cosh(lambda t) - 1 (A.3.2)."""
    return np.cosh(rate * time) - 1


def linear_loss(time: Any, rate: float) -> Any:
    """(1 - lambda sinh(2 lambda t)) / 2: the loss of the linearized dynamics (A.3.2)."""
    return 0.5 * (1 - rate * np.sinh(2 * rate * time))


def escape_time(share: float, rate: float, form: Form = "arcsinh") -> float:
    """When the linearized loss has lost `share` of its start.

    arcsinh(x) with x = share / lambda is exact; for large x it is log(2x), as the appendix prints, and not the log(x)
    of Eq. 6.
    """
    x = share / rate
    grown = {"arcsinh": float(np.arcsinh(x)), "appendix": log(2 * x), "main text": log(x)}
    return grown[form] / (2 * rate)


def late_eigenvalues(problem: Reduced, alpha: float) -> tuple[float, float]:
    """The Hessian's eigenvalues at w_inf as B alpha -> 1, for 2 variables: (2 e^2 / (T - B), 1 / d), e = 1 - B alpha.

    A.3.3 prints a diagonal of order e for Delta a. It is e^2, and what the mixed terms leave of it is this.
    """
    return 2 * (1 - problem.B * alpha) ** 2 / (problem.T - problem.B), 1 / problem.d


def plateau_length(steps: Any, values: Any, threshold: float, *, rising: bool = False) -> float:
    """The step at which `values` first reach `threshold`, between two records by a straight line; nan: never (D.1).

    A loss falls to its threshold, an accuracy rises to it.
    """
    steps, values = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    left = values - threshold if rising else threshold - values  # reached where it is not negative
    reached = np.flatnonzero(left >= 0)
    if not len(reached):
        return float("nan")
    after = int(reached[0])
    if after == 0 or isnan(left[after - 1]):
        return float(steps[after])
    part = -left[after - 1] / (left[after] - left[after - 1])
    return float(steps[after - 1] + part * (steps[after] - steps[after - 1]))
