"""S8 and S9: what the paper states about transformers on single-location regression.

Each budget has its own grid. The quick grids are the smallest that can show a sign, an order or a power law. They use
transformers of width 32 instead of 256 (`long`: 64), and larger learning rates. Training does not stop when a plateau
ends. So the runs have at least 1.4 times the steps of seed 0's plateau at the time the grid was chosen.

Thresholds: the paper's numbers are those of Fig. 3; for the same model Figs. 13 to 15 have T^0.57 to T^0.70 and d^1.27
to d^1.31, so the tolerances are 0.25 for T and B, and 0.15 for d. The R2 of 0.95 is ours (the paper's is 0.995).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stagelens import Check, Claim
from stagelens.claims import Lab, at_least, on_average, ordered, per_seed, reached, reported
from stagelens_emergence.claims import measures
from stagelens_emergence.claims.measures import Seeds, exponent_of, growing, listed
from stagelens_emergence.theory import repetition

FIG_3 = {"T": (0.80, 0.25), "d": (1.29, 0.15), "B": (-0.80, 0.25)}  # exponents and tolerances
FIG_13 = {"layers": 0.06, "heads": 0.16}
SEEDS = 5  # Table 1

learned = partial(measures.plateau_of, threshold=measures.LEARNED)
leaving = partial(measures.plateau_of, threshold=measures.LEAVING)


class Data(NamedTuple):
    """Tokens, dimension, and in-context repetition of one regression."""

    T: int
    d: int
    B: int = 1


def label(points: Sequence[Data]) -> str:
    """Returns the settings of `points` as text, the varied one last: `d = 8, T = 8, 16, 32`. B = 1 is left out."""
    values = {name: list(dict.fromkeys(getattr(point, name) for point in points)) for name in Data._fields}
    named = [name for name in Data._fields if values[name] != [Data._field_defaults.get(name)]]
    return ", ".join(f"{name} = {listed(values[name])}" for name in sorted(named, key=lambda name: len(values[name])))


@dataclass(frozen=True)
class RegressionGrid:
    """The settings of S8 and S9. Sequences of points are in the order in which plateaus should get longer."""

    vary_T: tuple[Data, ...]
    vary_d: tuple[Data, ...]
    vary_B: tuple[Data, ...]
    further: tuple[Data, ...]  # the power law is fitted to these and to the three above
    vary_p: tuple[Data, Data]  # a small and a large d, with and without cross-sample repetition
    p: float  # that of vary_p
    easy: Data  # Adam and SGD are compared at an easy and at a hard point
    hard: Data
    sgd_lr: float
    ablated: Data  # position, feature, heads and layers are varied here
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings of all runs
    tuned: tuple[float, ...] = ()  # learning rates for cross-sample repetition; the fastest counts (D.3)
    steps: tuple[int, int] = (0, 0)  # of a run: at least, and for each d; none: those of the preset


REGRESSIONS = {
    "quick": RegressionGrid(
        vary_T=tuple(Data(T, d=16) for T in (8, 16, 32)),
        vary_d=tuple(Data(16, d) for d in (8, 16, 32)),
        vary_B=tuple(Data(32, 16, B) for B in (4, 2, 1)),
        further=(Data(T=32, d=8),),
        vary_p=(Data(T=16, d=8), Data(T=16, d=32)),
        p=0.2,
        easy=Data(T=4, d=4),
        hard=Data(T=8, d=4),
        sgd_lr=0.05,
        ablated=Data(T=16, d=8),
        heads=(1, 2, 4, 8),
        layers=(1, 2, 3),
        steps=(300, 30),
    ),
    "long": RegressionGrid(
        vary_T=tuple(Data(T, d=16) for T in (16, 32, 64)),
        vary_d=tuple(Data(32, d) for d in (8, 16, 32)),
        vary_B=tuple(Data(64, 16, B) for B in (4, 2, 1)),
        further=(Data(T=64, d=8),),
        vary_p=(Data(T=32, d=8), Data(T=32, d=64)),
        p=0.2,
        easy=Data(T=4, d=4),
        hard=Data(T=16, d=4),
        sgd_lr=0.05,
        ablated=Data(T=64, d=8),  # Fig. 14's laws for fixed and random positions cross at T = 31 for d = 8
        heads=(1, 2, 4, 8),
        layers=(1, 2, 3, 4),
        changes={"d_model": 64, "d_head": 16, "lr": 1e-3},
        steps=(400, 45),
    ),
    "paper": RegressionGrid(
        vary_T=tuple(Data(T, d=64) for T in (64, 128, 256, 512)),
        vary_d=tuple(Data(256, d) for d in (16, 32, 64, 128)),
        vary_B=tuple(Data(256, 64, B) for B in (8, 4, 2, 1)),
        further=tuple(Data(T, d) for T in (64, 128, 256, 512) for d in (16, 32, 64, 128)),
        vary_p=(Data(T=256, d=16), Data(T=256, d=128)),
        p=0.1,
        easy=Data(T=16, d=16),
        hard=Data(T=64, d=32),
        sgd_lr=5e-3,
        ablated=Data(T=128, d=32),
        heads=(1, 2, 4, 8),
        layers=(1, 2, 4),
        tuned=(1e-4, 3e-4),  # D.3: Fig. 3 right
    ),
}


def grid_of(lab: Lab) -> RegressionGrid:
    """Returns the grid of the lab's budget."""
    return lab.of_budget(REGRESSIONS)


def regression(lab: Lab, data: Data, **settings: Any) -> Seeds:
    """Returns the regression of each seed. Runs get enough steps for their plateau to end."""
    grid = grid_of(lab)
    given = {"init": "torch", **grid.changes, **settings}
    if any(grid.steps):
        given = {"steps": measures.next_hundred(enough(data, grid, **settings)), **given}
    return lab.each_seed("emergence/regression", {**data._asdict(), **given}, probes=("relevant_attention",))


def enough(data: Data, grid: RegressionGrid, **settings: Any) -> float:
    """Returns a number of steps that exceeds the plateau's; found with seed 0."""
    if settings.get("optimizer") == "sgd":
        return float(160 * data.d**0.4 * data.T**1.1)
    least, each = grid.steps
    return max(least, each * data.d)


def law_runs(lab: Lab, init: str = "torch") -> dict[Data, Seeds]:
    """Returns the runs that the power law is fitted to."""
    grid = grid_of(lab)
    points = (*grid.vary_T, *grid.vary_d, *grid.vary_B, *grid.further)
    return {data: regression(lab, data, init=init) for data in points}


def cross_sample_runs(lab: Lab) -> tuple[list[Seeds], list[Seeds]]:
    """Returns the runs at a small and at a large d, with cross-sample repetition and without."""
    grid = grid_of(lab)

    def at(data: Data, p: float) -> Seeds:
        if not grid.tuned:
            return regression(lab, data, p=p)
        return measures.faster({lr: regression(lab, data, p=p, lr=lr) for lr in grid.tuned}, leaving)

    with_p, without = ([at(data, p) for data in grid.vary_p] for p in (grid.p, 0.0))
    return with_p, without


def optimizer_runs(lab: Lab) -> dict[Data, list[Seeds]]:
    """Returns the runs of Adam and of SGD at the easy and at the hard point, with one layer and head."""
    grid = grid_of(lab)
    small: Any = {"layers": 1, "heads": 1}
    sgd: Any = small | {"optimizer": "sgd", "lr": grid.sgd_lr}
    return {data: [regression(lab, data, **small), regression(lab, data, **sgd)] for data in (grid.easy, grid.hard)}


def fixed_runs(lab: Lab) -> dict[bool, Seeds]:
    """Returns the runs with a fixed position, with the relevance feature (True) and without."""
    data = grid_of(lab).ablated
    return {feature: regression(lab, data, position="fixed", feature=feature) for feature in (True, False)}


def size_runs(lab: Lab) -> dict[tuple[int, int], Seeds]:
    """Returns the runs by (layers, heads)."""
    grid = grid_of(lab)
    points = {(layers, 4): regression(lab, grid.ablated, layers=layers) for layers in grid.layers}
    return points | {(2, heads): regression(lab, grid.ablated, heads=heads) for heads in grid.heads}


class Laws(Claim):
    """The law is that of Eq. 22 without p, with an exponent each for T and B, so that T/B is a result.

    The paper does not state how weights start. PyTorch's own start is judged; TransformerLens' is reported.
    """

    id, title, reference = "S8", "transformers: T and d delay emergence, B and p accelerate it", "2.4, Figs. 3, 11, 12"
    seeds = SEEDS
    reason = {
        "quick": "size: the orders and the signs of the exponents hold, but the exponent of d is 0.96 at d = 8 to 32. "
        "It grows with d: 0.87 from d = 8 to 16, 1.07 from 16 to 32; Fig. 3's 1.29 is at width 256, T = 256. With "
        "TransformerLens' initial weights it is 0.70"
    }

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = grid_of(lab)
        points = law_runs(lab)
        for vary, where in ((grid.vary_T, "Fig. 3 left"), (grid.vary_d, "Fig. 3 left"), (grid.vary_B, "Fig. 3 middle")):
            yield growing(f"plateaus at {label(vary)}", [points[data] for data in vary], learned, where)
        law = measures.law_of(points, Data._fields, learned)
        yield from measures.law_checks(law, FIG_3, 0.95, "0.76 d^1.29 T^0.80 B^-0.80, R2 0.995", "Fig. 3")
        lens = measures.law_of(law_runs(lab.with_seeds(3), "lens"), Data._fields, learned)
        yield reported("the power law if weights start as in TransformerLens", str(lens), "Fig. 3")
        yield from self._cross_sample(lab, grid)

    def _cross_sample(self, lab: Lab, grid: RegressionGrid) -> Iterable[Check]:
        """Checks that p shortens the plateau, and more so at the larger d."""
        p, ds = grid.p, [data.d for data in grid.vary_p]
        with_p, without = cross_sample_runs(lab)
        saved = [speedups(a, b) for a, b in zip(with_p, without, strict=True)]
        what = f"factor by which p = {p:g} shortens the plateau at {label(grid.vary_p[1:])}, mean over seeds"
        yield on_average(at_least, what, saved[1], 1.0, "Fig. 3 right")
        gained = {seed: minus(saved[1][seed], saved[0][seed]) for seed in saved[0]}
        what = f"the same factor minus the one at d = {ds[0]}, mean over seeds"
        yield on_average(at_least, what, gained, 0.0, "2.4: more so as d increases")
        theory = [round(float(repetition(p, d)), 3) for d in ds]
        yield reported("the same factors in the toy model, sqrt(p^2 d + (1 - p)^2)", theory, "Eq. 22")


def speedups(repeated: Seeds, plain: Seeds) -> dict[int, float | str]:
    """Returns for each seed how many times longer the plateau is without repetition; words if one does not end."""
    lengths = {seed: (leaving(plain[seed]), leaving(repeated[seed])) for seed in plain}
    return {seed: reached(None if not a or not b else round(a / b, 4)) for seed, (a, b) in lengths.items()}


def minus(a: float | str, b: float | str) -> float | str:
    """Returns a - b, or the one that is a word."""
    if isinstance(a, str):
        return a
    return b if isinstance(b, str) else a - b


class Ablations(Claim):
    """The paper's exponents of layers and heads are 0.06 and 0.16: both delay emergence, heads more."""

    id, title, reference = "S9", "optimizer, position, feature, heads and layers", "B.3, Figs. 13-15"
    reason = {
        "quick": "size: without the feature, a fixed position is not faster than a random one at T = 16, d = 8. Fig. "
        "14's own laws agree: 4.61 d^1.21 T^0.30 (fixed) and 1.43 d^1.31 T^0.58 (random) cross at T = 31 for d = 8"
    }
    seeds = {"quick": SEEDS, "long": 10}

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = grid_of(lab)
        yield from self._optimizers(lab, grid)
        plain = regression(lab, grid.ablated)
        for feature, fixed in fixed_runs(lab).items():
            known = "with" if feature else "without"
            what = f"plateaus at {label([grid.ablated])}: fixed position {known} the feature, random position with it"
            yield growing(what, [fixed, plain], learned, "Fig. 14")
        yield from self._sizes(lab, grid)

    def _optimizers(self, lab: Lab, grid: RegressionGrid) -> Iterable[Check]:
        """Checks that Adam is faster than SGD, and less sensitive to the difficulty of the task."""
        easy, hard, found = grid.easy, grid.hard, optimizer_runs(lab)
        for data, both in found.items():
            what = f"plateaus at {label([data])}, one layer and head: Adam, SGD"
            yield growing(what, both, learned, "Fig. 15")
        ratios = {
            seed: [
                round((learned(harder[seed]) or np.nan) / (learned(easier[seed]) or np.nan), 3)
                for easier, harder in zip(found[easy], found[hard], strict=True)
            ]
            for seed in lab.seeds
        }
        what = f"plateau at {label([hard])} divided by the one at {label([easy])}: Adam, SGD"
        yield per_seed(ordered, what, ratios, "Fig. 15", of=reached)

    def _sizes(self, lab: Lab, grid: RegressionGrid) -> Iterable[Check]:
        """Checks that layers and heads delay emergence, heads more than layers."""
        points = size_runs(lab)
        for (layers, heads), runs in sorted(points.items()):
            found = [measures.shown(run, learned) for run in runs.values()]
            yield reported(f"plateaus at {label([grid.ablated])}, {layers} layers, {heads} heads", found, "Fig. 13")
        law = measures.law_of(points, tuple(FIG_13), learned)
        for name, paper in FIG_13.items():
            what = f"exponent of {name} (paper: {paper})"
            if isinstance(law, str):
                yield at_least(what, law, 0.0, "Fig. 13")
            else:
                value, interval = exponent_of(law, name)
                yield at_least(what, value, 0.0, "Fig. 13", interval=interval)
        yield measures.exceeds(law, "heads", "layers", "Fig. 13: width slows more than depth")
        yield reported("the power law", str(law), "Fig. 13")
