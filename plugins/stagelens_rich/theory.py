"""The paper's closed forms, the gradient flow on them, and what follows for the times of its phases.

Symbols as in Appendix C.3: p and g = w_V1 for the 4-gram, v = w_Q w_K and h = w_V2 for the induction head. Every
function of parameters takes numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Tokens = Literal["gaussian", "boolean"]
PART, MOST, REST = 0.01, 0.99, 0.01  # Theorem 4's shares of a loss: at T_I, at T_II and at T_III
FLOOR = 1e-4  # the share of a loss below which `decades` does not look
PAIR = 2  # d(w^2)/dw / w: one parameter w for both w_Q and w_K, as C.3.2 has it; 1 for the two apart


class Moments(NamedTuple):
    """psi(a) = E exp(a x y) z^2 of independent tokens (Lemma 7), with its first two derivatives."""

    psi: Callable[[Any], Any]
    phi: Callable[[Any], Any]
    dphi: Callable[[Any], Any]


MOMENTS = {
    "gaussian": Moments(
        lambda a: (1 - a * a) ** -0.5,
        lambda a: a * (1 - a * a) ** -1.5,
        lambda a: (1 + 2 * a * a) * (1 - a * a) ** -2.5,
    ),
    "boolean": Moments(np.cosh, np.sinh, np.cosh),
}


class Setting(NamedTuple):
    """What the losses and their flow depend on."""

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
    def moments(self) -> Moments:
        return MOMENTS[self.tokens]

    @property
    def h_plateau(self) -> float:
        """Where h rests while w is still 0: h* psi(w*^2), above h*."""
        return float(self.h_star * self.moments.psi(self.v_star))


# The 4-gram: Eq. 7 and its flow


def M(p: Any, L: int) -> Any:
    """M(p) = (1 - e^(-p(L-2))) / (1 - e^-p): one over the attention to the newest of L - 2 keys."""
    return np.expm1(-p * (L - 2)) / np.expm1(-p)


def mean_lag(p: Any, L: int) -> Any:
    """m(p)/M(p) = -d log M / dp: how far back the head looks on average, in tokens from the newest."""
    n = L - 2
    even = (n - 1) / 2 - p * (n**2 - 1) / 12  # where n p is small and the two terms below cancel
    return np.where(n * p < 1e-3, even, 1 / np.expm1(p) + n * np.exp(-n * p) / np.expm1(-n * p))


def four_gram_loss(p: Any, g: Any, s: Setting) -> Any:
    """L_G4 (Eq. 7)."""
    newest, squares = 1 / M(p, s.L), M(2 * p, s.L) / M(p, s.L) ** 2
    return 0.5 * s.g_star**2 + 0.5 * g**2 * squares - s.g_star * g * newest


def four_gram_rates(p: Any, g: Any, s: Setting) -> tuple[Any, Any]:
    """dp/dt and dg/dt (after Eq. 7)."""
    newest, ratio = 1 / M(p, s.L), M(2 * p, s.L) / M(p, s.L)
    lag, lag2 = mean_lag(p, s.L), mean_lag(2 * p, s.L)
    dp = g * newest * (s.g_star * lag - g * ratio * (lag - lag2))
    return dp, newest * (s.g_star - g * ratio)


# The induction head: Eq. 10 and its flow


def induction_loss(v: Any, h: Any, s: Setting) -> Any:
    """L_IH2 with sm(z) replaced by exp(z)/(L-2) (Eq. 10)."""
    psi, h_star, v_star = s.moments.psi, s.h_star, s.v_star
    both = 0.5 * h_star**2 * psi(2 * v_star) + 0.5 * h**2 * psi(2 * v) - h * h_star * psi(v + v_star)
    return both / (s.L - 2)


def decades(loss: Any, nothing: Any) -> Any:
    """How many powers of ten a loss is below that of predicting nothing; at FLOOR it stops."""
    return np.log10(loss / nothing + FLOOR)


def induction_rates(v: Any, h: Any, s: Setting) -> tuple[Any, Any]:
    """-dL_IH2/dv and -dL_IH2/dh (after Eq. 10); w_Q grows at w_K times the first, and w_K at w_Q times it."""
    psi, phi, _ = s.moments
    dv = h * (s.h_star * phi(v + s.v_star) - h * phi(2 * v))
    dh = s.h_star * psi(v + s.v_star) - h * psi(2 * v)
    return dv / (s.L - 2), dh / (s.L - 2)


# The first layer: Training Stage I


def first_layer(p_first: float, p: float, g: float, s: Setting) -> tuple[float, float]:
    """L_G4 for any p(1,1) and dp(1,1)/dt while all else rests (C.2, with w_Q w_K = 0), from each token's weight."""
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
    """How much of its attention the last query has on the token before it (Eq. 5)."""
    return 1 / M(p_first, L + 1)


# Times


class PhaseTimes(NamedTuple):
    """Theorem 4's times; None where a run has not come there."""

    T_I: float | None  # L_G4 is down to 1%
    T_o: float | None  # h reaches h*
    T_II: float | None  # L_IH2 is down to 99% of what it was at T_o
    T_III: float | None  # and to 1%


def first_below(times: Floats, values: Floats, level: float, after: float = -np.inf) -> float | None:
    """When `values` first fall to `level` after a time; between two points a straight line, None: never."""
    found = np.flatnonzero((values <= level) & (times >= after))
    if not len(found):
        return None
    i = int(found[0])
    if i == 0 or values[i - 1] <= level or values[i] == level:
        return float(times[i])
    share = (values[i - 1] - level) / (values[i - 1] - values[i])
    return max(after, float(times[i - 1] + share * (times[i] - times[i - 1])))


def phase_times(times: Floats, four_gram: Floats, induction: Floats, h: Floats, h_star: float) -> PhaseTimes:
    """The times of a run of Stage II from its two losses and h, all [time]; none of one that has not come so far."""
    if not len(times):
        return PhaseTimes(None, None, None, None)
    T_I = first_below(times, four_gram, PART * float(four_gram[0]))
    T_o = first_below(times, -h, -h_star)
    if T_o is None:
        return PhaseTimes(T_I, None, None, None)
    seen = float(np.interp(T_o, times, induction))
    T_II, T_III = (first_below(times, induction, share * seen, T_o) for share in (MOST, REST))
    return PhaseTimes(T_I, T_o, T_II, T_III)


def growth_rate(s: Setting, pair: int = PAIR) -> float:
    """d log w / dt on the plateau: pair h* h_plateau phi(w*^2) / (L-2), about pair w*^2 / ((1+alpha*)^2 (L-2))."""
    return float(pair * s.h_star * s.h_plateau * s.moments.phi(s.v_star) / (s.L - 2))


def plateau_state(t: Any, s: Setting, pair: int = PAIR) -> tuple[Any, Any]:
    """(v, h) at time t while w is small (Eq. 12): h relaxes to its plateau, and log w grows with the integral of h."""
    relax = np.exp(-t / (s.L - 2))
    h = s.h_plateau - (s.h_plateau - s.sigma) * relax
    late = (s.L - 2) * (1 - s.sigma / s.h_plateau) * (1 - relax)  # by how much w lags for h having been small
    v = s.sigma**2 * np.exp(2 * growth_rate(s, pair) * (t - late))
    return np.minimum(v, s.v_star), h  # w stays below w* (P1.2)


def expected_times(s: Setting, pair: int = PAIR) -> PhaseTimes:
    """The four times without integrating the flow.

    T_I from L_G4 = 1/(4t), to which the 4-gram converges whatever alpha* and L. T_o and T_II from the plateau's
    solution above. T_III by one integral over v, with h at rest for the v of the moment: h moves faster than w.
    """
    from scipy.integrate import quad
    from scipy.optimize import brentq

    psi = s.moments.psi
    T_I = 1 / (4 * PART * four_gram_loss(s.sigma, s.sigma, s))
    T_o = (s.L - 2) * np.log((s.h_plateau - s.sigma) / (s.h_plateau - s.h_star))
    seen = induction_loss(*plateau_state(T_o, s, pair), s)

    def at_rest(v: float) -> float:
        return float(s.h_star * psi(v + s.v_star) / psi(2 * v))

    def time_per_log_v(log_v: float) -> float:
        v = np.exp(log_v)
        return float(1 / (2 * pair * induction_rates(v, at_rest(v), s)[0]))

    def above(v: float, share: float) -> float:
        return float(induction_loss(v, at_rest(v), s) - share * seen)

    late = (s.L - 2) * (1 - s.sigma / s.h_plateau)
    v_III = brentq(above, s.sigma**2, s.v_star, args=(REST,))
    T_III = late + quad(time_per_log_v, 2 * np.log(s.sigma), np.log(v_III), limit=200)[0]
    T_II = brentq(lambda t: induction_loss(*plateau_state(t, s, pair), s) - MOST * seen, T_o, T_III)
    return PhaseTimes(float(T_I), float(T_o), float(T_II), float(T_III))


def value_relaxes_too_far(s: Setting) -> bool:
    """Whether L_IH2 falls by 1% after T_o through h alone, with no growth of w.

    Then T_II measures the relaxation of h and not the plateau. For Gaussian tokens it is so from w* = 0.46 on.
    """
    start, rest = (induction_loss(0.0, h, s) for h in (s.h_star, s.h_plateau))
    return bool(rest <= MOST * start)


def late_rate(s: Setting, pair: int = PAIR) -> float:
    """The rate at which L_IH2 falls at last: twice the slower rate of the flow linearized at (w*, h*)."""
    psi, phi, dphi = s.moments
    at, h, v = 2 * s.v_star, s.h_star, 2 * pair * s.v_star
    linear = np.array([[v * h**2 * dphi(at), v * h * phi(at)], [h * phi(at), psi(at)]]) / (s.L - 2)
    return float(2 * np.linalg.eigvals(linear).real.min())
