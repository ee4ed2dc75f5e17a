"""What the paper states of the toy model and its flow, measured: S1 to S7.

Plateau lengths of the flow come from `flow_plateaus`, some milliseconds each; what is trained comes from the lab.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens import Check, Claim, Law, Run, Timeline, fit_law
from stagelens.claims import (
    NOT_REACHED,
    Lab,
    at_least,
    at_most,
    close,
    equal,
    in_every_seed,
    ordered,
    reached,
    reported,
)
from stagelens_emergence import theory
from stagelens_emergence.flow import flow_plateau, flow_plateaus, solve
from stagelens_emergence.theory import Reduced

Floats = NDArray[np.float64]

DIMENSIONS = (16, 32, 64, 128, 256)
LENGTHS = (128, 256, 512, 1024, 2048)
REPEATS = (1, 2, 4, 8, 16)
LONG = 4096  # T of Fig. 2 (D.2)
PROBABILITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
FIG1 = {"T": 512, "d": 64}
SMALL = {"T": 128, "d": 64, "steps": 2200}  # for Fig. 9's T = d = 256 on the quick budget, with the same sqrt(d) / T
PROBES = ("single_location", "plateau_length")
W, ALPHA = "single_location/w", "single_location/alpha"


def part_way(timeline: Timeline, name: str, part: float = 0.1) -> float:
    """When the series has first come `part` of the way from its start to its highest value."""
    steps, values = timeline.scalar(name)
    return theory.plateau_length(steps, values, values[0] + part * (values.max() - values[0]), rising=True)


def drops(run: Run) -> int:
    """The number of transitions of the loss."""
    return len(run.stages().transitions)


def law_of(problems: Sequence[Reduced], columns: Mapping[str, Sequence[float]]) -> Law:
    """The power law of the flow's plateau lengths over `columns`."""
    return fit_law(columns, flow_plateaus(problems))


def exponent_checks(law: Law, expected: dict[str, float], tolerance: float, r2: float, where: str) -> Iterable[Check]:
    """Each exponent and R2 against the paper's; constant and intervals are reported."""
    for key, value in expected.items():
        yield close(f"exponent of {key}", law.exponents[key].value, value, tolerance, where, relative=False)
    yield at_least("R2 of the fit in log space", law.r2, r2, where)
    yield reported("constant of the law", law.constant, where)
    for key in expected:
        ends = [law.exponents[key].low, law.exponents[key].high]
        yield reported(f"95% confidence interval of the exponent of {key}, over the points", ends, where)


class WeightsFirst(Claim):
    id = "S1"
    title = "weights first, attention second, then both"
    reference = "Fig. 1a, b"
    seeds = 5

    def checks(self, lab: Lab) -> Iterable[Check]:
        flow = lab.run("emergence/flow", FIG1)
        times = reached([part_way(flow.timeline, name) for name in ("w", "alpha")])
        yield ordered("flow: time at which w, and then alpha, is a tenth of its way up", times, "Fig. 1b")
        yield equal("flow: drops of the loss", drops(flow), 1, "Fig. 1a")
        loss = flow.timeline.scalar("loss")
        begin, end = (theory.plateau_length(*loss, part * loss[1][0]) for part in (0.9, 0.1))
        what = "flow: time from 90% to 10% of the loss, in units of the time before"
        yield at_most(what, reached((end - begin) / begin), 0.1, "Fig. 1a")
        runs = trained(lab)
        what = "SGD: step at which w, and then alpha, is a tenth of its way up"
        yield in_every_seed(
            {
                s: ordered(what, reached([part_way(r.timeline, n) for n in (W, ALPHA)]), "Fig. 9")
                for s, r in runs.items()
            }
        )
        yield in_every_seed({s: equal("SGD: drops of the loss", drops(r), 1, "Fig. 9") for s, r in runs.items()})


def trained(lab: Lab, **settings: float) -> dict[int, Run]:
    """Fig. 9's runs: SGD from a random W towards a random W*."""
    size = {} if lab.budget == "paper" else SMALL
    return lab.each_seed("emergence/toy", {**size, **settings}, preset="fig9", probes=PROBES)


def trained_plateau(run: Run) -> float | str:
    """The plateau's length in the flow's time, or until when it lasted at least."""
    name, config = "plateau_length/steps", run.experiment.config
    if name not in run.timeline:
        return f"not by step {run.manifest.steps:g}"
    return float(run.timeline.scalar(name)[1][-1]) * float(config.lr)


def delays(found: Mapping[int, float | str], own: Mapping[int, float], unit: float) -> list[float | str]:
    """Each seed's time less its own reference, in units of `unit`; words where it has no time."""
    return [when if isinstance(when, str) else reached((when - own[s]) / unit) for s, when in found.items()]


class Reduction(Claim):
    """Fig. 9 relaxes the assumptions on W* and W. The part of W across W* does not decay on the plateau: it delays its
    end by one to two d. So the same is measured from W = 0 too, as Assumption 4 has it.
    """

    id = "S2"
    title = "the reduced dynamics match SGD on the whole toy model"
    reference = "Fig. 9"
    seeds = 5

    def checks(self, lab: Lab) -> Iterable[Check]:
        random, zero = trained(lab), trained(lab, init_scale=0.0)
        config = next(iter(random.values())).experiment.config
        expected = flow_plateau(Reduced(config.T, config.d))
        size = f"T = {config.T}, d = {config.d}, batches of {config.batch_size}"
        what = f"{size}: plateau of SGD from a random W (flow: {expected:.0f})"
        found = {s: trained_plateau(run) for s, run in random.items()}
        yield in_every_seed({s: close(what, length, expected, 0.15, self.reference) for s, length in found.items()})
        finished = [length for length in found.values() if not isinstance(length, str)]
        mean = float(np.mean(finished)) / expected if finished else NOT_REACHED
        yield reported(f"mean over the {len(finished)} seeds that finish / flow", mean, self.reference)
        starts = {s: float(run.timeline.series(W)[0]) for s, run in random.items()}
        own = {s: flow_plateau(Reduced(config.T, config.d), w_init=start) for s, start in starts.items()}
        yield reported("flow from each seed's own w at the start", reached(list(own.values())), self.reference)
        late = delays(found, own, config.d)
        yield reported("how much later than that SGD is, in units of d", late, "Assumption 4")
        what = f"{size}: plateau of SGD from W = 0"
        found = {s: trained_plateau(run) for s, run in zero.items()}
        yield in_every_seed({s: close(what, length, expected, 0.15, "Assumption 4") for s, length in found.items()})


class PowerLaw(Claim):
    id = "S3"
    title = "the plateau's length is a power law of T and d"
    reference = "Fig. 1c"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        law, lengths = self._over(LENGTHS)
        yield from exponent_checks(law, {"T": 1.0, "d": 0.5}, 0.03, 0.998, self.reference)
        what = "T = 2048: plateau over sqrt(pi/2) sqrt(d) T, for d = 16 up to 256"
        last = lengths[-len(DIMENSIONS) :]
        laws = [Reduced(LENGTHS[-1], d).plateau_law() for d in DIMENSIONS]
        yield close(what, [a / b for a, b in zip(last, laws, strict=True)], [1.0] * len(laws), 0.05, "alpha << 1, ours")
        for small in ((32, 64, 128, 256, 512), (64, 128, 256, 512, 1024)):
            found = self._over(small)[0].exponents
            what = f"exponents of T and d over T = {small[0]} to {small[-1]}, where T is not large"
            yield reported(what, [found["T"].value, found["d"].value], "Assumption 5")

    def _over(self, lengths: Sequence[int]) -> tuple[Law, list[float]]:
        grid = [Reduced(T, d) for T, d in product(lengths, DIMENSIONS)]
        values = flow_plateaus(grid)
        return fit_law({"T": [q.T for q in grid], "d": [q.d for q in grid]}, values), values


class InContext(Claim):
    """Eq. 14 moves Delta a by its own gradient. In the model of Eq. 2 the B scores of the relevant token share it, and
    attention grows B times slower than that. Both are measured.
    """

    id = "S4"
    title = "in-context repetition divides T"
    reference = "Fig. 2 left"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        sizes = list(product((1024, 2048, LONG), DIMENSIONS, REPEATS))
        grid = [Reduced(T, d, B) for T, d, B in sizes]
        columns = {"T": [q.T for q in grid], "B": [q.B for q in grid], "d": [q.d for q in grid]}
        law = law_of(grid, columns)
        yield from exponent_checks(law, {"T": 0.99, "B": -0.99, "d": 0.49}, 0.03, 0.998, self.reference)
        tied = tied_law([q for q in grid if q.T == LONG])
        what = f"T = {LONG} alone, as in D.2: exponents of T / B and d, and R2"
        yield reported(what, [tied.exponents["T / B"].value, tied.exponents["d"].value, tied.r2], "D.2")
        model = law_of([Reduced(T, d, B, each=True) for T, d, B in sizes], columns)
        what = "the model of Eq. 2, each score by its own gradient: exponent of B"
        yield close(what, model.exponents["B"].value, -0.99, 0.03, "Eq. 2, 2.3", relative=False)
        what = "the same: exponents of T and d, and R2"
        yield reported(what, [model.exponents["T"].value, model.exponents["d"].value, model.r2], "Eq. 2")


def tied_law(grid: Sequence[Reduced]) -> Law:
    """Fig. 2 left as D.2 fits it: one exponent for T / B."""
    return law_of(grid, {"T / B": [q.T / q.B for q in grid], "d": [q.d for q in grid]})


def repetition_scale(problem: Reduced) -> float:
    """sqrt(d) T / sqrt(p^2 d + (1-p)^2) (A.4.2)."""
    return float(np.sqrt(problem.d) * problem.T / theory.repetition(problem.p, problem.d))


class CrossSample(Claim):
    """Up to p = 1/2. Beyond it the rest of W, which sees 1 - p of the samples, is late after attention has emerged."""

    id = "S5"
    title = "cross-sample repetition shortens the plateau as the linearization says"
    reference = "Fig. 2 right"
    scale = "sqrt(d) T / sqrt(p^2 d + (1-p)^2)"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        law = self._up_to(PROBABILITIES)
        yield from exponent_checks(law, {self.scale: 1.02}, 0.05, 0.99, self.reference)
        lengths = flow_plateaus(Reduced(LONG, 256, 1, p) for p in PROBABILITIES)
        yield ordered("d = 256: plateau, p = 0.5 down to 0", lengths[::-1], self.reference)
        beyond = self._up_to((*PROBABILITIES, 0.6, 0.7, 0.8, 0.9))
        yield reported("exponent and R2 with p up to 0.9", [beyond.exponents[self.scale].value, beyond.r2], "A.4.2")

    def _up_to(self, probabilities: Sequence[float]) -> Law:
        grid = [Reduced(LONG, d, 1, p) for p, d in product(probabilities, DIMENSIONS)]
        return law_of(grid, {self.scale: [repetition_scale(q) for q in grid]})


def early_distance(problem: Reduced, until: float) -> list[float]:
    """Largest distances of w from sinh and of Delta a from cosh - 1 up to lambda t = `until`, in units of the end."""
    times = np.linspace(0, until / problem.rate, 200)
    w, delta_a = solve(problem, times)
    curves = theory.linear_w(times, problem.rate), theory.linear_delta_a(times, problem.rate)
    return [float(np.abs(a - b).max() / b[-1]) for a, b in zip((w[0], delta_a), curves, strict=True)]


def linear_escape(share: float, rate: float) -> float:
    """When the linearized loss has lost `share`, found on the solution of Eq. 15 and not by a formula."""
    from scipy.integrate import solve_ivp

    def lost(_: float, state: Floats) -> float:
        w, delta_a = state
        return float(2 * rate * w * (1 + delta_a) - share)

    lost.terminal = True  # type: ignore[attr-defined]
    linear = lambda _, state: [rate * (1 + state[1]), rate * state[0]]  # noqa: E731
    solved: Any = solve_ivp(linear, (0, 100 / rate), [0.0, 0.0], events=lost, rtol=1e-10, atol=1e-12)
    return float(solved.t_events[0][0])


class Linearization(Claim):
    id = "S6"
    title = "w = sinh and Delta a = cosh - 1 early on, and the escape time"
    reference = "Eqs. 5, 6, 15; Fig. 7"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        what = f"T = {LONG}, d = 512: distances of w from sinh and of Delta a from cosh - 1 up to lambda t = 1/4"
        yield at_most(what, early_distance(Reduced(LONG, 512), 0.25), 0.02, "Fig. 7, A.3.2")
        yield reported("the same up to lambda t = 1/2", early_distance(Reduced(LONG, 512), 0.5), "Fig. 7, A.3.2")
        nearer = [early_distance(Reduced(LONG, 2**15), until)[1] for until in (0.125, 0.25, 0.5)]
        yield ordered("d = 32768: distance of Delta a up to lambda t = 1/8, 1/4, 1/2", nearer, "A.3.2")
        problem = Reduced(LONG, 512)
        forms: dict[theory.Form, str] = {"arcsinh": "arcsinh(x)", "appendix": "log(2x)", "main text": "log(x)"}
        for share in (0.01, 0.8):
            found = linear_escape(share, problem.rate)
            where = f"linearized dynamics, T = {LONG}, d = 512, epsilon = {share}"
            errors = {text: theory.escape_time(share, problem.rate, f) / found - 1 for f, text in forms.items()}
            yield close(f"{where}: 2 lambda t with arcsinh(x)", 1 + errors["arcsinh(x)"], 1.0, 1e-6, "A.3.2")
            printed = {text: abs(errors[text]) for text in ("log(2x)", "log(x)")}
            nearest = min(printed, key=printed.__getitem__)
            yield equal(f"{where}: the printed form that fits", nearest, "log(2x)", "Eq. 6")
            yield reported(f"{where}: errors of log(2x) and log(x)", list(printed.values()), "A.3.2 and Eq. 6")
        plateau = flow_plateau(problem) * problem.rate
        forms_there = [theory.escape_time(0.8, problem.rate, form) * problem.rate for form in forms]
        what = f"lambda t at epsilon = 0.8, T = {LONG}, d = 512: flow, sqrt(pi/2), arcsinh, log(2x), log(x)"
        yield reported(what, [plateau, problem.plateau_law() * problem.rate, *forms_there], "Fig. 1c")


def settling_time(times: Floats, off: Floats, limit: float) -> float:
    """The first time from which on `off` stays within `limit`; nan: it does not by the end."""
    outside = np.flatnonzero(off > limit)
    if not len(outside):
        return float(times[0])
    return float(times[outside[-1] + 1]) if outside[-1] + 1 < len(times) else float("nan")


class LatePhase(Claim):
    """The drop ends with w off its equilibrium, to which it relaxes at the rate 1/d: five such times are waited."""

    id = "S7"
    title = "late, w rests at its equilibrium and the Hessian splits"
    reference = "A.3.3, Fig. 8"

    def checks(self, lab: Lab) -> Iterable[Check]:
        run = lab.run("emergence/flow", {**FIG1, "points": 800})
        timeline, problem = run.timeline, Reduced(FIG1["T"], FIG1["d"])
        times, alpha = timeline.steps, timeline.series("alpha")
        off = np.abs(timeline.series("w") / timeline.series("w_equilibrium") - 1)
        plateau = run.manifest.events.get("plateau_length", np.nan)
        late = times > plateau + 5 * problem.d
        what = "distance of w from w_inf(alpha), from 5 d after the plateau's end on"
        yield at_most(what, reached(off[late].max(initial=-np.inf)), 0.02, "Fig. 8 middle")
        what = "time from the plateau's end until it stays under 2%, in units of d"
        yield reported(what, reached((settling_time(times, off, 0.02) - plateau) / problem.d), "Fig. 8 middle")
        smallest, largest = timeline.series("curvature/smallest"), timeline.series("curvature/largest")
        first = [float(smallest[0]) / problem.rate, float(largest[0]) / problem.rate]
        yield close("first eigenvalues over B / (sqrt(d) T)", first, [-1.0, 1.0], 0.1, "A.3.2")
        sharpest = float(times[largest.argmax()])
        yield close(
            "time of the sharpest loss over the plateau's length",
            reached(sharpest / plateau),
            1.0,
            0.05,
            "Fig. 8 right",
        )
        yield at_least("sharpest loss over 1/d", float(largest.max()) * problem.d, 2.0, "Fig. 8 right")
        yield close("last largest eigenvalue over 1/d", float(largest[-1]) * problem.d, 1.0, 0.02, "A.3.3")
        flat, _ = theory.late_eigenvalues(problem, float(alpha[-1]))
        yield close(
            "last smallest eigenvalue over 2 e^2 / (T - B)", float(smallest[-1]) / flat, 1.0, 0.1, "A.3.3, ours"
        )
        e = np.geomspace(1e-3, 1e-1, 9)
        eigenvalues = np.linalg.eigvalsh(
            problem.hessian(problem.equilibrium(1 - e), np.log((problem.T - 1) / e * (1 - e)))
        )
        what = "at w_inf: exponent of the smallest eigenvalue in e = 1 - B alpha (A.3.3 prints 1)"
        power = fit_law({"e": e.tolist()}, eigenvalues[:, 0].tolist()).exponents["e"].value
        yield close(what, power, 2.0, 0.1, "A.3.3, ours", relative=False)
