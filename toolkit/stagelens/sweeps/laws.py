"""Power-law fits: a product of powers, fitted to many runs by least squares in log space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from stagelens.base import UsageError, plain

Array = NDArray[np.float64]
COVERAGE = 0.95  # of the confidence intervals
FLAT = 1e-9  # log columns are collinear if their smallest singular value is below this fraction of the largest


@dataclass(frozen=True)
class Exponent:
    """One exponent with its 95% confidence interval; the ends are nan if the fit is saturated."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """`0.498 [0.489, 0.508]`, or the value alone if there is no interval."""
        interval = f" [{self.low:.3f}, {self.high:.3f}]" if np.isfinite(self.low) else ""
        return f"{self.value:.3f}{interval}"


@dataclass(frozen=True)
class Law:
    """A power law: value = constant * product of column ** exponent."""

    constant: float
    exponents: dict[str, Exponent]
    r2: float  # of log value; nan if the fit is saturated
    residuals: Array  # [value] log(measured / fitted); nan where the value is left out
    points: int  # values in the fit; every seed counts
    censored: int  # values that never reached the threshold; they and the other seeds of their grid points are left out
    grid_points: int  # points that the fit goes through: the seeds of a grid point are averaged to one

    @property
    def problem(self) -> str:
        """Why the fit has neither R2 nor confidence intervals; empty if it has them."""
        unknowns = 1 + len(self.exponents)
        if self.grid_points > unknowns:
            return ""
        return f"a saturated fit has no R2 and no intervals: {self.grid_points} grid points for {unknowns} unknowns"

    @property
    def resampled(self) -> str:
        """What the confidence intervals are over: always "points", because the seeds of a grid point count as one."""
        return "points"

    def predict(self, columns: Mapping[str, Sequence[float] | Array]) -> Array:
        """Returns the value of the power law at each row of `columns`, [point]."""
        missing = [name for name in self.exponents if name not in columns]
        if missing:
            raise UsageError(
                f"the power law is in {', '.join(self.exponents)}; given {', '.join(columns) or 'no column'}"
            )
        logs = [exponent.value * _log(name, columns[name]) for name, exponent in self.exponents.items()]
        return np.asarray(self.constant * np.exp(np.sum(logs, axis=0)), dtype=float)

    def to_dict(self) -> dict[str, Any]:
        """Returns what `--json` prints; an unknown R2 or interval end is None."""
        keys = ("constant", "r2", "points", "censored", "grid_points", "resampled", "problem")
        exponents = {name: asdict(exponent) for name, exponent in self.exponents.items()}
        document: dict[str, Any] = plain({key: getattr(self, key) for key in keys} | {"exponents": exponents})
        return document

    def __str__(self) -> str:
        powers = " ".join(f"{k}^{e}" for k, e in self.exponents.items())
        others = int(np.isnan(self.residuals).sum()) - self.censored
        with_them = f" with {others} other seeds of their grid points" if others else ""
        left_out = f"; {self.censored} censored points left out{with_them}" if self.censored else ""
        quality = f"no R2: {self.problem}" if self.problem else f"R2 {self.r2:.4f}"
        return f"{self.constant:.4g} {powers}  ({quality}, {self.points} points{left_out})"


def fit_law(
    columns: Mapping[str, Sequence[float]],
    values: Sequence[float],
    *,
    seeds: Sequence[int] | None = None,
    censored: Sequence[bool] | None = None,
    resamples: int | None = None,
    seed: int | None = None,
) -> Law:
    """Fits values = constant * product of columns ** exponents, all of them [value] and positive.

        law = sl.fit_law({"T": T, "d": d}, plateau_lengths, seeds=seeds)
        law.exponents["d"].value, law.r2

    With `seeds`, the values with the same columns are the seeds of one grid point: the fit goes through the mean of
    their logarithms. Without `seeds`, every value is a grid point of its own. The 95% confidence intervals are t
    intervals over the grid points; if these have different numbers of seeds, their errors are those of HC3.
    `censored` values are left out of the fit and counted. The other seeds of their grid points are left out too: they
    are the ones that were fast enough, so their mean is too small.
    """
    if resamples is not None or seed is not None:
        warn("`resamples` and `seed` of fit_law have no effect; version 0.3 removes them", DeprecationWarning, 2)
    measured = np.asarray(values, dtype=float)
    logs = _design(columns, len(measured))
    slow = _aligned("censored", censored, len(measured), bool)
    _aligned("seeds", seeds, len(measured), np.int64)
    kept = ~(slow if seeds is None else _in_same_point(logs, slow))
    _check(columns, measured, kept)
    design, target = logs[kept], np.log(measured[kept])
    points, means, counts = (design, target, None) if seeds is None else seed_means(design, target)
    _check_points(points, list(columns), int(kept.sum()))
    coefficients = _solve(list(columns), points, means)
    half = half_widths(points, means - points @ coefficients, alike=counts is None or np.ptp(counts) == 0)
    residuals = np.full(len(measured), np.nan)
    residuals[kept] = target - design @ coefficients
    saturated = len(points) == len(coefficients)
    return Law(
        constant=float(np.exp(coefficients[0])),
        exponents={
            name: Exponent(float(value), float(value - width), float(value + width))
            for name, value, width in zip(columns, coefficients[1:], half[1:], strict=True)
        },
        r2=np.nan if saturated else _r2(target, residuals[kept]),
        residuals=residuals,
        points=int(kept.sum()),
        censored=int(slow.sum()),
        grid_points=len(points),
    )


def seed_means(design: Array, target: Array) -> tuple[Array, Array, NDArray[np.int64]]:
    """Returns the distinct rows of `design` [value, unknown], and the mean of `target` [value] and the count of each.

    Every grid point counts once, however many seeds it has. All of its seeds share its deviation from the power law, so
    there is one deviation per grid point.
    """
    points, which = np.unique(design, axis=0, return_inverse=True)
    which = which.ravel()
    counts = np.bincount(which)
    return points, np.asarray(np.bincount(which, target) / counts, dtype=float), counts


def _in_same_point(design: Array, some: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns which rows of `design` [value, unknown] equal one of `some` rows, bool [value]."""
    _, which = np.unique(design, axis=0, return_inverse=True)
    return np.isin(which.ravel(), which.ravel()[some])


def half_widths(design: Array, residuals: Array, alike: bool = True) -> Array:
    """Returns half the width of the t interval of each coefficient, [unknown]; nan if the fit is saturated.

    `design` is [point, unknown]. `residuals` of the least squares are [point]. If the points are `alike`,
    one variance is estimated for all. Otherwise each point has its own, by the HC3 estimator: a mean of few seeds is
    noisier than one of many.
    """
    from scipy.special import stdtrit

    points, unknowns = design.shape
    if points <= unknowns:
        return np.full(unknowns, np.nan)
    influence = design @ np.linalg.inv(design.T @ design)  # [point, unknown]: what a point's error adds to each
    errors = np.full(points, np.sqrt(residuals @ residuals / (points - unknowns)))
    if not alike:
        left = 1 - np.sum(influence * design, axis=1)  # of a point's error that its residual shows
        np.divide(residuals, left, out=errors, where=left > FLAT)  # a point that the fit must go through shows none
    return np.asarray(stdtrit(points - unknowns, (1 + COVERAGE) / 2) * np.sqrt(errors**2 @ influence**2), dtype=float)


def _design(columns: Mapping[str, Sequence[float]], points: int) -> Array:
    """Returns the design matrix, [point, 1 + column]: a column of ones, then the logarithms."""
    if not columns:
        raise UsageError("a power law needs at least one column: none was given")
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
    """Returns `given` as an array with one entry per point; zeros if it is None."""
    array = np.zeros(points, dtype=kind) if given is None else np.asarray(given, dtype=kind)
    if len(array) != points:
        raise UsageError(f"{what} has {len(array)} entries, the values {points}: one per point")
    return array


def _check(columns: Mapping[str, Sequence[float]], values: Array, kept: NDArray[np.bool_]) -> None:
    unknowns = 1 + len(columns)
    if kept.sum() < unknowns:
        lost = f" ({(~kept).sum()} more are censored, or seeds of a censored point)" if not kept.all() else ""
        raise UsageError(f"{kept.sum()} points{lost} for {unknowns} unknowns (a constant and {', '.join(columns)})")
    wrong = values[kept][~(np.isfinite(values[kept]) & (values[kept] > 0))]
    if wrong.size:
        raise UsageError(f"the values hold {wrong[0]:g}: a power law needs positive numbers")
    for name, column in columns.items():
        here = np.asarray(column, dtype=float)[kept]
        if np.ptp(here) == 0:
            raise UsageError(f"column {name!r} has one value only ({here[0]:g}): its exponent needs two or more")


def _check_points(points: Array, names: Sequence[str], values: int) -> None:
    """Raises an error if there are fewer grid points than unknowns, however many seeds each has."""
    if len(points) < 1 + len(names):
        unknowns = f"{1 + len(names)} unknowns (a constant and {', '.join(names)})"
        raise UsageError(f"{values} values at {len(points)} grid points for {unknowns}: add values of {names[0]}")


def _solve(names: Sequence[str], design: Array, target: Array) -> Array:
    """Returns the least-squares coefficients, [1 + column]; raises an error if columns are collinear."""
    centred = design[:, 1:] - design[:, 1:].mean(axis=0)
    sizes = np.linalg.svd(centred / np.linalg.norm(centred, axis=0), compute_uv=False)
    if len(sizes) < len(names) or sizes[-1] < FLAT * sizes[0]:
        raise UsageError(f"columns {', '.join(names)} are collinear: their exponents cannot be separated")
    return np.asarray(np.linalg.lstsq(design, target, rcond=None)[0], dtype=float)


def _r2(target: Array, residuals: Array) -> float:
    if np.ptp(target) == 0:  # their mean may differ from them by rounding
        return 1.0
    return float(1 - residuals @ residuals / np.sum((target - target.mean()) ** 2))
