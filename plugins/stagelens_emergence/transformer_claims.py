"""What the paper states of transformers, measured: S8 to S12.

Each budget has a grid. The quick ones are the smallest that can show a sign, an order or a power law, on transformers
of width 32 and 64 instead of 256 and with larger learning rates. Training does not stop when a plateau ends, so the
quick runs are given at least 1.4 times the steps that seed 0's plateau took when the grid was chosen. A run that is
still on its plateau at its end is `not by step ...`, is in no order, and is left out of a law as censored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from stagelens import Check, Claim, Law, Run, detect_stages, fit_law
from stagelens.base import UsageError
from stagelens.claims import Lab, at_least, at_most, equal, in_every_seed, ordered, reached, reported
from stagelens.timelines import half_rise
from stagelens_emergence.theory import plateau_length
from stagelens_emergence.transformers import ANSWERING, LEARNED, LEAVING, plateau_of

Settings = Mapping[str, Any]
Seeds = dict[int, Run]


@dataclass(frozen=True)
class Regressions:
    """The grid of S8 and S9. `law` are (T, d, B); the rest is settings over them."""

    law: tuple[tuple[int, int, int], ...]
    in_T: tuple[int, tuple[int, ...]]  # d, and the T that are compared there
    in_d: tuple[int, tuple[int, ...]]  # T, and the d
    in_B: tuple[int, int, tuple[int, ...]]  # T and d, and the B
    repeating: tuple[int, tuple[int, int], float]  # T, a small and a large d, and p
    sgd: float  # its learning rate
    easy: tuple[int, int]  # T, d at which SGD is compared with Adam
    hard: tuple[int, int]
    ablated: tuple[int, int]  # T, d at which position, feature, heads and layers are varied
    heads: tuple[int, ...]
    layers: tuple[int, ...]


REGRESSIONS = {
    "quick": Regressions(
        law=(
            (8, 8, 1),
            (16, 8, 1),
            (32, 8, 1),
            (16, 4, 1),
            (32, 4, 1),
            (16, 16, 1),
            (32, 8, 2),
            (32, 8, 4),
        ),
        in_T=(8, (8, 16, 32)),
        in_d=(16, (4, 8, 16)),
        in_B=(32, 8, (1, 2, 4)),
        repeating=(16, (8, 32), 0.2),
        sgd=0.05,
        easy=(4, 4),
        hard=(8, 4),
        ablated=(16, 8),
        heads=(1, 4),
        layers=(1, 2),
    ),
    "paper": Regressions(
        law=(
            *((T, d, 1) for T in (64, 128, 256, 512) for d in (16, 32, 64, 128)),
            (256, 64, 2),
            (256, 64, 4),
            (256, 64, 8),
        ),
        in_T=(64, (64, 128, 256, 512)),
        in_d=(256, (16, 32, 64, 128)),
        in_B=(256, 64, (1, 2, 4, 8)),
        repeating=(256, (16, 128), 0.1),
        sgd=5e-3,
        easy=(16, 16),
        hard=(64, 32),
        ablated=(128, 32),
        heads=(1, 2, 4, 8),
        layers=(1, 2, 4),
    ),
}


@dataclass(frozen=True)
class Recalls:
    """The grid of S10 to S12: (pairs, tokens). `answering` is the accuracy at which the plateau ends."""

    answering: float
    base: tuple[int, int]
    pairs: tuple[int, ...]  # beside the base's tokens
    tokens: tuple[int, ...]  # beside the base's pairs
    B: tuple[float, ...]
    p: tuple[float, ...]


RECALLS = {
    # 1 / pairs, what a guess among the context's values is worth, is above the paper's 0.05 at quick sizes
    "quick": Recalls(0.5, (4, 16), (3, 4, 8), (8, 16, 32), (2.0, 4.0), (0.5, 1.0)),
    "paper": Recalls(ANSWERING, (32, 256), (8, 16, 32), (64, 128, 256), (2.0, 4.0, 8.0, 16.0), (0.1, 0.5, 0.9)),
}


def regression(lab: Lab, T: int, d: int, B: int = 1, **settings: Any) -> Seeds:
    """A regression with each seed."""
    if lab.budget == "quick":
        enough = min(1.7 * (d * T / B) ** 0.9 + 100, 400)
        if settings.get("optimizer") == "sgd":
            enough = 120 * d**0.4 * T**1.1
        elif settings.get("position") == "fixed":
            enough = 200
        settings = {"steps": _next_hundred(enough), **settings}
    return lab.each_seed("emergence/regression", {"T": T, "d": d, "B": B, **settings}, probes=("relevant_attention",))


def recall(lab: Lab, pairs: int, tokens: int, **settings: Any) -> Seeds:
    """A recall with each seed."""
    if lab.budget == "quick":
        settings = {"steps": _next_hundred(9.9 * pairs**1.6 * tokens**0.5 + 100), **settings}
    return lab.each_seed("emergence/recall", {"pairs": pairs, "tokens": tokens, **settings}, probes=("key_value",))


def _next_hundred(steps: float) -> int:
    return 100 * int(np.ceil(steps / 100))


def lengths(runs: Seeds, threshold: float) -> dict[int, float]:
    """The plateau length of each seed; nan: it outlasts the run."""
    return {seed: plateau_of(run, threshold) for seed, run in runs.items()}


def said(length: float, run: Run) -> float | str:
    """A length as a check shows it."""
    return f"not by step {run.manifest.steps:g}" if isnan(length) else round(length, 1)


def growing(what: str, points: Sequence[Seeds], threshold: float, reference: str) -> Check:
    """In every seed, the plateau gets longer from point to point."""
    each = [lengths(runs, threshold) for runs in points]
    return in_every_seed(
        {
            seed: ordered(
                what, [said(found[seed], runs[seed]) for found, runs in zip(each, points, strict=True)], reference
            )
            for seed in points[0]
        }
    )


def mean_length(runs: Seeds, threshold: float) -> float:
    """The geometric mean over the seeds; nan where one outlasts its run, or has no length at all."""
    found = np.array(list(lengths(runs, threshold).values()))
    return float(np.exp(np.mean(np.log(found)))) if (found > 0).all() else float("nan")


def law_of(points: Mapping[Any, Seeds], names: Sequence[str], threshold: float) -> Law | str:
    """The power law of the plateau length in the columns `names`, or why there is none."""
    found = {point: lengths(runs, threshold) for point, runs in points.items()}
    rows = [(*point, seed, length) for point, by_seed in found.items() for seed, length in by_seed.items()]
    *columns, seeds, measured = zip(*rows, strict=True)
    try:
        return fit_law(dict(zip(names, columns, strict=True)), measured, seeds=seeds, censored=list(np.isnan(measured)))
    except UsageError as error:
        return f"none: {error}"


def law_checks(law: Law | str, names: Sequence[str], r2: float, paper: str, reference: str) -> Iterable[Check]:
    """The law fits, each exponent's interval is on the side of 0 where the paper's is (B's below it, others above)."""
    if isinstance(law, str):
        yield at_least(f"power law in {', '.join(names)}", law, r2, reference)
        return
    yield at_least(f"R2 of the power law in {', '.join(names)} ({law.censored} censored)", law.r2, r2, reference)
    for name in names:
        exponent = law.exponents[name]
        what = f"exponent of {name}: the end of its 95% interval that is nearer to 0"
        yield (
            at_most(what, exponent.high, 0.0, reference)
            if name == "B"
            else at_least(what, exponent.low, 0.0, reference)
        )
    yield reported(f"the law, where the paper has {paper}", str(law), reference)


def exponents_of(law: Law | str, names: Sequence[str]) -> list[float | str]:
    """The exponents of `names`, as a check shows them."""
    return [law if isinstance(law, str) else round(law.exponents[name].value, 3) for name in names]


class Laws(Claim):
    """S8. The law is Eq. 22's without p, with T and B apart, so that T/B is a result."""

    id = "S8"
    title = "transformers: T and d delay emergence, B and p hurry it"
    reference = "2.4, Figs. 3, 11, 12"

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = REGRESSIONS[lab.budget]
        points = {point: regression(lab, *point) for point in grid.law}
        d, Ts = grid.in_T
        yield growing(f"plateau at d = {d}, T = {_list(Ts)}", [points[T, d, 1] for T in Ts], LEARNED, "Fig. 3 left")
        T, ds = grid.in_d
        yield growing(f"plateau at T = {T}, d = {_list(ds)}", [points[T, d, 1] for d in ds], LEARNED, "Fig. 3 left")
        T, d, Bs = grid.in_B
        falling = [points[T, d, B] for B in reversed(Bs)]
        yield growing(f"plateau at T = {T}, d = {d}, B = {_list(Bs[::-1])}", falling, LEARNED, "Fig. 3 middle")
        law = law_of(points, ("T", "d", "B"), LEARNED)
        paper = "0.76 d^1.29 T^0.80 B^-0.80, R2 0.995"
        yield from law_checks(law, ("T", "d", "B"), 0.95, paper, "Fig. 3")
        yield from self._cross_sample(lab, grid)

    def _cross_sample(self, lab: Lab, grid: Regressions) -> Iterable[Check]:
        T, ds, p = grid.repeating
        with_p, without = ([regression(lab, T, d, p=q) for d in ds] for q in (p, 0.0))
        what = f"plateau at T = {T}, d = {ds[1]}, p = {p:g}, 0"
        yield growing(what, [with_p[1], without[1]], LEAVING, "Fig. 3 right")
        hurry = [mean_length(b, LEAVING) / mean_length(a, LEAVING) for a, b in zip(with_p, without, strict=True)]
        what = f"times that p = {p:g} makes the plateau shorter at d = {_list(ds)}, means over seeds"
        shown = reached([round(times, 3) for times in hurry])
        yield ordered(what, shown, "2.4: more so as d increases")
        theory = [round(float(np.sqrt(p**2 * d + (1 - p) ** 2)), 3) for d in ds]
        yield reported("the same for the toy model, sqrt(p^2 d + (1 - p)^2)", theory, "Eq. 22")


class Ablations(Claim):
    """S9. The paper's exponents of layers and heads are 0.06 and 0.16: both slow, heads more."""

    id = "S9"
    title = "optimizer, position, feature, heads and layers"
    reference = "B.3, Figs. 13-15"

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = REGRESSIONS[lab.budget]
        yield from self._optimizers(lab, grid)
        T, d = grid.ablated
        plain = regression(lab, T, d)
        for feature in (True, False):
            fixed = regression(lab, T, d, position="fixed", feature=feature)
            known = "with" if feature else "without"
            what = f"plateau at T = {T}, d = {d}: fixed position {known} the feature, random position with it"
            yield growing(what, [fixed, plain], LEARNED, "Fig. 14")
        yield from self._sizes(lab, grid)

    def _optimizers(self, lab: Lab, grid: Regressions) -> Iterable[Check]:
        small: Any = {"layers": 1, "heads": 1}
        adam = [regression(lab, *at, **small) for at in (grid.easy, grid.hard)]
        sgd = [regression(lab, *at, **small, optimizer="sgd", lr=grid.sgd) for at in (grid.easy, grid.hard)]
        for (T, d), fast, slow in zip((grid.easy, grid.hard), adam, sgd, strict=True):
            yield growing(
                f"plateau at T = {T}, d = {d}, one layer and head: Adam, SGD", [fast, slow], LEARNED, "Fig. 15"
            )
        harder = {}
        for seed in lab.seeds:
            easy, hard = ([lengths(runs[i], LEARNED)[seed] for runs in (adam, sgd)] for i in (0, 1))
            ratios = [b / a for a, b in zip(easy, hard, strict=True)]
            shown = reached([round(ratio, 3) for ratio in ratios])
            what = f"times that (T, d) = {grid.hard} takes longer than {grid.easy}: Adam, SGD"
            harder[seed] = ordered(what, shown, "Fig. 15")
        yield in_every_seed(harder)

    def _sizes(self, lab: Lab, grid: Regressions) -> Iterable[Check]:
        T, d = grid.ablated
        points = {(layers, 4): regression(lab, T, d, layers=layers) for layers in grid.layers}
        points |= {(2, heads): regression(lab, T, d, heads=heads) for heads in grid.heads}
        for (layers, heads), runs in sorted(points.items()):
            found = [said(length, runs[seed]) for seed, length in lengths(runs, LEARNED).items()]
            yield reported(f"plateau at T = {T}, d = {d}, {layers} layers, {heads} heads", found, "Fig. 13")
        law = law_of(points, ("layers", "heads"), LEARNED)
        values = exponents_of(law, ("layers", "heads"))
        yield at_least("exponents of layers and heads (paper: 0.06, 0.16)", values, 0.0, "Fig. 13")
        yield ordered("exponents of layers, heads", values, "Fig. 13: width slows more than depth")
        yield reported("the law", str(law), "Fig. 13")


class Emergence(Claim):
    """S10. The transition is one of the test loss."""

    id = "S10"
    title = "recall emerges; more pairs and more tokens delay it"
    reference = "3.2, Fig. 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = RECALLS[lab.budget]
        pairs, tokens = grid.base
        points = {(n, tokens): recall(lab, n, tokens) for n in grid.pairs}
        points |= {(pairs, v): recall(lab, pairs, v) for v in grid.tokens}
        largest = points[grid.pairs[-1], tokens]
        what = f"transitions of the test loss at {grid.pairs[-1]} pairs, {tokens} tokens"
        found = {seed: len(detect_stages(*run.timeline.scalar("loss")).transitions) for seed, run in largest.items()}
        yield in_every_seed({seed: equal(what, count, 1, "Fig. 4") for seed, count in found.items()})
        end = {seed: float(run.timeline.scalar("accuracy")[1][-1]) for seed, run in largest.items()}
        yield in_every_seed(
            {s: at_least("its last accuracy", round(last, 3), 0.9, "Fig. 4") for s, last in end.items()}
        )
        in_pairs = [points[n, tokens] for n in grid.pairs]
        yield growing(f"plateau at {tokens} tokens, {_list(grid.pairs)} pairs", in_pairs, grid.answering, "Fig. 4")
        in_tokens = [points[pairs, v] for v in grid.tokens]
        yield growing(f"plateau at {pairs} pairs, {_list(grid.tokens)} tokens", in_tokens, grid.answering, "Fig. 4")
        law = law_of(points, ("pairs", "tokens"), grid.answering)
        yield ordered("exponents of tokens, pairs", exponents_of(law, ("tokens", "pairs")), "Fig. 4 right: 0.79, 2.25")
        paper = "0.55 tokens^0.79 pairs^2.25, R2 0.982"
        yield from law_checks(law, ("pairs", "tokens"), 0.9, paper, "Fig. 4 right")


class Repetition(Claim):
    """S11. Without repetition the query stands in the context exactly once; with B it may also be missing (C.1)."""

    id = "S11"
    title = "repetition hurries recall; too much of it overfits"
    reference = "3.2, Figs. 5, 16"

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = RECALLS[lab.budget]
        once = recall(lab, *grid.base)
        in_context = {B: recall(lab, *grid.base, B=B) for B in grid.B}
        cross_sample = {p: recall(lab, *grid.base, p=p) for p in grid.p}
        hurry = []
        for name, kind in (("p", cross_sample), ("B", in_context)):
            some, *_, most = kind
            yield growing(f"test plateau at {name} = {some:g}, without", [kind[some], once], grid.answering, "Fig. 5")
            falling = [*(kind[value] for value in reversed(kind)), once]
            yield self._training(f"{name} = {_list(reversed(kind))}, without", falling, grid.answering)
            yield self._overfits(f"{name} = {most:g}", kind[most])
            hurry.append(mean_length(once, grid.answering) / mean_length(kind[some], grid.answering))
        shown = reached([round(times, 3) for times in hurry])
        what = f"times that p = {grid.p[0]:g}, and that B = {grid.B[0]:g}, makes the test plateau shorter"
        yield ordered(what, shown, "3.2: in-context repetition does more")
        rows = {"without": once} | {f"B = {B:g}": runs for B, runs in in_context.items()}
        rows |= {f"p = {p:g}": runs for p, runs in cross_sample.items()}
        for name, runs in rows.items():
            found = [said(length, runs[seed]) for seed, length in lengths(runs, grid.answering).items()]
            yield reported(f"test plateau, {name}", found, "Fig. 5")

    @staticmethod
    def _training(what: str, points: Sequence[Seeds], threshold: float) -> Check:
        """In every seed, the accuracy on the training distribution gets to `threshold` later from point to point."""
        checks = {}
        for seed in points[0]:
            found = [
                (
                    plateau_length(*runs[seed].timeline.scalar("key_value/train_accuracy"), threshold, rising=True),
                    runs[seed],
                )
                for runs in points
            ]
            checks[seed] = ordered(f"training plateau at {what}", [said(*each) for each in found], "Fig. 16")
        return in_every_seed(checks)

    @staticmethod
    def _overfits(name: str, runs: Seeds) -> Check:
        """Accuracy on what was trained on less that without repetition, at the end."""
        checks = {}
        for seed, run in runs.items():
            train, test = (run.timeline.scalar(s)[1][-1] for s in ("key_value/train_accuracy", "accuracy"))
            what = f"last training accuracy less test accuracy at {name}"
            checks[seed] = at_least(what, round(float(train - test), 3), 0.1, "Fig. 5: overfitting")
        return in_every_seed(checks)


class Circuit(Claim):
    """S12. Of copying and of selecting, the head that does most of it at the end."""

    id = "S12"
    title = "copying and selecting attention rise together with accuracy"
    reference = "C.2, Fig. 17"

    def checks(self, lab: Lab) -> Iterable[Check]:
        grid = RECALLS[lab.budget]
        runs = recall(lab, grid.pairs[-1], grid.base[1])
        rises = {seed: rise_times(run) for seed, run in runs.items()}
        what = "half rises of accuracy, copying and selecting: (last - first) / mean"
        spreads: dict[int, float | str] = {}
        for seed, times in rises.items():
            there = [time for time in times.values() if time is not None]
            spread = (max(there) - min(there)) / float(np.mean(there)) if there else 0.0
            spreads[seed] = round(spread, 3) if len(there) == len(times) else "one of them does not rise"
        yield in_every_seed({seed: at_most(what, spread, 0.1, "Fig. 17") for seed, spread in spreads.items()})
        for name in ("accuracy", "copying", "selecting"):
            found = [time if (time := times[name]) is not None else "none" for times in rises.values()]
            yield reported(f"half rise of {name}, step", found, "Fig. 17")
        for name in ("copying", "selecting"):
            places = [[int(i) for i in strongest(run, name)] for run in runs.values()]
            yield reported(f"layer and head, from 0, that do most of the {name}", places, "C.2")


def strongest(run: Run, name: str) -> tuple[int, int]:
    """The (layer, head) with the most `copying` or `selecting` attention at the end."""
    last = run.timeline.series(f"key_value/{name}")[-1]  # [layer, head]
    layer, head = np.unravel_index(int(last.argmax()), last.shape)
    return int(layer), int(head)


def rise_times(run: Run) -> dict[str, float | None]:
    """The steps of half of the rise of accuracy, and of the strongest heads' copying and selecting attention."""
    steps, accuracy = run.timeline.scalar("accuracy")
    times = {"accuracy": half_rise(steps, accuracy)}
    for name in ("copying", "selecting"):
        layer, head = strongest(run, name)
        times[name] = half_rise(run.timeline.steps, run.timeline.series(f"key_value/{name}")[:, layer, head])
    return {name: None if time is None else round(time, 1) for name, time in times.items()}


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
