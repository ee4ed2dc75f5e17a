"""What the paper states of the toy model and of its flow, measured: G1 to G9 and G11."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens import Check, Claim, Law, Run, Timeline, fit_law
from stagelens.base import UsageError
from stagelens.claims import Lab, at_least, at_most, close, equal, in_every_seed, ordered, reached, reported
from stagelens_rich import theory
from stagelens_rich.flow import STAGES, solved, solved_times
from stagelens_rich.losses import closed_form
from stagelens_rich.sampling import Point, estimates
from stagelens_rich.tasks import NORM, PARTS, SECOND
from stagelens_rich.theory import PhaseTimes, Setting

Floats = NDArray[np.float64]

PAPER = Setting()  # Fig. 1: L = 40, alpha* = 1, w* = 0.49, sigma = 0.01
SEQUENCES = 10**6
POINTS = 400  # of a flow in a grid; its times are between two of them
NEVER = "not reached"


def task_of(run: Run) -> Any:
    """The run's Toy or HighDim."""
    return run.experiment


def times_of(run: Run) -> PhaseTimes:
    found: PhaseTimes = task_of(run).measured_times(run.timeline)
    return found


def drops(run: Run) -> list[str]:
    """The transitions of log L_IH2 that the run reports, by name; `none` where there is none."""
    return [stage.name or "unnamed" for stage in run.stages().transitions] or ["none"]


def parameter(run: Run, name: str) -> Floats:
    """A parameter of the second layer of a trained run, through Stage II."""
    inside, _ = task_of(run).times(run.timeline)
    values: Floats = run.timeline.scalar(NORM, {"parameter": f"{SECOND}{name}"})[1][inside]
    return values


def line(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope and R2 of a straight line through y over x; nan if there are fewer than three points."""
    if len(x) < 3:
        return float("nan"), float("nan")
    slope, shift = np.polyfit(x, y, 1)
    return float(slope), float(1 - ((y - slope * x - shift) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def growth(times: Floats, w: Floats, since: float | None, w_star: float) -> tuple[float, float]:
    """Slope and R2 of log w over time on the plateau: since a time (None: never), and until w is half of w*."""
    since = np.inf if since is None else since
    on = (times >= since) & (np.maximum.accumulate(w) <= w_star / 2)
    return line(times[on], np.log(w[on]))


def phase_checks(runs: Mapping[int, Run], setting: Setting, where: str) -> Iterable[Check]:
    """What Figs. 1 and 3 show, of each seed."""
    times = {seed: times_of(run) for seed, run in runs.items()}
    what = "drops of log L_IH2, with a plateau between them"
    yield in_every_seed({s: equal(what, drops(run), list(STAGES), where) for s, run in runs.items()})
    what = "L_G4 is down to 1% (T_I), and only then L_IH2 (T_III)"
    yield in_every_seed({s: ordered(what, _said(t.T_I, t.T_III), where) for s, t in times.items()})
    what = "T_o (w_V2 learned), T_II (end of the plateau), T_III (induction head learned)"
    yield in_every_seed({s: ordered(what, _said(t.T_o, t.T_II, t.T_III), where) for s, t in times.items()})
    what = "time at which p and then w_KQ are half-way to their values at T_III"
    yield in_every_seed({s: ordered(what, _half_ways(run), where) for s, run in runs.items()})
    expected = theory.expected_times(setting, pair=1)
    for name, time in expected._asdict().items():
        found = [_said(getattr(t, name))[0] for t in times.values()]
        yield reported(f"{name} in each seed; the flow on the closed forms has {time:.0f}", found, "Theorem 4")


def _said(*times: float | None) -> list[float | str]:
    return [NEVER if time is None else time for time in times]


def _half_ways(run: Run) -> list[float | str]:
    """When the position and the dot product of the second layer are half-way to what they are at T_III."""
    _, times = task_of(run).times(run.timeline)
    end = times_of(run).T_III
    if end is None:
        return [NEVER, NEVER]
    p, w = parameter(run, "p"), np.sqrt(parameter(run, "W_Q") * parameter(run, "W_K"))
    return _said(*(theory.first_below(times, -values, -float(np.interp(end, times, values)) / 2) for values in (p, w)))


class FourPhases(Claim):
    id = "G1"
    title = "four phases, the 4-gram first"
    reference = "Fig. 1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from phase_checks(lab.each_seed("rich/toy"), PAPER, self.reference)


class PreviousToken(Claim):
    """Lemma 2 is about the limit. How long the way there is, is reported beside it."""

    id = "G2"
    title = "stage I: the first layer comes to attend to the previous token"
    reference = "Lemma 2"

    def checks(self, lab: Lab) -> Iterable[Check]:
        timeline = solved(system="first-layer")
        t, p = timeline.scalar("p_first")
        decades = t[-1] / 10.0 ** np.arange(4)[::-1]
        gains = np.diff(np.interp(decades, t, p))
        what = "growth of p(1,1) over the last decade of the flow: p = log t + c has log 10, and no bound"
        yield close(what, gains[-1], np.log(10), 0.1, self.reference)
        yield reported("growth of p(1,1) over each of the last three decades", gains, self.reference)
        attention = timeline.scalar("previous_token")[1]
        yield at_least(f"attention to s - 1 at the end of the flow, t = {t[-1]:.2g}", attention[-1], 0.99, "Eq. 5")
        runs = lab.each_seed("rich/toy")
        what = "attention to s - 1 at the end of Stage I, by SGD"
        yield in_every_seed({s: at_least(what, _attention_after_first(r), 0.99, "Eq. 5") for s, r in runs.items()})
        what = "flow's attention to s - 1 at t = 10^4, which is where B.1's 100,000 steps at lr = 0.1 end"
        yield reported(what, float(np.interp(1e4, t, attention)), "B.1")
        when = reached(theory.first_below(t, -attention, -0.99))
        yield reported("time at which the flow's attention reaches 0.99", when, "B.1")


def _attention_after_first(run: Run) -> float:
    timeline: Timeline = run.timeline
    mass = timeline.series("head_specialization/mass")  # [step, layer, head, group]
    at = int(np.searchsorted(timeline.steps, run.experiment.config.first_steps))
    return float(mass[at, 0, 0, 0])


class Balance(Claim):
    id = "G3"
    title = "w_Q^2 - w_K^2 is conserved"
    reference = "Lemma 3"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        for imbalance in (0.0, 0.5):
            timeline = solved(system="five", imbalance=imbalance, rtol=1e-12)
            drift = float(np.ptp(timeline.scalar("conserved/w_Q^2 - w_K^2")[1]))
            yield at_most(f"drift in the flow, from w_Q = {1 + imbalance:g} w_K", drift, 1e-8, self.reference)
        moved = float(timeline.scalar("w_Q")[1][-1] ** 2)
        yield at_least("w_Q^2 at the end: what could have drifted", moved, 0.1, self.reference)


GRIDS: Mapping[str, tuple[float, ...]] = {
    "L": (20, 40, 80, 160, 320),
    "sigma_init": (1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
    "alpha_star": (0.5, 1, 2, 4, 8),
    "w_star": (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.49),
}
BASE = {"L": 40, "sigma_init": 0.01, "alpha_star": 1.0, "w_star": 0.49}
EXPONENTS = {"L": 1.0, "log(1/sigma)": 1.0, "1+alpha*": 2.0, "w*": -2.0}  # of Theorem 4


def theorem_columns(points: list[Mapping[str, float]]) -> dict[str, list[float]]:
    """The four variables of Theorem 4, of each point."""
    return {
        "L": [point["L"] for point in points],
        "log(1/sigma)": [-float(np.log(point["sigma_init"])) for point in points],
        "1+alpha*": [1 + point["alpha_star"] for point in points],
        "w*": [point["w_star"] for point in points],
    }


def grid(base: Mapping[str, float], **grids: tuple[float, ...]) -> list[Mapping[str, float]]:
    """`base` with one key at a time changed."""
    return [{**base, key: value} for key, values in grids.items() for value in values]


def law_of(points: list[Mapping[str, float]], name: str) -> Law | str:
    """The law of a phase time over flows, or why there is none; flows that do not get there are left out."""
    times = [getattr(solved_times(**point, points=POINTS), name) for point in points]
    missing = [time is None for time in times]
    try:
        return fit_law(theorem_columns(points), [np.nan if time is None else time for time in times], censored=missing)
    except UsageError as error:
        return f"none: {error}"


def _exponents(law: Law | str) -> list[float | str]:
    return [law if isinstance(law, str) else round(law.exponents[key].value, 3) for key in EXPONENTS]


class PlateauTime(Claim):
    """T_II is measured by its definition and reported; T_III is judged.

    For w* above 0.46, L_IH2 falls by 1% after T_o through w_V2 alone, so T_II does not see the plateau at all. Below,
    it does, but w has then to grow from sigma to a small part of w* only, and the logarithm of that ratio comes near
    log(1/sigma) from below as sigma goes to 0.
    """

    id = "G4"
    title = "the plateau lasts Theta((1 + alpha*)^2 L log(1/sigma) / w*^2)"
    reference = "Theorem 4, phases II and III"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        points = grid(BASE, **GRIDS)
        law = law_of(points, "T_III")
        for key, expected in EXPONENTS.items():
            found = law if isinstance(law, str) else law.exponents[key].value
            yield close(f"exponent of T_III in {key}", found, expected, 0.1, self.reference, relative=False)
        r2 = law if isinstance(law, str) else law.r2
        yield reported(f"R2 of the law over {len(points)} flows", r2, self.reference)
        names = ", ".join(EXPONENTS)
        yield reported(f"exponents of T_II in {names}, over the same flows", _exponents(law_of(points, "T_II")), "T_II")
        what = "T_II over the time at which w_V2 alone has lowered L_IH2 by 1%, at w* = 0.49"
        yield reported(what, reached(_value_alone(PAPER)), "T_II; Eq. 12")
        fewer = {"L": (20.0, 80.0), "alpha_star": (0.5, 4.0), "w_star": (0.2, 0.3, 0.4)}
        for sigma in (1e-2, 1e-15):
            base = {**BASE, "w_star": 0.3, "sigma_init": sigma}
            law = law_of(grid(base, **fewer, sigma_init=(sigma**1.5, sigma**2)), "T_II")
            what = f"exponents of T_II in {names}, about w* = 0.3, sigma from {sigma:g} to {sigma**2:g}"
            yield reported(what, _exponents(law), "T_II")


def _value_alone(s: Setting) -> float:
    """T_II of the flow over that of w_V2's relaxation with w = 0 (Eq. 12)."""
    t = np.linspace(0, 20 * (s.L - 2), 20_001)
    h = theory.plateau_state(t, s)[1]
    alone = theory.phase_times(t, np.ones_like(t), theory.induction_loss(0.0, h, s), h, s.h_star).T_II
    T_II = solved_times(L=s.L, alpha_star=s.alpha_star, w_star=s.w_star, sigma_init=s.sigma).T_II
    return float(T_II or np.nan) / float(alone or np.nan)


class Growth(Claim):
    id = "G5"
    title = "w_KQ grows exponentially on the plateau"
    reference = "Theorem 4, phases II and III"

    def checks(self, lab: Lab) -> Iterable[Check]:
        timeline = solved()
        t, w = timeline.scalar("w_KQ")
        slope, r2 = growth(t, w, solved_times().T_o, PAPER.w_star)
        what = "R2 of log w_KQ over t in the flow, from T_o until w = w*/2"
        yield at_least(what, reached(r2), 0.99, self.reference)
        what = "its slope over 2 h* h phi(w*^2)/(L-2), the rate at w = 0"
        yield reported(what, reached(slope / theory.growth_rate(PAPER)), "after Eq. 10")
        trained = {}
        for seed, run in lab.each_seed("rich/toy").items():
            times, w = task_of(run).times(run.timeline)[1], np.sqrt(parameter(run, "W_Q") * parameter(run, "W_K"))
            trained[seed] = growth(times, w, times_of(run).T_o, PAPER.w_star)
        what = "R2 of log w_KQ over t under SGD"
        yield in_every_seed({s: at_least(what, reached(r2), 0.99, self.reference) for s, (_, r2) in trained.items()})
        what = "its slope over h* h phi(w*^2)/(L-2): w_Q and w_K apart grow half as fast as one w for both"
        slopes = reached([slope / theory.growth_rate(PAPER, 1) for slope, _ in trained.values()])
        yield reported(what, slopes, "Lemma 3, C.3.2")


class Convergence(Claim):
    id = "G6"
    title = "the 4-gram converges as 1/t, the induction head exponentially"
    reference = "Theorem 4, phase IV"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        start = solved_times().T_III
        if start is None:
            yield at_least("T_III of the flow", NEVER, 0.0, self.reference)
            return
        t, four_gram = solved(time=30 * start).scalar("loss_4gram")
        late = t > start
        slope, r2 = line(np.log(t[late]), np.log(four_gram[late]))
        yield close("exponent of L_G4 in t, from T_III to 30 T_III", slope, -1.0, 0.1, self.reference)
        yield reported("t L_G4 at the end (1/4 from Eq. 7 for large p)", float(t[-1] * four_gram[-1]), "Eq. 7")
        t, induction = solved().scalar("loss_induction")
        late = (t > start) & (induction > 1e-14)  # below, the rounding of Eq. 10 shows
        slope, r2 = line(t[late], np.log(induction[late]))
        yield at_least("R2 of log L_IH2 over t, after T_III", r2, 0.99, self.reference)
        what = "rate of log L_IH2, against that of the flow linearized at its end"
        yield close(what, -slope, theory.late_rate(PAPER), 0.1, "Eq. 10")
        proven = PAPER.v_star * PAPER.h_star**2 / (4 * (PAPER.L - 2))
        yield at_least("rate of log L_IH2 over the w*^2 h*^2 / (4(L-2)) of the proof", -slope / proven, 1.0, "Eq. 18")


class ClosedForms(Claim):
    """Eq. 7 is exact. Eq. 10 is exact for exp(z)/(L-2), which stands in for the softmax of the model."""

    id = "G7"
    title = "the closed forms of both losses"
    reference = "Eqs. 7, 10"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        s = PAPER
        places = {
            "the start": Point(s.sigma, s.sigma, s.sigma, s.sigma),
            "the plateau": Point(1.5, 0.6, 0.05, s.h_plateau),
            "emergence": Point(2.5, 0.55, 0.35, 0.505),
        }
        for where, at in places.items():
            found = estimates(at, s, SEQUENCES)
            exact = {
                "4-gram": theory.four_gram_loss(at.p, at.g, s),
                "exponential": theory.induction_loss(at.w**2, at.h, s),
            }
            for name, equation in (("4-gram", "Eq. 7"), ("exponential", "Eq. 10, for exp(z)/(L-2)")):
                away = (found[name].mean - exact[name]) / found[name].error
                what = f"{equation}, at {where}: distance from {SEQUENCES:,} sequences, in standard errors"
                yield close(what, away, 0.0, 3.0, equation, relative=False)
            ratio = exact["exponential"] / found["softmax"].mean
            yield reported(f"Eq. 10 over the loss with softmax, at {where}", ratio, "Eq. 10")


class BooleanTokens(Claim):
    id = "G8"
    title = "Boolean tokens: the same order and phases"
    reference = "Fig. 3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = lab.each_seed("rich/toy", {"tokens": "boolean"})
        yield from phase_checks(runs, PAPER._replace(tokens="boolean"), self.reference)


class AdamEscapes(Claim):
    """The paper's rate of 0.1 for gradient descent is stable only for a loss that is a mean over the D dimensions."""

    id = "G9"
    title = "Adam leaves the plateau that gradient descent stays on"
    reference = "Fig. 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for optimizer, judge, limit in (("gd", at_least, 0.99), ("adam", at_most, 0.01)):
            runs = lab.each_seed("rich/high-dim", {"optimizer": optimizer})
            steps = next(iter(runs.values())).experiment.config.steps
            left = {seed: _left_at_the_end(run) for seed, run in runs.items()}
            what = f"{optimizer}: L_IH2 after {steps} steps over its plateau"
            yield in_every_seed(
                {s: judge(what, induction, limit, self.reference) for s, (_, induction) in left.items()}
            )
            what = f"{optimizer}: L_G4 after {steps} steps over its start"
            yield reported(what, [four_gram for four_gram, _ in left.values()], self.reference)
            what = f"{optimizer}: steps at which L_G4 and L_IH2 are halved"
            yield reported(what, [_halved(run) for run in runs.values()], self.reference)


def _halved(run: Run) -> list[float | str]:
    curves = (run.timeline.scalar(name) for name in PARTS)
    return _said(*(theory.first_below(steps.astype(float), values, values[0] / 2) for steps, values in curves))


def _left_at_the_end(run: Run) -> tuple[float, float]:
    """The closed forms of the last model: L_G4 over that at the start, L_IH2 over that of the plateau."""
    c = run.experiment.config
    start, end = (
        closed_form(run.model_at(step).double().second, c.alpha_star, c.score, c.L).detach() for step in (0, c.steps)
    )
    return float(end[0] / start[0]), float(end[1] / task_of(run).plateau())


class PartialLearning(Claim):
    """At L = 40 the 4-gram needs T_I = 205 to come to 1%, while w_V2 relaxes in L - 2 = 38.

    T_I does not depend on L, and the induction head's clock runs as L, so the statement holds from some L on.
    """

    id = "G11"
    title = "phase I: the 4-gram below 1% while the induction head is above 99%"
    reference = "Theorem 4, phase I"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        at_40, _ = left_at_T_I(PAPER.L)
        yield at_least("L_IH2(T_I) / L_IH2(0) at L = 40, the paper's size", at_40, 0.99, self.reference)
        sizes = [40 * 10**k for k in range(5)]
        found = [left_at_T_I(L) for L in sizes]
        yield reported(f"L_IH2(T_I) / L_IH2(0) at L = {sizes}", [share for share, _ in found], self.reference)
        yield reported(f"T_I at L = {sizes}", [T_I for _, T_I in found], "T_I = O(1)")
        least = smallest_length()
        yield reported("smallest L at which it holds", least, self.reference)
        yield at_least(f"L_IH2(T_I) / L_IH2(0) at L = {2 * least}", left_at_T_I(2 * least)[0], 0.99, self.reference)


def left_at_T_I(L: int) -> tuple[float, float]:
    """(L_IH2(T_I) / L_IH2(0), T_I) in the flow."""
    timeline = solved(L=L, time=300.0, points=300)
    t, four_gram = timeline.scalar("loss_4gram")
    T_I = theory.first_below(t, four_gram, theory.PART * float(four_gram[0]))
    assert T_I is not None  # it is 200 to 206 for every L
    induction = timeline.scalar("loss_induction")[1]
    return float(np.interp(T_I, t, induction) / induction[0]), T_I


def smallest_length() -> int:
    """The smallest L with L_IH2(T_I) >= 0.99 L_IH2(0); the share grows with L."""
    low, high = 40, 80
    while left_at_T_I(high)[0] < 0.99:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if left_at_T_I(middle)[0] >= 0.99 else (middle, high)
    return high
