"""95% confidence intervals of the times and drops of a curve's moves."""

from __future__ import annotations

import numpy as np

from stagelens.stages.moves import Moves
from stagelens.stages.pieces import Array

NORMAL = 1.96  # standard errors: half of a 95% interval
MOST_RHO = 0.98  # the largest autocorrelation: the residuals of a plateau that slopes would have 1
# With these two, 95% of the intervals contain the truth on 600 curves of the tuning seeds (tests/kit/hard_curves.py).
TAIL = 0.006  # of the larger drop next to it: the standard deviation of a level because moves end slowly
HIDDEN = 0.4  # of the drop: noise hides half of it for no longer
STEEPEST = 0.12  # of the time from 10 to 90%: half of the interval in which noise can place the steepest half of a move


def drop_margins(found: Moves) -> Array:
    """Returns half of the 95% confidence interval of each drop, [move]."""
    errors = level_errors(found)
    return np.asarray(NORMAL * np.hypot(errors[1:], errors[:-1]))


def time_margin(noise: float, duration: float, spacing: float) -> float:
    """Returns half of the 95% confidence interval of a move's time.

    `noise` is the standard deviation of a point as a fraction of the drop, `duration` the time from 10 to 90%, and
    `spacing` the distance between two points. Three errors add in squares: how long noise can hide that half of the
    drop is done, which part of the move is steepest, and where the move lies between two points.
    """
    hidden = min(NORMAL * noise, HIDDEN) / 0.8 * duration
    return float(np.sqrt(hidden**2 + (STEEPEST * duration) ** 2 + (spacing / 2) ** 2))


def level_errors(found: Moves) -> Array:
    """Returns the standard error of each plateau's level, [plateau]: from noise, and from the tails of the moves.

    The noise is measured again from the residuals of all plateaus together: its size as a multiple of `Fit.wander`, and
    its autocorrelation, which `pieces` knows on a grid only.
    """
    fit, levels = found.found, found.levels
    residuals = [(fit.v[a:b] - level) / fit.wander[a:b] for (a, b), level in zip(found.spans, levels, strict=True)]
    count = sum(len(r) for r in residuals)
    square = sum(float(r @ r) for r in residuals)
    rho = sum(float(r[1:] @ r[:-1]) for r in residuals) / max(square, 1e-300)
    rho += (1 + 3 * rho) * len(residuals) / count  # a mean that is estimated hides part of the autocorrelation
    rho = float(np.clip(rho, 0.0, MOST_RHO))
    scale = np.array([_of_mean(len(r), rho) for r in residuals])
    # The mean of each plateau takes scale^2 of the variance away from its residuals.
    variance = square / max(sum(len(r) * (1 - s**2) for r, s in zip(residuals, scale, strict=True)), 1.0)
    noise = scale * np.sqrt(variance) * [np.mean(fit.wander[a:b]) for a, b in found.spans]
    drops = np.abs(found.drops)
    beside = np.maximum(np.append(0.0, drops), np.append(drops, 0.0))
    return np.asarray(np.hypot(noise, TAIL * beside))


def _of_mean(n: int, rho: float) -> float:
    """Standard deviation of the mean of n points of a first-order autoregressive process of variance 1."""
    return float(np.sqrt((n * (1 - rho**2) - 2 * rho * (1 - rho**n)) / (n * (1 - rho)) ** 2))
