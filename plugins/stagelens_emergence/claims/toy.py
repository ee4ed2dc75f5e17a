"""S1 to S7: what the paper states about the toy model and its flow.

`flow_plateaus` computes the plateau lengths of flows, in milliseconds each. The lab trains the models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stagelens import Check, Claim, Event, Law, Run, Timeline, fit_law
from stagelens.claims import Lab, at_least, at_most, close, equal, on_average, ordered, per_seed, reached, reported
from stagelens.experiments import solve
from stagelens.timelines import first_crossing
from stagelens_emergence import theory
from stagelens_emergence.claims import measures
from stagelens_emergence.claims.measures import DIMENSIONS, LENGTHS, LONG, PROBABILITIES, REPEATS, SCALE, fit_plateaus
from stagelens_emergence.flow import flow_plateau, flow_plateaus, trajectory
from stagelens_emergence.theory import ReducedModel, across_flow, model_flow, paper_flow

Floats = NDArray[np.float64]

FIG1 = {"T": 512, "d": 64}
SMALL = {"T": 128, "d": 64, "steps": 2200}  # the quick budget's size for Fig. 9: the same sqrt(d) / T as T = d = 256
PROBES = ("single_location", "plateau_length")
# Plateau / (sqrt(d) T) at T = 4096, d = 64, B = 1, p = 0, by the law that is printed at each side of Fig. 2.
FIG2 = {"left": 1.51 * LONG**0.99 * 64**0.49 / (8 * LONG), "right": 2.15 * (8 * LONG) ** 1.02 / (8 * LONG)}
W, ALPHA = "single_location/w", "single_location/alpha"


def rise_times(timeline: Timeline, names: Iterable[str], fraction: float = 0.1) -> list[float | None]:
    """Returns for each series the step at which it has risen by `fraction` of its largest rise."""
    curves = [timeline.scalar(name) for name in names]
    return [first_crossing(x, y, y[0] + fraction * (y.max() - y[0]), rising=True) for x, y in curves]


def drops(run: Run) -> int:
    """Returns the number of transitions of the loss."""
    return len(run.stages().transitions)


def exponent_checks(law: Law, expected: dict[str, float], tolerance: float, r2: float, where: str) -> Iterable[Check]:
    """Checks each exponent and R2 against the paper's; reports the constant and the confidence intervals."""
    for key, value in expected.items():
        yield close(f"exponent of {key}", law.exponents[key].value, value, tolerance, where, relative=False)
    yield at_least("R2 of the fit in log space", law.r2, r2, where)
    yield reported("constant of the power law", law.constant, where)
    for key in expected:
        ends = [law.exponents[key].low, law.exponents[key].high]
        yield reported(f"95% confidence interval of the exponent of {key}, over the grid points", ends, where)


class WeightsFirst(Claim):
    """Compares the times at which w and alpha rise, and counts the drops of the loss, in the flow and under SGD."""

    id, title, reference = "S1", "weights first, attention second, then both", "Fig. 1a, b"
    seeds = 5

    def checks(self, lab: Lab) -> Iterable[Check]:
        flow = lab.run("emergence/flow", FIG1)
        times = reached(rise_times(flow.timeline, ("w", "alpha")))
        yield ordered("flow: times at which w and alpha have made a tenth of their rise", times, "Fig. 1b")
        yield equal("flow: number of drops of the loss", drops(flow), 1, "Fig. 1a")
        loss = flow.timeline.scalar("loss")
        begin, end = (first_crossing(*loss, part * loss[1][0]) for part in (0.9, 0.1))
        sharpness = None if begin is None or end is None else (end - begin) / begin
        what = "flow: time from 90% to 10% of the initial loss, divided by the time until 90%"
        yield at_most(what, reached(sharpness), 0.1, "Fig. 1a")
        runs = trained(lab)
        what = "SGD: steps at which w and alpha have made a tenth of their rise"
        yield per_seed(ordered, what, runs, "Fig. 9", of=lambda run: reached(rise_times(run.timeline, (W, ALPHA))))
        yield per_seed(equal, "SGD: number of drops of the loss", runs, 1, "Fig. 9", of=drops)


def trained(lab: Lab, **settings: float) -> dict[int, Run]:
    """Returns Fig. 9's runs: SGD from a random W towards a random W*."""
    size = lab.of_budget({"quick": SMALL, "long": {}})
    return lab.each_seed("emergence/toy", {**size, **settings}, preset="fig9", probes=PROBES)


def trained_plateau(run: Run) -> float | str:
    """Returns the plateau's length in the time of the flow, or that it outlasts the run."""
    name = "plateau_length/steps"
    steps = float(run.timeline.scalar(name)[1][-1]) if name in run.timeline else None
    found: float | str = reached(steps, by=run.manifest.steps)
    return found if isinstance(found, str) else found * float(run.experiment.config.lr)


def delays(found: Mapping[int, float | str], own: Mapping[int, float], unit: float) -> list[float | str]:
    """Returns how much later than its own reference each seed is, in units of `unit`; words if it has no time."""
    return [when if isinstance(when, str) else reached((when - own[seed]) / unit) for seed, when in found.items()]


class Reduction(Claim):
    """Fig. 9 relaxes the assumptions on W* and W. "Quite accurately" means 15% of the mean length (our choice).

    A single seed scatters by 0.8/sqrt(d), because w starts at N(0, 1/d). The part of W orthogonal to W* does not decay
    on the plateau, which delays its end by one to two d. So the plateau is also measured from W = 0, as Assumption 4
    has it, and compared with a flow that has this part as a third variable. `long` has the figure's T = d = 256.
    """

    id, title, reference = "S2", "the reduced dynamics match SGD on the whole toy model", "Fig. 9"
    seeds = {"quick": 5, "long": 20}  # Fig. 9 has five

    def checks(self, lab: Lab) -> Iterable[Check]:
        random, zero = trained(lab), trained(lab, init_scale=0.0)
        config = next(iter(random.values())).experiment.config
        problem = paper_flow(config.T, config.d)
        expected = flow_plateau(problem)
        size = f"T = {config.T}, d = {config.d}, batches of {config.batch_size}"
        found = {seed: trained_plateau(run) for seed, run in random.items()}
        what = f"{size}: mean plateau of SGD from a random W (flow: {expected:.0f})"
        yield on_average(close, what, found, expected, 0.15, self.reference)
        yield reported("the same plateau, each seed", list(found.values()), self.reference)
        starts = {seed: float(run.timeline.series(W)[0]) for seed, run in random.items()}
        own = {seed: flow_plateau(problem, w_init=start) for seed, start in starts.items()}
        yield reported("plateau of the flow from each seed's initial w", reached(list(own.values())), self.reference)
        late = delays(found, own, config.d)
        yield reported("delay of SGD relative to that flow, in units of d", late, "Assumption 4")
        yield self._with_across(found, starts, config.T, config.d)
        what = f"{size}: plateau of SGD from W = 0"
        yield per_seed(close, what, zero, expected, 0.15, "Assumption 4", of=trained_plateau)

    def _with_across(self, found: Mapping[int, float | str], starts: Mapping[int, float], T: int, d: int) -> Check:
        """Reports each seed's plateau relative to the flow from its own w, with |W across W*| = sqrt(d) at first."""
        problem = across_flow(T, d)
        flows = {seed: flow_plateau(problem, w_init=[start, np.sqrt(d)]) for seed, start in starts.items()}
        ratios = [length if isinstance(length, str) else length / flows[seed] for seed, length in found.items()]
        return reported("plateau, divided by that of the flow with W across W* as a third variable", ratios, "ours")


class PowerLaw(Claim):
    """The paper does not state its grid. The exponents tend to 1 and 1/2 as T grows; the range decides how near."""

    id, title = "S3", "the plateau's length is a power law of T and d (T = 128 to 2048, d = 16 to 256)"
    reference = "Fig. 1c"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        fit = measures.length_fit()
        yield from exponent_checks(fit.law, {"T": 1.0, "d": 0.5}, 0.03, 0.998, self.reference)
        what = "T = 2048: plateau divided by sqrt(pi/2) sqrt(d) T, for d = 16 to 256"
        laws = [paper_flow(LENGTHS[-1], d).plateau_law() for d in DIMENSIONS]
        ratios = [a / b for a, b in zip(fit.lengths[-len(laws) :], laws, strict=True)]
        yield close(what, ratios, [1.0] * len(laws), 0.05, "alpha << 1, ours")
        for small in ((32, 64, 128, 256, 512), (64, 128, 256, 512, 1024)):
            found = measures.length_fit(small).law.exponents
            what = f"exponents of T and d over T = {small[0]} to {small[-1]}, where T is not large"
            yield reported(what, [found["T"].value, found["d"].value], "Assumption 5")


class InContext(Claim):
    """In Eq. 14 Delta a follows its own gradient. In the model of Eq. 2 the B scores of the relevant token share that
    gradient, so attention grows B times slower. Both are measured.
    """

    id, title, reference = "S4", "in-context repetition divides T", "Fig. 2 left"
    reason = (
        "paper: Eq. 14 follows d loss / d Delta a, but in the model of Eq. 2 the B scores of the relevant token share "
        "that gradient, so the plateau shortens like 1/sqrt(B). At T = 128, d = 16, B = 4 the trained model takes "
        "363.6 steps, its own flow 362.1, Eq. 14 185.5"
    )

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        sizes = list(product((1024, 2048, LONG), DIMENSIONS, REPEATS))
        law = fit_plateaus((paper_flow(*size) for size in sizes), ("T", "B", "d")).law
        yield from exponent_checks(law, {"T": 0.99, "B": -0.99, "d": 0.49}, 0.03, 0.998, self.reference)
        tied = measures.in_context_fit().law
        what = f"T = {LONG} alone, as in D.2: exponents of T / B and d, and R2"
        yield reported(what, [tied.exponents["T / B"].value, tied.exponents["d"].value, tied.r2], "D.2")
        model = fit_plateaus((model_flow(*size) for size in sizes), ("T", "B", "d")).law
        what = "the model of Eq. 2, where each score follows its own gradient: exponent of B"
        yield close(what, model.exponents["B"].value, -0.99, 0.03, "Eq. 2, 2.3", relative=False)
        what = "the model of Eq. 2: exponents of T and d, and R2"
        yield reported(what, [model.exponents["T"].value, model.exponents["d"].value, model.r2], "Eq. 2")


class CrossSample(Claim):
    """Up to p = 1/2. For larger p the other columns of W, which see 1 - p of the samples, are learned after attention
    has emerged, and so set the length.
    """

    id = "S5"
    title = "cross-sample repetition shortens the plateau as linearized (T = 4096, d = 16 to 256, p up to 0.5)"
    reference = "Fig. 2 right"
    reason = (
        "paper: the two laws of Fig. 2 describe the same flow at p = 0, B = 1, but give 1.33 (left) and 2.65 (right) "
        "times sqrt(d) T at d = 64; we measure what the left one gives. Exponent and R2 are the paper's"
    )

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        law = measures.cross_sample_fit().law
        yield from exponent_checks(law, {SCALE: 1.02}, 0.05, 0.99, self.reference)
        ours = flow_plateau(paper_flow(LONG, 64)) / (8 * LONG)
        for side, value in FIG2.items():
            what = f"p = 0, B = 1, d = 64: plateau divided by sqrt(d) T; the paper's is the {side} law's value"
            yield close(what, ours, value, 0.1, f"Fig. 2 {side}")
        lengths = flow_plateaus(paper_flow(LONG, 256, p=p) for p in PROBABILITIES)
        yield ordered("d = 256: plateaus at p = 0.5 down to 0", lengths[::-1], self.reference)
        beyond = measures.cross_sample_fit(probabilities=(*PROBABILITIES, 0.6, 0.7, 0.8, 0.9)).law
        yield reported("exponent and R2 with p up to 0.9", [beyond.exponents[SCALE].value, beyond.r2], "A.4.2")


def early_distance(problem: ReducedModel, until: float) -> list[float]:
    """Returns the largest distances of w from sinh and of Delta a from cosh - 1 up to lambda t = `until`.

    Each is divided by the value of the linearized curve at the end.
    """
    times = np.linspace(0, until / problem.rate, 200)
    w, delta_a = trajectory(problem, times)
    curves = theory.linear_w(times, problem.rate), theory.linear_delta_a(times, problem.rate)
    return [float(np.abs(a - b).max() / b[-1]) for a, b in zip((w[0], delta_a), curves, strict=True)]


def linear_escape(lost: float, rate: float) -> float:
    """Returns the time at which the linearized loss has fallen by `lost`, from solving Eq. 15 instead of a formula."""

    def linear(_: float, state: Floats) -> list[float]:
        return [rate * (1 + state[1]), rate * state[0]]

    event = Event("escape", lambda _, state: float(2 * rate * state[0] * (1 + state[1]) - lost))
    found = solve(linear, [0, 0], [0, 100 / rate], events=[event], method="RK45", rtol=1e-10, atol=1e-12)
    return found.events["escape"]


class Linearization(Claim):
    """Judges the flow's early curve, and Eq. 6 against the flow's plateau, which it "closely matches" (10%, ours)."""

    id, title = "S6", "w = sinh and Delta a = cosh - 1 early on, and the escape time"
    reference = "Eqs. 5, 6, 15; Fig. 7"
    forms: Mapping[theory.Form, str] = {"arcsinh": "arcsinh(x)", "appendix": "log(2x)", "main text": "log(x)"}
    lost, matches = 0.8, 0.1  # epsilon of Fig. 1c; the tolerance of "closely matches"
    reason = (
        "paper: w = sinh and Delta a = cosh - 1 hold early on, not until the loss falls: attention then grows faster. "
        "At epsilon = 0.8 Eq. 6 is 4.4 times too long. The plateau is sqrt(pi/2) sqrt(d) T, without its logarithm"
    )

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        problem = paper_flow(LONG, 512)
        what = f"T = {LONG}, d = 512: distances of w from sinh and of Delta a from cosh - 1 up to lambda t = 1/4"
        yield at_most(what, early_distance(problem, 0.25), 0.02, "Fig. 7, A.3.2")
        yield reported("the same distances up to lambda t = 1/2", early_distance(problem, 0.5), "Fig. 7, A.3.2")
        nearer = [early_distance(paper_flow(LONG, 2**15), until)[1] for until in (0.125, 0.25, 0.5)]
        yield ordered("d = 32768: distances of Delta a up to lambda t = 1/8, 1/4, 1/2", nearer, "A.3.2")
        for lost in (0.01, self.lost):
            yield from self._escape(lost, problem.rate)
        yield from self._plateau(problem)

    def _plateau(self, problem: ReducedModel) -> Iterable[Check]:
        """Compares Eq. 6 with the flow's plateau, at one size and over the sizes of Fig. 1c."""
        plateau = flow_plateau(problem)
        times = {form: theory.escape_time(self.lost, problem.rate, form) for form in self.forms}
        what = f"Eq. 6 at epsilon = {self.lost}, divided by the flow's plateau, T = {LONG}, d = 512"
        yield close(what, times["main text"] / plateau, 1.0, self.matches, "Eq. 6, Fig. 1c")
        fit, rates = measures.length_fit(), [paper_flow(T, d).rate for T, d in product(LENGTHS, DIMENSIONS)]
        ratios = np.divide([theory.escape_time(self.lost, rate, "main text") for rate in rates], fit.lengths)
        what = "largest of these ratios, divided by the smallest, over T = 128 to 2048, d = 16 to 256"
        yield at_most(what, float(ratios.max() / ratios.min()), 1 + self.matches, "Eq. 6, Fig. 1c")
        what = "lambda t at the same epsilon, T and d: flow, sqrt(pi/2), arcsinh, log(2x), log(x)"
        yield reported(what, [t * problem.rate for t in (plateau, problem.plateau_law(), *times.values())], "Fig. 1c")

    def _escape(self, lost: float, rate: float) -> Iterable[Check]:
        """Compares the three forms of the escape time with the solution of the linearized dynamics."""
        found = linear_escape(lost, rate)
        where = f"linearized dynamics, T = {LONG}, d = 512, epsilon = {lost}"
        errors = {text: theory.escape_time(lost, rate, form) / found - 1 for form, text in self.forms.items()}
        what = f"{where}: escape time by arcsinh(x), divided by the measured one"
        yield close(what, 1 + errors["arcsinh(x)"], 1.0, 1e-6, "A.3.2", sanity=True)
        printed = {text: abs(errors[text]) for text in ("log(2x)", "log(x)")}
        nearest = min(printed, key=printed.__getitem__)
        yield equal(f"{where}: the printed form that is closer", nearest, "log(2x)", "Eq. 6", sanity=True)
        yield reported(f"{where}: relative errors of log(2x) and log(x)", list(printed.values()), "A.3.2 and Eq. 6")


class LatePhase(Claim):
    """At the end of the drop w is off its equilibrium and relaxes to it at the rate 1/d; the checks wait five d.

    A.3.3's orders in e = 1 - B alpha are judged as printed. Our own forms are sanity checks.
    """

    id, title, reference = "S7", "late, w is at its equilibrium and the Hessian splits", "A.3.3, Fig. 8"
    reason = (
        "paper: A.3.3 prints an entry of order e for Delta a in the Hessian; it is of order e^2, because a factor "
        "alpha (1 - B alpha) is missing (autograd agrees). That Delta a is the slow variable stays true"
    )

    def checks(self, lab: Lab) -> Iterable[Check]:
        run = lab.run("emergence/flow", {**FIG1, "points": 800})
        timeline, problem, times = run.timeline, paper_flow(**FIG1), run.timeline.steps
        plateau = run.manifest.events.get("plateau_length", np.nan)
        off = np.abs(timeline.series("w") / timeline.series("w_equilibrium") - 1)
        what = "relative distance of w from w_inf(alpha), from 5 d after the plateau's end on"
        late = off[times > plateau + 5 * problem.d]
        yield at_most(what, reached(late.max(initial=-np.inf)), 0.02, "Fig. 8 middle")
        what = "time from the plateau's end until the distance stays under 2%, in units of d"
        settled = settling_time(times, off, 0.02) - plateau
        yield reported(what, reached(settled / problem.d), "Fig. 8 middle")
        smallest, largest = timeline.series("curvature/smallest"), timeline.series("curvature/largest")
        first = [float(smallest[0]) / problem.rate, float(largest[0]) / problem.rate]
        yield close("initial eigenvalues divided by B / (sqrt(d) T)", first, [-1.0, 1.0], 0.1, "A.3.2")
        what = "time at which the loss is sharpest, divided by the plateau's length"
        yield close(what, reached(float(times[largest.argmax()]) / plateau), 1.0, 0.05, "Fig. 8 right")
        what = "largest eigenvalue at its maximum, divided by 1/d"
        yield at_least(what, float(largest.max()) * problem.d, 2.0, "Fig. 8 right")
        what = "largest eigenvalue at the end, divided by 1/d"
        yield close(what, float(largest[-1]) * problem.d, 1.0, 0.02, "A.3.3")
        flat, _ = theory.late_eigenvalues(problem, float(timeline.series("alpha")[-1]))
        what = "smallest eigenvalue at the end, divided by 2 e^2 / (T - B)"
        yield close(what, float(smallest[-1]) / flat, 1.0, 0.1, "A.3.3, ours", sanity=True)
        yield from self._orders(problem)

    def _orders(self, problem: ReducedModel) -> Iterable[Check]:
        """Checks the printed orders of the Hessian at w_inf in e, over e = 0.001 to 0.1."""
        e = np.geomspace(1e-3, 1e-1, 9)
        at_rest = problem.hessian(problem.equilibrium(1 - e), np.log((problem.T - 1) / e * (1 - e)))
        entries = {
            "the mixed entry": np.abs(at_rest[:, 0, 1]),
            "the entry for Delta a": np.abs(at_rest[:, 1, 1]),
            "the smallest eigenvalue": np.linalg.eigvalsh(at_rest)[:, 0],
        }
        power = {name: fit_law({"e": e.tolist()}, v.tolist()).exponents["e"].value for name, v in entries.items()}
        for name in ("the mixed entry", "the entry for Delta a"):
            what = f"at w_inf: exponent of {name} in e = 1 - B alpha, as printed"
            yield close(what, power[name], 1.0, 0.1, "A.3.3", relative=False)
        for name in ("the entry for Delta a", "the smallest eigenvalue"):
            what = f"at w_inf: exponent of {name} in e, by our formula"
            yield close(what, power[name], 2.0, 0.1, "A.3.3, ours", relative=False, sanity=True)


def settling_time(times: Floats, off: Floats, limit: float) -> float:
    """Returns the first recorded time from which on `off` stays within `limit`; nan if it does not by the end."""
    outside = np.flatnonzero(off > limit)
    if not len(outside):
        return float(times[0])
    return float(times[outside[-1] + 1]) if outside[-1] + 1 < len(times) else float("nan")
