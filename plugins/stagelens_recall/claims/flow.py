"""The claims about the gradient flow: R3 to R8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from stagelens import Check, Claim, Run
from stagelens.claims import NOT_REACHED, Lab, at_least, at_most, close, equal, reached, reported
from stagelens.timelines import line_fit
from stagelens_recall import theory
from stagelens_recall.claims.measures import ORDER, RESPONSES, Floats, drift, escape_time, farthest, loss_distance
from stagelens_recall.config import RecallFlowConfig
from stagelens_recall.flow import RecallFlow

FIRST_JUMP = {"betas": [0.1, 0.0, 0.0], "time": 5000.0, "rtol": 1e-12, "atol": 1e-14}  # I_1 with epsilon = 0.1


class DirectionalBias(Claim):
    """Measures how far w^1 is from span(e_1, 1), and in which direction it moves, in the flow from I_1."""

    id, title = "R3", "from I_1, the first head moves along e_1 and 1 only, towards its own token"
    reference = "Theorem 3.1a, b"

    def checks(self, lab: Lab) -> Iterable[Check]:
        w = lab.run("recall/flow", FIRST_JUMP).timeline.series("w")  # [time, head, token]
        spread = float(np.ptp(w[:, 0, 1:], axis=1).max())
        yield at_most("distance of w^1 from span(e_1, 1)", spread, 1e-8, "Theorem 3.1a")
        least = [np.diff(w[:, 0, 0]).min(), -np.diff(w[:, 0, 1:], axis=0).max()]
        what = "least rise of w^1_1 and least fall of w^1_i between two recorded times"
        yield at_least(what, least, 1e-15, "Theorem 3.1b")
        yield at_most("largest score of the other heads", float(np.abs(w[:, 1:]).max()), 0.0, "after Theorem 3.1")


class FirstJump(Claim):
    """Compares the full flow with Theorem 3.1's two equations, and the time of the jump with either form of Xi."""

    id, title = "R4", "the first jump follows two equations, with Xi as in the proof and not as in Eq. 4"
    reference = "Theorem 3.1c"

    def checks(self, lab: Lab) -> Iterable[Check]:
        full = lab.run("recall/flow", FIRST_JUMP)
        ours = lab.run("recall/flow", {**FIRST_JUMP, "system": "first-jump"})
        eq4 = lab.run("recall/flow", {**FIRST_JUMP, "system": "first-jump", "rate": 2.0})
        for name in ("alpha", "beta"):
            distance = farthest(full.timeline, ours.timeline, name)
            what = f"largest distance of {name}_1 between the two equations and the full flow"
            yield at_most(what, distance, 1e-6, "Theorem 3.1c, Lemma C.3")
        times = {run: escape_time(run) for run in (full, ours, eq4)}
        what = "time of the jump by the equations with Xi = -(1 + gamma) E Delta_11, over that of the full flow"
        yield close(what, reached(times[ours] / times[full]), 1.0, 1e-6, "proof of Theorem 3.1, before Xi is named")
        what = "time of the jump by the equations with Eq. 4's Xi, twice as large, over that of the full flow"
        yield reported(what, reached(times[eq4] / times[full]), "Eq. 4")
        forms = {"without Eq. 4's factor 2": times[ours], "with Eq. 4's factor 2": times[eq4]}
        known = np.isfinite(list(times.values())).all()
        closest = min(forms, key=lambda form: abs(forms[form] - times[full])) if known else NOT_REACHED
        yield equal("the form that the flow supports", closest, "without Eq. 4's factor 2", "Eqs. 4, 5, 6")


class RecallConservation(Claim):
    """Compares the drifts of the quantity with either sign of its last term."""

    id, title = "R5", "f(alpha) - beta^2/4 is conserved, with the proof's sign of the last term"
    reference = "Theorem 3.1d"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for system in ("full", "first-jump"):
            timeline = lab.run("recall/flow", {**FIRST_JUMP, "system": system}).timeline
            drifts = {form: drift(timeline, form) for form in ("proof", "statement")}
            yield at_most(f"drift with + (k-1)/k [...], {system} system", drifts["proof"], 1e-8, "proof, B.1")
            yield reported(f"drift with - (k-1)/k [...], {system} system", drifts["statement"], "statement, 3.1d")
        yield equal("the sign that is conserved", min(drifts, key=lambda form: drifts[form]), "proof", "Theorem 3.1d")


class FirstPlateauLength(Claim):
    """Fits the exponent of the length in epsilon."""

    id, title, reference = "R6", "the first plateau lasts O(1/epsilon)", "after Theorem 3.1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        epsilons = [0.04, 0.02, 0.01, 0.005]
        laws = [theory.escape_law(epsilon, ORDER, RESPONSES) for epsilon in epsilons]
        times = [
            escape_time(lab.run("recall/flow", {"betas": [epsilon, 0.0, 0.0], "time": 2 * law, "points": 50}))
            for epsilon, law in zip(epsilons, laws, strict=True)
        ]
        exponent = line_fit(np.log(epsilons), np.log(times)).slope
        what = "exponent of the plateau's length in epsilon"
        yield close(what, reached(exponent), -1.0, 0.05, self.reference, relative=False)
        what = "length at epsilon = 0.005 over (pi/2)(k-1)/(c Xi_0 epsilon), c^2 = 2(k-1)/k"
        yield close(what, reached(times[-1] / laws[-1]), 1.0, 0.02, "s = epsilon tan(epsilon T), with our constants")


class LateGrowth(Claim):
    """Compares three laws of growth: log log t, log t and t^.01. Over a few powers of ten in time all have R2 > .98.

    Eq. 3 gives 3/4 s = log t + log s + const for k = 4, and alpha = log(1 + s). So the slope of alpha over log log t
    tends to 1. Its distance from 1 is of the order of log log t / log t, which is 13% at 1e12 and 2% at 1e100. For the
    other two laws the slope doubles or more from each range of `RANGES` to the next.
    """

    id, title, reference = "R7", "after the jump alpha grows like log log t, not like log t or a power of t", "Eq. 3"

    RANGES = ((1e12, 1e25), (1e25, 1e50), (1e50, 1e100))  # ours; the middle of each doubles log t
    SLOPE = 0.15  # tolerance of the slope in every range; theory: log log t / log t at the first one
    LAST_SLOPE = 0.05  # in the last range; theory: the same, twice
    WORSE = 10.0  # ours: least ratio of the residual variances of another law and of log log t

    def checks(self, lab: Lab) -> Iterable[Check]:
        end = self.RANGES[-1][1]
        settings = {"betas": [0.1, 0.0, 0.0], "system": "first-jump", "time": end, "points": 600, "method": "LSODA"}
        timeline = lab.run("recall/flow", settings).timeline
        t, alpha = timeline.steps, timeline.series("alpha")[:, 0]
        parts = [(t >= low) & (t <= high) for low, high in self.RANGES]
        slopes = [line_fit(np.log(np.log(t[part])), alpha[part]).slope for part in parts]
        ranges = ", ".join(f"{low:g} to {high:g}" for low, high in self.RANGES)
        what = f"slope of alpha over log log t, for t from {ranges}"
        yield close(what, reached(slopes), [1.0] * len(slopes), self.SLOPE, self.reference)
        yield close("the last of these slopes", reached(slopes[-1]), 1.0, self.LAST_SLOPE, self.reference)
        late = t >= self.RANGES[0][0]
        spread = {name: residual_variance(law(t[late]), alpha[late]) for name, law in LAWS.items()}
        for name in ("log t", "t^.01"):
            what = f"residual variance of alpha about a line in {name}, over that about a line in log log t"
            yield at_least(what, reached(spread[name] / spread["log log t"]), self.WORSE, self.reference)
        exact = theory.alpha_at(end, 0.1, ORDER, RESPONSES)
        what = f"alpha of the flow at t = {end:g}, over that by the conservation law and one integral"
        yield close(what, reached(alpha[-1] / exact), 1.0, 1e-4, "Theorem 3.1c, d", sanity=True)


LAWS: Mapping[str, Callable[[Floats], Floats]] = {
    "log log t": lambda t: np.log(np.log(t)),
    "log t": lambda t: np.log(t),
    "t^.01": lambda t: t**0.01,
}


def residual_variance(x: Floats, y: Floats) -> float:
    """Returns the part of the variance of y that a line in x does not explain."""
    return 1 - line_fit(x, y).r2


class LaterJumps(Claim):
    """Compares jump h with the first jump of order k - h + 1, in three versions.

    I_h of A.6 starts head h from w^h = 0 over all k tokens of its window. The learned heads have settled h - 1 of them:
    these cannot match any more, but have a part of the softmax. The first jump of order k - h + 1 has no such tokens.
    So the first comparison is as stated. In the second, time is divided by k/(k - h + 1), the delay that the settled
    tokens cause while attention is nearly uniform. The curves may "correspond" in this sense. In the third, head h
    does not see the settled tokens.
    """

    id, title, reference = "R8", "later jumps are first jumps of lower order", "Proposition A.2"
    reason = (
        "paper: the h - 1 settled tokens keep their part of head h's softmax, so jump h is later by k/(k - h + 1); "
        "if they are masked, as in the proof's P_S, the curves agree"
    )

    SAME = 0.05  # ours: largest distance of two losses, in drops

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from self._stationary()
        for h in (2, 3):
            where, lower = "Proposition A.2b", ORDER - h + 1
            plain, blind, first = (self._jump(lab, h, kind) for kind in ("plain", "blind", "first"))
            what = f"jump {h} from I_{h}: largest distance of its loss from the first jump of order {lower}, in drops"
            yield at_most(what, reached(loss_distance(plain, first, h)), self.SAME, where)
            slower = ORDER / lower
            what = f"jump {h} from I_{h}: its time over that of the first jump of order {lower}"
            yield close(what, reached(escape_time(plain) / escape_time(first)), slower, 0.02, "k/(k - h + 1), ours")
            what = f"jump {h} from I_{h}, time divided by {slower:.4g}: largest distance of the same losses, in drops"
            yield at_most(what, reached(loss_distance(plain, first, h, slower)), self.SAME, f'{where}, "corresponds"')
            what = f"jump {h}, settled tokens masked for head {h}: largest distance of the same losses, in drops"
            yield at_most(what, reached(loss_distance(blind, first, h)), 1e-6, "proof of Proposition A.2, on P_S")

    def _stationary(self) -> Iterator[Check]:
        """Yields the checks that the gradients of learned heads vanish as e^-c (A.2a)."""
        scores = [10.0, 15.0, 20.0, 25.0, 30.0]
        for h in (2, 3):
            sizes = np.log([_learned_gradients(h, c) for c in scores])  # [score, parameter]
            slopes = [line_fit(scores, column).slope for column in sizes.T]
            what = f"I_{h}: slope of the log gradients of learned heads' w and beta over c, the score of a match"
            yield close(what, slopes, [-1.0, -1.0], 0.05, "Proposition A.2a")

    def _jump(self, lab: Lab, h: int, kind: str) -> Run:
        """Returns the flow of jump h from I_h (`plain` or `blind`), or of the `first` jump of lower order."""
        betas = _betas_of_jump(h)
        if kind == "first":
            settings = {"order": ORDER - h + 1, "betas": list(betas[h - 1 :]), "system": "first-jump"}
        else:
            settings = {"betas": list(betas), "learned": h - 1, "blind": kind == "blind"}
        return lab.run("recall/flow", {**settings, "time": 5000.0})


def _betas_of_jump(h: int) -> tuple[float, ...]:
    """Returns the betas of I_h: 0.05 for head h, 0 for later heads. The flow sets those of learned heads itself."""
    return (0.1,) * (h - 1) + (0.05,) + (0.0,) * (ORDER - 1 - h)


def _learned_gradients(h: int, c: float) -> list[float]:
    """Returns the largest gradients of w and of beta over the learned heads of I_h, scaled as in Eqs. 7 and 8."""
    start = RecallFlow(RecallFlowConfig(betas=_betas_of_jump(h), learned=h - 1, learned_score=c)).initial()
    d_w, d_beta = theory.population_gradient(start["w"], start["beta"], RESPONSES)
    beta = start["beta"][: h - 1]
    scaled = np.abs(d_w[: h - 1]).max(1) / beta**2, np.abs(d_beta[: h - 1]) / beta
    return [float(part.max()) for part in scaled]
