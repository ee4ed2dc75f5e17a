"""The paper's closed forms, the rates of their gradient flow, and the times of its phases.

Symbols as in Appendix C.3: p and g = w_V1 for the 4-gram, v = w_Q w_K and h = w_V2 for the induction head. Every
function of parameters takes numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import brentq

from stagelens.timelines import first_crossing

Floats = NDArray[np.float64]
Tokens = Literal["gaussian", "boolean"]
AT_T_I, AT_T_II, AT_T_III = 0.01, 0.99, 0.01  # Theorem 4: the fraction of its loss that is left at each time
FLOOR = 1e-4  # fraction of a loss at which `log10_relative` levels off
PAIR = 2  # d(w^2)/dw / w for one parameter w in place of w_Q and w_K (C.3.2); for two parameters it is 1


class TokenMoments(NamedTuple):
    """psi(a) = E exp(a x y) z^2 of independent tokens (Lemma 7), with its first two derivatives."""

    psi: Callable[[Any], Any]
    phi: Callable[[Any], Any]
    dphi: Callable[[Any], Any]


MOMENTS = {
    "gaussian": TokenMoments(
        lambda a: (1 - a * a) ** -0.5,
        lambda a: a * (1 - a * a) ** -1.5,
        lambda a: (1 + 2 * a * a) * (1 - a * a) ** -2.5,
    ),
    "boolean": TokenMoments(np.cosh, np.sinh, np.cosh),
}


class Setting(NamedTuple):
    """What the closed forms and their flow depend on."""

    L: int = 40
    alpha_star: float = 1.0
    w_star: float = 0.49
    sigma: float = 0.01
    tokens: Tokens = "gaussian"

    @property
    def g_star(self) -> float:
        return self.alpha_star / (1 + self.alpha_star)

    @property
    def h_star(self) -> float:
        return 1 / (1 + self.alpha_star)

    @property
    def v_star(self) -> float:
        return self.w_star**2

    @property
    def moments(self) -> TokenMoments:
        return MOMENTS[self.tokens]

    @property
    def h_plateau(self) -> float:
        """The value of h on the plateau, while w is near 0: h* psi(w*^2), above h*."""
        return float(self.h_star * self.moments.psi(self.v_star))


# The 4-gram: Eq. 7 and its flow


def M(p: Any, L: int) -> Any:
    """Returns M(p) = (1 - e^(-p(L-2))) / (1 - e^-p): one over the attention to the newest of L - 2 keys."""
    return np.expm1(-p * (L - 2)) / np.expm1(-p)


def mean_lag(p: Any, L: int) -> Any:
    """Returns m(p)/M(p) = -d log M / dp: the mean distance of the attended token from the newest."""
    n = L - 2
    uniform = (n - 1) / 2 - p * (n**2 - 1) / 12  # for small n p, where the two terms below cancel
    return np.where(n * p < 1e-3, uniform, 1 / np.expm1(p) + n * np.exp(-n * p) / np.expm1(-n * p))


def four_gram_loss(p: Any, g: Any, s: Setting) -> Any:
    """Returns L_G4 (Eq. 7)."""
    newest, squares = 1 / M(p, s.L), M(2 * p, s.L) / M(p, s.L) ** 2
    return 0.5 * s.g_star**2 + 0.5 * g**2 * squares - s.g_star * g * newest


def four_gram_rates(p: Any, g: Any, s: Setting) -> tuple[Any, Any]:
    """Returns dp/dt and dg/dt (after Eq. 7)."""
    newest, ratio = 1 / M(p, s.L), M(2 * p, s.L) / M(p, s.L)
    lag, lag2 = mean_lag(p, s.L), mean_lag(2 * p, s.L)
    dp = g * newest * (s.g_star * lag - g * ratio * (lag - lag2))
    return dp, newest * (s.g_star - g * ratio)


# The induction head: Eq. 10 and its flow


def induction_loss(v: Any, h: Any, s: Setting) -> Any:
    """Returns L_IH2 with sm(z) replaced by exp(z)/(L-2) (Eq. 10)."""
    psi, h_star, v_star = s.moments.psi, s.h_star, s.v_star
    both = 0.5 * h_star**2 * psi(2 * v_star) + 0.5 * h**2 * psi(2 * v) - h * h_star * psi(v + v_star)
    return both / (s.L - 2)


def log10_relative(loss: Any, nothing: Any) -> Any:
    """Returns log10 of a loss relative to that of predicting nothing; it levels off at log10 FLOOR."""
    return np.log10(loss / nothing + FLOOR)


def induction_rates(v: Any, h: Any, s: Setting) -> tuple[Any, Any]:
    """Returns -dL_IH2/dv and -dL_IH2/dh (after Eq. 10). dw_Q/dt is w_K times the first, dw_K/dt is w_Q times it."""
    psi, phi, _ = s.moments
    dv = h * (s.h_star * phi(v + s.v_star) - h * phi(2 * v))
    dh = s.h_star * psi(v + s.v_star) - h * psi(2 * v)
    return dv / (s.L - 2), dh / (s.L - 2)


# The first layer: Training Stage I


def first_layer(p_first: float, p: float, g: float, s: Setting) -> tuple[float, float]:
    """Returns L_G4 and dp(1,1)/dt for any p(1,1) while the other parameters are fixed (C.2, with w_Q w_K = 0)."""
    query, key = np.arange(2, s.L)[:, None], np.arange(1, s.L - 1)[None, :]
    behind = query - 1 - key
    weight = np.where(behind >= 0, np.exp(-p_first * np.maximum(behind, 0)), 0.0)
    pattern = weight / weight.sum(1, keepdims=True)  # [query, key]
    slope = pattern * ((pattern * behind).sum(1, keepdims=True) - behind)
    head = np.exp(-p * (s.L - 1 - query[:, 0]))
    head = g * head / head.sum()
    missing = head @ pattern
    missing[-1] -= s.g_star
    return float(0.5 * missing @ missing), float(-missing @ (head @ slope))


def previous_token(p_first: Any, L: int) -> Any:
    """Returns the attention of the last query to the token before it (Eq. 5)."""
    return 1 / M(p_first, L + 1)


# The times of Theorem 4


class PhaseTimes(NamedTuple):
    """Theorem 4's times; None if a run has not reached one."""

    T_I: float | None  # L_G4 is 1% of its start
    T_o: float | None  # h reaches h*
    T_II: float | None  # L_IH2 is 99% of its value at T_o
    T_III: float | None  # L_IH2 is 1% of its value at T_o


def phase_times(times: Floats, four_gram: Floats, induction: Floats, h: Floats, h_star: float) -> PhaseTimes:
    """Returns the measured times of a run of Stage II, from its two losses and h, all [time]."""
    if not len(times):
        return PhaseTimes(None, None, None, None)
    T_I = first_crossing(times, four_gram, AT_T_I * float(four_gram[0]), rising=False)
    T_o = first_crossing(times, h, h_star, rising=True)
    if T_o is None:
        return PhaseTimes(T_I, None, None, None)
    start = float(np.interp(T_o, times, induction))
    T_II, T_III = (
        first_crossing(times, induction, left * start, rising=False, after=T_o) for left in (AT_T_II, AT_T_III)
    )
    return PhaseTimes(T_I, T_o, T_II, T_III)


def growth_rate(s: Setting, pair: int = PAIR) -> float:
    """Returns d log w / dt on the plateau: pair h* h_plateau phi(w*^2) / (L-2)."""
    return float(pair * s.h_star * s.h_plateau * s.moments.phi(s.v_star) / (s.L - 2))


def growth_delay(s: Setting) -> float:
    """Returns by how much time the growth of w is late, because h starts below its plateau (Eq. 12)."""
    return (s.L - 2) * (1 - s.sigma / s.h_plateau)


def plateau_state(t: Any, s: Setting, pair: int = PAIR) -> tuple[Any, Any]:
    """Returns (v, h) at time t while w is small (Eq. 12): h relaxes to its plateau, log w grows with its integral."""
    relaxed = 1 - np.exp(-t / (s.L - 2))
    h = s.sigma + (s.h_plateau - s.sigma) * relaxed
    v = s.sigma**2 * np.exp(2 * growth_rate(s, pair) * (t - growth_delay(s) * relaxed))
    return np.minimum(v, s.v_star), h  # w stays below w* (P1.2)


def expected_T_I(s: Setting) -> float:
    """Returns T_I from L_G4 = 1/(4t), to which the 4-gram converges for every alpha* and L."""
    return float(1 / (4 * AT_T_I * four_gram_loss(s.sigma, s.sigma, s)))


def expected_T_o(s: Setting) -> float:
    """Returns T_o, at which the h of `plateau_state` is h*."""
    return float((s.L - 2) * np.log((s.h_plateau - s.sigma) / (s.h_plateau - s.h_star)))


def loss_on_plateau(t: float, s: Setting, pair: int = PAIR) -> float:
    """Returns L_IH2 at time t by `plateau_state`."""
    return float(induction_loss(*plateau_state(t, s, pair), s))


def expected_T_II(s: Setting, pair: int = PAIR) -> float:
    """Returns T_II by `loss_on_plateau`."""
    T_o = expected_T_o(s)
    level = AT_T_II * loss_on_plateau(T_o, s, pair)
    return float(brentq(lambda t: loss_on_plateau(t, s, pair) - level, T_o, expected_T_III(s, pair)))


def expected_T_III(s: Setting, pair: int = PAIR) -> float:
    """Returns T_III as one integral over log v, with h at its equilibrium for each v: h moves faster than w."""
    level = AT_T_III * loss_on_plateau(expected_T_o(s), s, pair)

    def equilibrium(v: float) -> float:
        return float(s.h_star * s.moments.psi(v + s.v_star) / s.moments.psi(2 * v))

    def time_per_log_v(log_v: float) -> float:
        v = np.exp(log_v)
        return float(1 / (2 * pair * induction_rates(v, equilibrium(v), s)[0]))

    v_III = brentq(lambda v: float(induction_loss(v, equilibrium(v), s) - level), s.sigma**2, s.v_star)
    return float(growth_delay(s) + quad(time_per_log_v, 2 * np.log(s.sigma), np.log(v_III), limit=200)[0])


def expected_times(s: Setting, pair: int = PAIR) -> PhaseTimes:
    """Returns the four times without integrating the flow."""
    return PhaseTimes(expected_T_I(s), expected_T_o(s), expected_T_II(s, pair), expected_T_III(s, pair))


def late_rate(s: Setting) -> float:
    """Returns the final rate of log L_IH2: twice the slower rate of the flow linearized at (w*, h*)."""
    psi, phi, dphi = s.moments
    at, h, v = 2 * s.v_star, s.h_star, 2 * PAIR * s.v_star
    linear = np.array([[v * h**2 * dphi(at), v * h * phi(at)], [h * phi(at), psi(at)]]) / (s.L - 2)
    return float(2 * np.linalg.eigvals(linear).real.min())
