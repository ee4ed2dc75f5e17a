"""The claims about the flow: G3, G4, G6 and G11."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stagelens import Check, Claim
from stagelens.claims import Lab, at_least, at_most, close, reached, reported
from stagelens.timelines import line_fit
from stagelens_rich import flow, theory
from stagelens_rich.claims.measures import BASE, PAPER, VARIABLES, exponents, grid, law_of, left_at_T_I, smallest_length
from stagelens_rich.theory import Setting


class Balance(Claim):
    """Measures the drift in the flow, from equal and from different initial weights."""

    id, title, reference = "G3", "w_Q^2 - w_K^2 is conserved", "Lemma 3"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        for imbalance in (0.0, 0.5):
            timeline = flow.solved(system="five", imbalance=imbalance, rtol=1e-12)
            drift = float(np.ptp(timeline.scalar("conserved/w_Q^2 - w_K^2")[1]))
            yield at_most(f"drift in the flow, from w_Q = {1 + imbalance:g} w_K", drift, 1e-8, self.reference)
        moved = float(timeline.scalar("w_Q")[1][-1] ** 2)
        yield at_least("w_Q^2 at the end, the scale of a possible drift", moved, 0.1, self.reference)


class PlateauTime(Claim):
    """Theorem 4 gives T_II and T_III the same order, so both are judged, by their definitions.

    From w* = 0.47 on, L_IH2 falls by 1% after T_o through w_V2 alone, so T_II does not measure the plateau. Below that
    it does, but w then grows only from sigma to a small fraction of w*. The logarithm of that ratio approaches
    log(1/sigma) from below as sigma goes to 0.
    """

    id, title = "G4", "the plateau lasts Theta((1 + alpha*)^2 L log(1/sigma) / w*^2): T_II and T_III"
    reference = "Theorem 4, phases II and III"
    reason = (
        "paper: T_III follows the theorem. T_II, the time of a fall by 1%, does not at these sizes: the value weight "
        "alone lowers the loss by more than 1% after T_o, and for smaller w* only if sigma is tiny"
    )

    TOLERANCE = 0.1  # ours, of an exponent

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        points = grid(BASE, **{key: variable.grid for key, variable in VARIABLES.items()})
        for name in ("T_III", "T_II"):
            law = law_of(points, name)
            for variable, found in zip(VARIABLES.values(), exponents(law), strict=True):
                what = f"exponent of {name} in {variable.label}"
                yield close(what, found, float(variable.exponent), self.TOLERANCE, self.reference, relative=False)
            r2 = law if isinstance(law, str) else law.r2
            yield reported(f"R2 of the power-law fit of {name} over {len(points)} flows", r2, self.reference)
        names = ", ".join(variable.label for variable in VARIABLES.values())
        what = "T_II over the time at which w_V2 alone has lowered L_IH2 by 1%, at w* = 0.49"
        yield reported(what, reached(_value_alone(PAPER)), "T_II; Eq. 12")
        fewer = {"L": (20.0, 80.0), "alpha_star": (0.5, 4.0), "w_star": (0.2, 0.3, 0.4)}
        for sigma in (1e-2, 1e-15):
            base = {**BASE, "w_star": 0.3, "sigma_init": sigma}
            law = law_of(grid(base, **fewer, sigma_init=(sigma**1.5, sigma**2)), "T_II")
            what = f"exponents of T_II in {names}, about w* = 0.3, sigma from {sigma:g} to {sigma**2:g}"
            yield reported(what, exponents(law), "T_II")


def _value_alone(s: Setting) -> float:
    """Returns T_II of the flow over T_II of w_V2's relaxation with w = 0 (Eq. 12)."""
    t = np.linspace(0, 20 * (s.L - 2), 20_001)
    h = theory.plateau_state(t, s)[1]
    alone = theory.phase_times(t, np.ones_like(t), theory.induction_loss(0.0, h, s), h, s.h_star).T_II
    T_II = flow.solved_times(L=s.L, alpha_star=s.alpha_star, w_star=s.w_star, sigma_init=s.sigma).T_II
    return float(T_II or np.nan) / float(alone or np.nan)


class Convergence(Claim):
    """Fits the decay of both losses in the flow after T_III."""

    id, title, reference = "G6", "the 4-gram converges as 1/t, the induction head exponentially", "Theorem 4, phase IV"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        start = flow.solved_times().T_III
        if start is None:
            yield at_least("T_III of the flow", reached(start), 0.0, self.reference)
            return
        t, four_gram = flow.solved(time=30 * start).scalar("loss_4gram")
        late = t > start
        exponent = line_fit(np.log(t[late]), np.log(four_gram[late])).slope
        yield close("exponent of L_G4 in t, from T_III to 30 T_III", exponent, -1.0, 0.1, self.reference)
        yield reported("t L_G4 at the end (1/4 from Eq. 7 for large p)", float(t[-1] * four_gram[-1]), "Eq. 7")
        t, induction = flow.solved().scalar("loss_induction")
        late = (t > start) & (induction > 1e-14)  # below, the rounding of Eq. 10 shows
        line = line_fit(t[late], np.log(induction[late]))
        yield at_least("R2 of log L_IH2 over t, after T_III", line.r2, 0.99, self.reference)
        what = "rate of log L_IH2; expected is that of the flow linearized at its end"
        yield close(what, -line.slope, theory.late_rate(PAPER), 0.1, "Eq. 10")
        proven = PAPER.v_star * PAPER.h_star**2 / (4 * (PAPER.L - 2))
        what = "rate of log L_IH2 over the w*^2 h*^2 / (4(L-2)) of the proof"
        yield at_least(what, -line.slope / proven, 1.0, "Eq. 18")


class PartialLearning(Claim):
    """At L = 40 the 4-gram needs T_I = 205 to reach 1%, while w_V2 relaxes in L - 2 = 38.

    T_I does not depend on L, and the time scale of the induction head grows with L. So the statement holds for large L.
    """

    id, title = "G11", "phase I: the 4-gram below 1% while the induction head is above 99%"
    reference = "Theorem 4, phase I"
    reason = "size: the theorem is about L >> 1; it holds from L = 37,978 on, and the paper's experiments have L = 40"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        at_40, _ = left_at_T_I(PAPER.L)
        yield at_least("L_IH2(T_I) / L_IH2(0) at L = 40, the paper's size", at_40, 0.99, self.reference)
        sizes = [40 * 10**k for k in range(5)]
        found = [left_at_T_I(L) for L in sizes]
        yield reported(f"L_IH2(T_I) / L_IH2(0) at L = {sizes}", [left for left, _ in found], self.reference)
        yield reported(f"T_I at L = {sizes}", [T_I for _, T_I in found], "T_I = O(1)")
        least = smallest_length()
        yield reported("smallest L at which it holds", least, self.reference)
        yield at_least(f"L_IH2(T_I) / L_IH2(0) at L = {2 * least}", left_at_T_I(2 * least)[0], 0.99, self.reference)
