"""Straight lines through a curve: one through all points, or one around each point."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST = 3  # points that a fitted line needs: with two, R2 is always 1


class LineFit(NamedTuple):
    """The line `slope * x + intercept` and the fraction `r2` of the variance of y that it explains."""

    slope: float
    intercept: float
    r2: float


NO_LINE = LineFit(np.nan, np.nan, np.nan)


def line_fit(x: Any, y: Any) -> LineFit:
    """Returns the least-squares line through the points (x, y), both [point].

        >>> line = line_fit([0, 1, 2, 3], [1, 3, 5, 7])
        >>> round(line.slope, 6), round(line.intercept, 6), round(line.r2, 6)
        (2.0, 1.0, 1.0)

    The exponent of a power law is the slope in log space: `line_fit(np.log(x), np.log(y)).slope`.

    All three numbers are nan if there are fewer than three points, if a number is not finite, or if all x are equal.
    If all y are equal, only `r2` is nan.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(x) < FEWEST or not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0:
        return NO_LINE
    slope, intercept = np.polyfit(x, y, 1)
    spread = ((y - y.mean()) ** 2).sum()
    missed = ((y - slope * x - intercept) ** 2).sum()
    return LineFit(float(slope), float(intercept), float(1 - missed / spread) if spread > 0 else np.nan)


def local_slope(x: Any, y: Any, at: Any, width: float) -> NDArray[np.float64]:
    """Returns the slope of the curve (x, y) at each x in `at`, [place]; noise is smoothed out over `width`.

        >>> x = np.linspace(0, 1, 50)
        >>> local_slope(x, 3 * x, at=[0.2, 0.8], width=0.1).round(6).tolist()
        [3.0, 3.0]

    The slope at a place is that of a line fitted to the points around it. A point at distance z counts with the
    weight exp(-(z / width)^2 / 2), times the spacing of the points there. `x` is increasing, [point]; `y` is [point].
    """
    x, y, at = (np.asarray(values, dtype=np.float64) for values in (x, y, at))
    weight = np.exp(-(((at[:, None] - x) / width) ** 2) / 2) * np.gradient(x)  # [place, point]
    weight /= weight.sum(axis=1, keepdims=True)
    offset = x - (weight @ x)[:, None]
    return np.asarray((weight * offset) @ y / (weight * offset**2).sum(axis=1))
