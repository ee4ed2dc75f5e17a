"""What several claims and figures measure: grids of the paper's figures, plateau lengths and their power laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np

from stagelens import Check, Law, Run, fit_law
from stagelens.base import UsageError
from stagelens.claims import Value, at_least, at_most, close, ordered, per_seed, reached, reported
from stagelens.timelines import first_crossing
from stagelens_emergence.flow import flow_plateaus
from stagelens_emergence.theory import ReducedModel, paper_flow, repetition_scale

DIMENSIONS = (16, 32, 64, 128, 256)  # d of Figs. 1 and 2
LENGTHS = (128, 256, 512, 1024, 2048)  # T of Fig. 1
LONG = 4096  # T of Fig. 2 (D.2)
REPEATS = (1, 2, 4, 8, 16)  # B of Fig. 2 left
PROBABILITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # p of Fig. 2 right

LEARNED = 0.1  # test loss at which the plateau of a regression ends (D.1)
LEAVING = 0.4  # the same if cross-sample repetition is compared (D.1)
ANSWERING = 0.05  # test accuracy at which the plateau of recall ends (D.1)

Seeds = Mapping[int, Run]  # the run of each seed
Measure = Callable[[Run], float | None]
Column = Callable[[ReducedModel], float]
TIED: Mapping[str, Column] = {"T / B": lambda problem: problem.T / problem.B, "d": attrgetter("d")}
SCALE = "sqrt(d) T / sqrt(p^2 d + (1-p)^2)"


@dataclass(frozen=True)
class PlateauFit:
    """Plateau lengths of flows [problem], and the power law fitted to them."""

    lengths: list[float]
    law: Law

    @property
    def fitted(self) -> list[float]:
        """The law's value for each problem."""
        return list(np.asarray(self.lengths) / np.exp(self.law.residuals))


def fit_plateaus(problems: Iterable[ReducedModel], columns: Mapping[str, Column] | Sequence[str]) -> PlateauFit:
    """Fits a power law to the plateau lengths of the flows of `problems`, in columns computed from each problem."""
    if not isinstance(columns, Mapping):
        columns = {name: attrgetter(name) for name in columns}
    problems = list(problems)
    lengths = flow_plateaus(problems)
    return PlateauFit(lengths, fit_law({name: [f(q) for q in problems] for name, f in columns.items()}, lengths))


def length_fit(lengths: Sequence[int] = LENGTHS) -> PlateauFit:
    """Returns Fig. 1c: the law in T and d, over `lengths` x DIMENSIONS."""
    return fit_plateaus((paper_flow(T, d) for T, d in product(lengths, DIMENSIONS)), ("T", "d"))


def in_context_fit(T: int = LONG) -> PlateauFit:
    """Returns Fig. 2 left: the law in T / B and d (D.2), over REPEATS x DIMENSIONS."""
    return fit_plateaus((paper_flow(T, d, B) for B, d in product(REPEATS, DIMENSIONS)), TIED)


def cross_sample_fit(T: int = LONG, probabilities: Sequence[float] = PROBABILITIES) -> PlateauFit:
    """Returns Fig. 2 right: the law in sqrt(d) T / f(p, d), over `probabilities` x DIMENSIONS."""
    problems = (paper_flow(T, d, p=p) for p, d in product(probabilities, DIMENSIONS))
    return fit_plateaus(problems, {SCALE: repetition_scale})


def plateau_of(run: Run, threshold: float | None = None) -> float | None:
    """Returns the length of a run's first plateau (D.1), in steps; None if it outlasts the run.

    The plateau of a regression ends when the test loss has fallen to `threshold` (default 0.1). That of recall ends
    when the test accuracy has risen to it (default 0.05).
    """
    if "accuracy" in run.timeline:
        return first_crossing(*run.timeline.scalar("accuracy"), threshold or ANSWERING, rising=True)
    return first_crossing(*run.timeline.scalar("loss"), threshold or LEARNED, rising=False)


def train_plateau_of(run: Run, threshold: float) -> float | None:
    """Returns the step at which the accuracy on the training distribution reaches `threshold`; None if it does not."""
    return first_crossing(*run.timeline.scalar("key_value/train_accuracy"), threshold, rising=True)


def shown(run: Run, measure: Measure) -> Value:
    """Returns a length as a check shows it: rounded, or in words if the plateau outlasts the run."""
    length = measure(run)
    return reached(length if length is None else round(length, 1), by=run.manifest.steps)


def growing(what: str, points: Sequence[Seeds], measure: Measure, reference: str) -> Check:
    """Checks that in every seed the plateau gets longer from grid point to grid point."""
    found = {seed: [shown(runs[seed], measure) for runs in points] for seed in points[0]}
    return per_seed(ordered, what, found, reference)


def mean_length(runs: Seeds, measure: Measure) -> float:
    """Returns the geometric mean over the seeds; nan if one of them outlasts its run or has length 0."""
    found = [measure(run) for run in runs.values()]
    return float(np.exp(np.mean(np.log([length or np.nan for length in found]))))


def law_of(points: Mapping[Any, Seeds], names: Sequence[str], measure: Measure) -> Law | str:
    """Returns the power law of the plateau length in the columns `names` of the grid points, or why there is none.

    Plateaus that outlast their run are left out of the fit as censored.
    """
    rows = [(*point, seed, measure(run)) for point, runs in points.items() for seed, run in runs.items()]
    *columns, seeds, lengths = zip(*rows, strict=True)
    censored = [length is None for length in lengths]
    values = [np.nan if length is None else length for length in lengths]
    try:
        return fit_law(dict(zip(names, columns, strict=True)), values, seeds=seeds, censored=censored)
    except UsageError as error:
        return f"none: {error}"


def law_checks(
    law: Law | str, paper: Mapping[str, tuple[float, float]], r2: float, printed: str, reference: str
) -> Iterable[Check]:
    """Checks that the law fits, and that each exponent has the paper's sign and is near the paper's number.

    `paper` has the exponent of each column and its tolerance; `printed` is the paper's law as it writes it.
    """
    if isinstance(law, str):
        yield at_least(f"power law in {', '.join(paper)}", law, r2, reference)
        return
    yield at_least(f"R2 of the power law in {', '.join(paper)} ({law.censored} censored)", law.r2, r2, reference)
    for name, (expected, tolerance) in paper.items():
        value, interval = exponent_of(law, name)
        sign, limit = ("negative", at_most) if expected < 0 else ("positive", at_least)
        yield limit(f"exponent of {name} is {sign}", value, 0.0, reference, interval=interval)
        what = f"exponent of {name} against the paper's"
        yield close(what, value, expected, tolerance, reference, relative=False, interval=interval)
    yield reported(f"the power law (paper: {printed})", str(law), reference)


def exponent_of(law: Law, name: str) -> tuple[float, tuple[float, float]]:
    """Returns an exponent and its 95% confidence interval."""
    found = law.exponents[name]
    return found.value, (found.low, found.high)


def exceeds(law: Law | str, more: str, less: str, reference: str) -> Check:
    """Checks that the exponent of `more` is larger than that of `less`, with the interval of their difference."""
    what = f"exponent of {more} minus that of {less}"
    if isinstance(law, str):
        return at_least(what, law, 0.0, reference)
    (a, (a_low, a_high)), (b, (b_low, b_high)) = exponent_of(law, more), exponent_of(law, less)
    half = np.hypot(a_high - a_low, b_high - b_low) / 2
    return at_least(what, a - b, 0.0, reference, interval=(a - b - half, a - b + half))


def faster(runs: Mapping[float, Seeds], measure: Measure) -> Seeds:
    """Returns the runs of the learning rate with the shortest mean plateau, as the paper tunes it (D.3)."""
    lengths = {lr: mean_length(seeds, measure) for lr, seeds in runs.items()}
    return runs[min(lengths, key=lambda lr: np.inf if np.isnan(lengths[lr]) else lengths[lr])]


def listed(values: Iterable[float]) -> str:
    """Returns the numbers as text: `8, 16, 32`."""
    return ", ".join(f"{value:g}" for value in values)


def next_hundred(steps: float) -> int:
    """Rounds a number of steps up to a multiple of 100."""
    return 100 * int(np.ceil(steps / 100))
