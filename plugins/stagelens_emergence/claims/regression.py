"""S8 and S9: what the paper states about transformers on single-location regression.

Each budget has its own grid. The quick grids are the smallest that can show a sign, an order or a power law. They use
transformers of width 32 instead of 256, and larger learning rates. Training does not stop when a plateau ends, so the
quick runs have at least 1.4 times the steps of seed 0's plateau at the time the grid was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stagelens import Check, Claim
from stagelens.claims import Lab, at_least, ordered, per_seed, reached, reported
from stagelens_emergence.claims import measures
from stagelens_emergence.claims.measures import Seeds, growing, listed, mean_length
from stagelens_emergence.theory import repetition

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


REGRESSIONS = {
    "quick": RegressionGrid(
        vary_T=tuple(Data(T, d=8) for T in (8, 16, 32)),
        vary_d=tuple(Data(16, d) for d in (4, 8, 16)),
        vary_B=tuple(Data(32, 8, B) for B in (4, 2, 1)),
        further=(Data(T=32, d=4),),
        vary_p=(Data(T=16, d=8), Data(T=16, d=32)),
        p=0.2,
        easy=Data(T=4, d=4),
        hard=Data(T=8, d=4),
        sgd_lr=0.05,
        ablated=Data(T=16, d=8),
        heads=(1, 4),
        layers=(1, 2),
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
    ),
}


def regression(lab: Lab, data: Data, **settings: Any) -> Seeds:
    """Returns the regression of each seed. Quick runs get enough steps for their plateau to end."""
    T, d, B = data
    if lab.budget == "quick":
        enough = min(1.7 * (d * T / B) ** 0.9 + 100, 400)
        if settings.get("optimizer") == "sgd":
            enough = 120 * d**0.4 * T**1.1
        elif settings.get("position") == "fixed":
            enough = 200
        settings = {"steps": measures.next_hundred(enough), **settings}
    return lab.each_seed("emergence/regression", {**data._asdict(), **settings}, probes=("relevant_attention",))


def law_runs(lab: Lab, grid: RegressionGrid) -> dict[Data, Seeds]:
    """Returns the runs that the power law is fitted to."""
    return {data: regression(lab, data) for data in (*grid.vary_T, *grid.vary_d, *grid.vary_B, *grid.further)}


def cross_sample_runs(lab: Lab, grid: RegressionGrid) -> tuple[list[Seeds], list[Seeds]]:
    """Returns the runs at a small and at a large d, with cross-sample repetition and without."""
    with_p, without = ([regression(lab, data, p=p) for data in grid.vary_p] for p in (grid.p, 0.0))
    return with_p, without


def optimizer_runs(lab: Lab, grid: RegressionGrid) -> dict[Data, list[Seeds]]:
    """Returns the runs of Adam and of SGD at the easy and at the hard point, with one layer and head."""
    small: Any = {"layers": 1, "heads": 1}
    sgd: Any = small | {"optimizer": "sgd", "lr": grid.sgd_lr}
    return {data: [regression(lab, data, **small), regression(lab, data, **sgd)] for data in (grid.easy, grid.hard)}


def fixed_runs(lab: Lab, grid: RegressionGrid) -> dict[bool, Seeds]:
    """Returns the runs with a fixed position, with the relevance feature (True) and without."""
    return {feature: regression(lab, grid.ablated, position="fixed", feature=feature) for feature in (True, False)}


def size_runs(lab: Lab, grid: RegressionGrid) -> dict[tuple[int, int], Seeds]:
    """Returns the runs by (layers, heads)."""
    points = {(layers, 4): regression(lab, grid.ablated, layers=layers) for layers in grid.layers}
    return points | {(2, heads): regression(lab, grid.ablated, heads=heads) for heads in grid.heads}


class Laws(Claim):
    """The law is that of Eq. 22 without p, with an exponent each for T and B, so that T/B is a result."""

    id = "S8"
    title = "transformers: T and d delay emergence, B and p accelerate it"
    reference = "2.4, Figs. 3, 11, 12"

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = REGRESSIONS[lab.budget]
        points = law_runs(lab, grid)
        for vary, where in ((grid.vary_T, "Fig. 3 left"), (grid.vary_d, "Fig. 3 left"), (grid.vary_B, "Fig. 3 middle")):
            yield growing(f"plateaus at {label(vary)}", [points[data] for data in vary], learned, where)
        law = measures.law_of(points, Data._fields, learned)
        yield from measures.law_checks(law, Data._fields, 0.95, "0.76 d^1.29 T^0.80 B^-0.80, R2 0.995", "Fig. 3")
        yield from self._cross_sample(lab, grid)

    def _cross_sample(self, lab: Lab, grid: RegressionGrid) -> Iterable[Check]:
        """Checks that p shortens the plateau, and more so at the larger d."""
        p, ds = grid.p, [data.d for data in grid.vary_p]
        with_p, without = cross_sample_runs(lab, grid)
        what = f"plateaus at {label(grid.vary_p[1:])}, p = {p:g}, 0"
        yield growing(what, [with_p[1], without[1]], leaving, "Fig. 3 right")
        speedup = [mean_length(b, leaving) / mean_length(a, leaving) for a, b in zip(with_p, without, strict=True)]
        what = f"factor by which p = {p:g} shortens the plateau at d = {listed(ds)}, means over seeds"
        yield ordered(what, reached([round(factor, 3) for factor in speedup]), "2.4: more so as d increases")
        theory = [round(float(repetition(p, d)), 3) for d in ds]
        yield reported("the same factor in the toy model, sqrt(p^2 d + (1 - p)^2)", theory, "Eq. 22")


class Ablations(Claim):
    """The paper's exponents of layers and heads are 0.06 and 0.16: both delay emergence, heads more."""

    id = "S9"
    title = "optimizer, position, feature, heads and layers"
    reference = "B.3, Figs. 13-15"

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = REGRESSIONS[lab.budget]
        yield from self._optimizers(lab, grid)
        plain = regression(lab, grid.ablated)
        for feature, fixed in fixed_runs(lab, grid).items():
            known = "with" if feature else "without"
            what = f"plateaus at {label([grid.ablated])}: fixed position {known} the feature, random position with it"
            yield growing(what, [fixed, plain], learned, "Fig. 14")
        yield from self._sizes(lab, grid)

    def _optimizers(self, lab: Lab, grid: RegressionGrid) -> Iterable[Check]:
        """Checks that Adam is faster than SGD, and less sensitive to the difficulty of the task."""
        easy, hard, found = grid.easy, grid.hard, optimizer_runs(lab, grid)
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
        points = size_runs(lab, grid)
        for (layers, heads), runs in sorted(points.items()):
            found = [measures.shown(run, learned) for run in runs.values()]
            yield reported(f"plateaus at {label([grid.ablated])}, {layers} layers, {heads} heads", found, "Fig. 13")
        law = measures.law_of(points, ("layers", "heads"), learned)
        values = measures.exponents_of(law, ("layers", "heads"))
        yield at_least("exponents of layers and heads (paper: 0.06, 0.16)", values, 0.0, "Fig. 13")
        yield ordered("exponents of layers, heads", values, "Fig. 13: width slows more than depth")
        yield reported("the power law", str(law), "Fig. 13")
