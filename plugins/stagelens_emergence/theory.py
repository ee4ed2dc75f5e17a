"""The toy model reduced to two or three variables: loss, gradients, Hessian, and formulas that follow from them.

Under the paper's assumptions (A.1) the attention scores take two values, which differ by Delta a = a_T - a_1. Columns
of W that see the same data stay parallel to those of W*. So the state is Delta a and one number w_g for each group g
of columns. Without cross-sample repetition there is one group (A.3). With it there are two: the repeated column and
the rest (A.4). Both cases are one formula in sigma_g, the variance of the relevant token along a column of group g,
and r_g, the norm of W* restricted to the group. The paper has B = 1 in A.4; here B and p can be combined.

Shapes: w is [group, ...] and Delta a is [...], numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, log, pi, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Form = Literal["arcsinh", "appendix", "main text"]
PLATEAU_END = 0.2  # fraction of the initial loss at which the plateau ends (D.1)


@dataclass(frozen=True)
class ReducedModel:
    """The reduced toy model and its gradient flow. `paper_flow` and `model_flow` make one.

    T tokens of dimension d; B of them are the relevant token, which is the same in all samples with probability p.
    """

    T: int
    d: int
    B: int
    p: float
    sigma: tuple[float, ...]  # sigma_g [group]
    norm: tuple[float, ...]  # r_g [group]: W* has columns of norm 1 (Assumption 3)
    mobility: float  # d Delta a / dt in units of -d loss / d Delta a

    @property
    def split(self) -> bool:
        """True if the repeated column has a variable of its own (3 variables instead of 2)."""
        return len(self.norm) == 2

    @cached_property
    def without_repetition(self) -> ReducedModel:
        """The same model on the test data of D.1: the same B, and p = 0."""
        return replace(self, p=0.0, sigma=(1 / self.d,) * len(self.norm))

    @cached_property
    def noise(self) -> float:
        """1 / (d (T - B)): the weight of (1 - B alpha)^2 w^2 in the loss; 0 if every token is relevant."""
        return 1 / (self.d * (self.T - self.B)) if self.B < self.T else 0.0

    @cached_property
    def rate(self) -> float:
        """lambda, the rate at which the flow leaves its start.

        It is B / (sqrt(d) T) in Eq. 15. In A.4.2 it is this expression before the limits of large T and d.
        """
        first = hypot(*(s * r for s, r in zip(self.sigma, self.norm, strict=True)))
        return self.B / self.T * first * sqrt(self.mobility)

    def attention(self, delta_a: Any) -> Any:
        """Returns alpha, the attention to one copy of the relevant token (Eq. 9)."""
        return 1 / ((self.T - self.B) * np.exp(-delta_a) + self.B)

    def loss(self, w: Any, delta_a: Any) -> Any:
        """Returns the expected loss (Eqs. 12 and 17)."""
        m = self.B * self.attention(delta_a)
        signal = sum(s * (m * w_g - r) ** 2 for w_g, s, r in self._groups(w))
        return 0.5 * ((1 - m) ** 2 * sum(w_g**2 for w_g in w) * self.noise + signal)

    def gradient(self, w: Any, delta_a: Any) -> tuple[list[Any], Any]:
        """Returns d loss / d w [group, ...] and d loss / d Delta a [...] (Eqs. 13-14, 18-21)."""
        alpha = self.attention(delta_a)
        m = self.B * alpha
        missed = [s * (m * w_g - r) for w_g, s, r in self._groups(w)]
        by_w = [(1 - m) ** 2 * self.noise * w_g + m * e for w_g, e in zip(w, missed, strict=True)]
        by_alpha = sum(w_g * (e - (1 - m) * self.noise * w_g) for w_g, e in zip(w, missed, strict=True))
        return by_w, alpha * (1 - m) * self.B * by_alpha

    def velocity(self, w: Any, delta_a: Any) -> tuple[list[Any], Any]:
        """Returns d w / dt [group, ...] and d Delta a / dt [...] of the flow."""
        by_w, by_a = self.gradient(w, delta_a)
        return [-slope for slope in by_w], -self.mobility * by_a

    def hessian(self, w: Any, delta_a: Any) -> Floats:
        """Returns the Hessian of the loss [..., group + 1, group + 1], Delta a last.

        The paper's d^2 L / d Delta a^2 lacks a factor alpha (1 - B alpha). A.4's mixed terms lack a factor 2 in the
        noise.
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
        """Returns w_inf(alpha) [group, ...], the w at which d loss / d w = 0 (A.3.3)."""
        m = self.B * alpha
        return [m * s * r / ((1 - m) ** 2 * self.noise + m**2 * s) for s, r in zip(self.sigma, self.norm, strict=True)]

    def projection(self, w: Any) -> Any:
        """Returns <W*, W> / |W*| [...] (footnote 1)."""
        return sum(w_g * r for w_g, r in zip(w, self.norm, strict=True)) / sqrt(self.d)

    def along_target(self, w: float) -> list[float]:
        """Returns the w_g [group] of a W that is parallel to W* and has <W*, W> / |W*| = w."""
        return [w * r / sqrt(self.d) for r in self.norm]

    def _groups(self, w: Any) -> Iterable[tuple[Any, float, float]]:
        """Yields (w_g, sigma_g, r_g) of each group."""
        return zip(w, self.sigma, self.norm, strict=True)

    def linearization(self) -> tuple[Floats, Floats]:
        """Returns the flow's velocity [group + 1] and Jacobian at the start, without the limits of A.3.2 and A.4.2."""
        start = [0.0] * len(self.norm)
        w, delta_a = self.velocity(start, 0.0)
        moves = np.array([1.0] * len(self.norm) + [self.mobility])
        return np.array([*w, delta_a]), -moves[:, None] * self.hessian(start, 0.0)

    def plateau_law(self) -> float:
        """Returns sqrt(pi/2) / lambda: the length of the plateau for alpha << 1, with the growth of alpha included.

        With alpha = e^(Delta a) / T the flow is u' = g e^(Delta a) and Delta a' = mu g u e^(Delta a). Here u is w along
        the first gradient, g the size of that gradient and mu the mobility. So Delta a = mu u^2 / 2, and
        u' = g e^(mu u^2 / 2) reaches infinity after this time. For p = 0 and T >> B the length is
        sqrt(pi/2) sqrt(d) T / B in the paper's flow, and sqrt(pi/2) sqrt(d) T / sqrt(B) in the model's.
        """
        return sqrt(pi / 2) / self.rate

    def horizon(self) -> float:
        """Returns a time by which the plateau is over and w has settled, if it ever does."""
        settling = self.d / (1 - self.p) if self.p < 1 else 0.0
        return 5 * (self.plateau_law() + settling)


def paper_flow(T: int, d: int, B: int = 1, p: float = 0.0, *, variables: int | None = None) -> ReducedModel:
    """Returns the flow that the paper writes: Delta a follows its own gradient (Eqs. 4, 14, 20), mobility 1.

    `variables` is 2 (Eqs. 12-14, only for p = 0) or 3 (Eqs. 17-21); None: 2 if p = 0, else 3.
    """
    rest = (1 - p) / d
    if variables == 3 or p > 0:
        return ReducedModel(T, d, B, p, (p + rest, rest), (1.0, sqrt(d - 1)), 1.0)
    return ReducedModel(T, d, B, p, (rest,), (sqrt(d),), 1.0)


def across_flow(T: int, d: int) -> ReducedModel:
    """Returns the model's flow with a third variable: |W - its part along W*|, the second group. Not in the paper.

    A group with norm 0 has no target. Assumption 4 leaves this part out; it starts at sqrt(d) if W is random.
    """
    return replace(model_flow(T, d), sigma=(1 / d, 1 / d), norm=(sqrt(d), 0.0))


def model_flow(T: int, d: int, B: int = 1, p: float = 0.0, *, variables: int | None = None) -> ReducedModel:
    """Returns the flow of the model of Eq. 2: every score a_t follows its own gradient.

    The B scores of the relevant token share the gradient by Delta a, and the T - B others share its opposite. So
    Delta a moves 1/B + 1/(T - B) times as fast as in `paper_flow`.
    """
    others = 1 / (T - B) if B < T else 0.0
    return replace(paper_flow(T, d, B, p, variables=variables), mobility=1 / B + others)


def repetition(p: Any, d: Any) -> Any:
    """Returns f(p, d) = sqrt(p^2 d + (1-p)^2) of Eq. 22."""
    return np.sqrt(p**2 * d + (1 - p) ** 2)


def repetition_scale(problem: ReducedModel) -> float:
    """Returns sqrt(d) T / f(p, d), the scale of the plateau's length with cross-sample repetition (A.4.2)."""
    return float(np.sqrt(problem.d) * problem.T / repetition(problem.p, problem.d))


def linear_w(time: Any, rate: float) -> Any:
    """Returns w = sinh(lambda t) (A.3.2)."""
    return np.sinh(rate * time)


def linear_delta_a(time: Any, rate: float) -> Any:
    """Returns Delta a = cosh(lambda t) - 1 (A.3.2)."""
    return np.cosh(rate * time) - 1


def linear_loss(time: Any, rate: float) -> Any:
    """Returns (1 - lambda sinh(2 lambda t)) / 2, the loss of the linearized dynamics (A.3.2)."""
    return 0.5 * (1 - rate * np.sinh(2 * rate * time))


def escape_time(lost: float, rate: float, form: Form = "arcsinh") -> float:
    """Returns the time at which the linearized loss has fallen by the fraction `lost` of its start.

    The exact form is arcsinh(x) / 2 lambda with x = lost / lambda. For large x, arcsinh(x) is log(2x), as in the
    appendix. Eq. 6 of the main text has log(x).
    """
    x = lost / rate
    grown = {"arcsinh": float(np.arcsinh(x)), "appendix": log(2 * x), "main text": log(x)}
    return grown[form] / (2 * rate)


def late_eigenvalues(problem: ReducedModel, alpha: float) -> tuple[float, float]:
    """Returns the Hessian's eigenvalues at w_inf as B alpha -> 1, for 2 variables: 2 e^2 / (T - B) and 1 / d.

    Here e = 1 - B alpha. A.3.3 prints a diagonal entry of order e for Delta a. It is of order e^2, and the mixed terms
    reduce it to this eigenvalue.
    """
    return 2 * (1 - problem.B * alpha) ** 2 / (problem.T - problem.B), 1 / problem.d
