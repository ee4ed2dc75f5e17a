"""Laws: a product of powers fitted to many runs by least squares in log space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.errors import UsageError

Array = NDArray[np.float64]
COVERAGE = (0.025, 0.975)  # the quantiles of the resamples that an interval runs between
FLAT = 1e-9  # log-columns whose smallest singular value is below this part of the largest are one column


@dataclass(frozen=True)
class Exponent:
    """One exponent with its 95% bootstrap interval; the ends are nan where nothing is left to resample."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """value = constant * product of column ** exponent."""

    constant: float
    exponents: dict[str, Exponent]
    r2: float  # of log value
    residuals: Array  # [point] log(measured / fitted); nan where the point is censored
    points: int  # in the fit
    censored: int  # left out of the fit: they never reached the threshold
    resampled: str  # what the intervals were drawn over: "seeds" or "points"

    def predict(self, columns: Mapping[str, Sequence[float] | Array]) -> Array:
        """The law's value at each row of `columns`: [point]."""
        missing = [name for name in self.exponents if name not in columns]
        if missing:
            raise UsageError(f"the law is in {', '.join(self.exponents)}; given {', '.join(columns) or 'no column'}")
        logs = [exponent.value * _log(name, columns[name]) for name, exponent in self.exponents.items()]
        return np.asarray(self.constant * np.exp(np.sum(logs, axis=0)), dtype=float)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an end that is not known is None."""
        exponents = {name: {k: _plain(v) for k, v in asdict(e).items()} for name, e in self.exponents.items()}
        return {
            "constant": self.constant,
            "r2": self.r2,
            "exponents": exponents,
            "points": self.points,
            "censored": self.censored,
            "resampled": self.resampled,
        }

    def __str__(self) -> str:
        powers = " ".join(f"{k}^{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for k, e in self.exponents.items())
        left_out = f"; {self.censored} censored points left out" if self.censored else ""
        return f"{self.constant:.4g} {powers}  (R2 {self.r2:.4f}, {self.points} points{left_out})"


def fit_law(
    columns: Mapping[str, Sequence[float]],
    values: Sequence[float],
    *,
    seeds: Sequence[int] | None = None,
    censored: Sequence[bool] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Law:
    """Fits values = constant * product of columns ** exponents, all of them [point] and positive.

        law = sl.fit_law({"T": T, "d": d}, plateau_lengths, seeds=seeds)
        law.exponents["d"].value, law.r2

    With `seeds`, the intervals come from redrawing the seeds of each combination of columns; without them, or with one
    seed only, from redrawing the points. `censored` points are left out of the fit and counted.
    """
    measured = np.asarray(values, dtype=float)
    logs = _design(columns, len(measured))
    left_out = _aligned("censored", censored, len(measured), bool)
    kept = ~left_out
    _check(columns, measured, kept)
    design, target = logs[kept], np.log(measured[kept])
    coefficients = _solve(list(columns), design, target)
    fitted = design @ coefficients
    residuals = np.full(len(measured), np.nan)
    residuals[kept] = target - fitted
    strata = None if seeds is None else _strata(design, _aligned("seeds", seeds, len(measured), np.int64)[kept])
    low, high = _intervals(design, target, strata, resamples, seed)
    return Law(
        constant=float(np.exp(coefficients[0])),
        exponents={
            name: Exponent(float(coefficients[i]), float(low[i]), float(high[i])) for i, name in enumerate(columns, 1)
        },
        r2=_r2(target, fitted),
        residuals=residuals,
        points=int(kept.sum()),
        censored=int(left_out.sum()),
        resampled="points" if strata is None else "seeds",
    )


def _design(columns: Mapping[str, Sequence[float]], points: int) -> Array:
    """[point, 1 + column]: a column of ones, then the logarithms."""
    if not columns:
        raise UsageError("a law needs at least one column to fit: none was given")
    for name, column in columns.items():
        if len(column) != points:
            raise UsageError(f"column {name!r} has {len(column)} entries, the values {points}: one per point")
    return np.stack([np.ones(points), *(_log(name, column) for name, column in columns.items())], axis=1)


def _log(name: str, column: Sequence[float] | Array) -> Array:
    numbers = np.asarray(column, dtype=float)
    wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
    if wrong.size:
        raise UsageError(f"column {name!r} holds {wrong.flat[0]:g}: a power law needs positive numbers")
    return np.asarray(np.log(numbers), dtype=float)


def _aligned(what: str, given: Sequence[Any] | None, points: int, kind: Any) -> NDArray[Any]:
    """`given` as an array, one entry per point; zeros where there is none."""
    array = np.zeros(points, dtype=kind) if given is None else np.asarray(given, dtype=kind)
    if len(array) != points:
        raise UsageError(f"{what} has {len(array)} entries, the values {points}: one per point")
    return array


def _check(columns: Mapping[str, Sequence[float]], values: Array, kept: NDArray[np.bool_]) -> None:
    unknowns = 1 + len(columns)
    if kept.sum() < unknowns:
        lost = f" ({(~kept).sum()} more are censored)" if not kept.all() else ""
        raise UsageError(f"{kept.sum()} points{lost} for {unknowns} unknowns (a constant and {', '.join(columns)})")
    wrong = values[kept][~(np.isfinite(values[kept]) & (values[kept] > 0))]
    if wrong.size:
        raise UsageError(f"the values hold {wrong[0]:g}: a power law needs positive numbers")
    for name, column in columns.items():
        here = np.asarray(column, dtype=float)[kept]
        if np.ptp(here) == 0:
            raise UsageError(f"column {name!r} has one value only ({here[0]:g}): its exponent needs two or more")


def _solve(names: Sequence[str], design: Array, target: Array) -> Array:
    """Least squares: [1 + column]."""
    centred = design[:, 1:] - design[:, 1:].mean(axis=0)
    sizes = np.linalg.svd(centred / np.linalg.norm(centred, axis=0), compute_uv=False)
    if len(sizes) < len(names) or sizes[-1] < FLAT * sizes[0]:
        raise UsageError(f"columns {', '.join(names)} move together: their exponents cannot be told apart")
    return np.asarray(np.linalg.lstsq(design, target, rcond=None)[0], dtype=float)


def _r2(target: Array, fitted: Array) -> float:
    spread, missed = float(np.sum((target - target.mean()) ** 2)), float(np.sum((target - fitted) ** 2))
    return 1 - missed / spread if spread > 0 else 1.0


def _strata(design: Array, seeds: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """[point] which combination of columns a point belongs to; None where no combination has two seeds."""
    _, strata = np.unique(design, axis=0, return_inverse=True)
    pairs = np.unique(np.stack([strata.ravel(), seeds], axis=1), axis=0)
    return strata.ravel() if len(pairs) > len(np.unique(strata)) else None


def _intervals(
    design: Array, target: Array, strata: NDArray[np.int64] | None, resamples: int, seed: int
) -> tuple[Array, Array]:
    """The ends of the bootstrap interval of each coefficient, each [1 + column]; nan where there is none."""
    points, unknowns = design.shape
    nothing = np.full(unknowns, np.nan)
    if resamples < 1 or (strata is None and points <= unknowns):
        return nothing, nothing
    generator = np.random.default_rng(seed)
    groups = [np.arange(points)] if strata is None else [np.flatnonzero(strata == s) for s in np.unique(strata)]
    drawn = np.zeros((resamples, points))  # how often each point is in each resample
    for group in groups:
        drawn[:, group] = generator.multinomial(len(group), np.full(len(group), 1 / len(group)), size=resamples)
    gram = np.einsum("rp,pi,pj->rij", drawn, design, design)
    moment = np.einsum("rp,pi,p->ri", drawn, design, target)
    solvable = np.linalg.matrix_rank(gram, rtol=1e-12) == unknowns
    if not solvable.any():
        return nothing, nothing
    found = np.linalg.solve(gram[solvable], moment[solvable][..., None])[..., 0]
    low, high = np.quantile(found, COVERAGE, axis=0)
    return low, high


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None
