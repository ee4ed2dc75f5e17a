"""Alignments: pure functions that put the steps of runs on a common axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stagelens.base import UsageError, unknown

Floats = NDArray[np.float64]

# The label of the axis for each alignment.
ALIGNMENTS = {
    "step": "training step",
    "fraction": "fraction of training",
    "loss": "fraction of the way from the first to the lowest loss",
    "stage": "stage (k: the k-th transition)",
}

UNBOUNDED = ("step", "fraction")  # alignments with positions beyond the end of the run


def check_alignment(name: str) -> str:
    """Returns `name` if it is an alignment; else raises an error that lists them."""
    if name not in ALIGNMENTS:
        raise unknown("alignment", name, ALIGNMENTS)
    return name


def by_fraction(steps: ArrayLike, end: float) -> Floats:
    """Returns `steps` [point] as fractions of `end`, the last step of the training."""
    if not end > 0:
        raise UsageError(f"fraction of training: the training ends at step {end:g}, so it has no fractions")
    return _floats(steps) / end


def by_loss(steps: ArrayLike, loss_steps: ArrayLike, losses: ArrayLike) -> Floats:
    """Returns for each of `steps` [point] the fraction, 0 to 1, of the way from the first to the lowest loss.

    The lowest finite loss so far counts, so the axis never goes back. Between its steps it is interpolated.
    """
    there = np.isfinite(_floats(losses))
    lowest = np.minimum.accumulate(_floats(losses)[there])
    if not len(lowest) or not lowest[0] > lowest[-1]:
        raise UsageError("alignment by loss: the loss never falls below its first value; align by step or fraction")
    progress = (lowest[0] - lowest) / (lowest[0] - lowest[-1])
    return np.asarray(np.interp(_floats(steps), _floats(loss_steps)[there], progress))


def by_stage(steps: ArrayLike, transitions: Sequence[float], first: float, last: float) -> Floats:
    """Returns `steps` [point] with the intervals between transitions stretched onto 0..1, 1..2, ...

    The `first` step of the run maps to 0, its k-th transition to k, and its `last` step to the number of transitions
    plus one. Between them the map is linear. There is no interval before a transition at the first step, or after one
    at the last.
    """
    times = _floats(transitions)
    if not len(times):
        raise UsageError("alignment by stage: there is no transition; align by step, fraction or loss")
    if (np.diff(times) <= 0).any() or times[0] < first or times[-1] > last:
        raise UsageError(f"alignment by stage: transitions must increase within {first:g} to {last:g}, got {times}")
    knots, places = times, np.arange(1.0, len(times) + 1)
    if first < times[0]:
        knots, places = np.append(first, knots), np.append(0.0, places)
    if last > times[-1]:
        knots, places = np.append(knots, last), np.append(places, len(times) + 1.0)
    return np.asarray(np.interp(_floats(steps), knots, places))


def common_grid(axes: Sequence[Floats], points: int = 400) -> Floats:
    """Returns at most `points` positions of `axes` (each [point], not decreasing) that lie within all of them.

    It is empty if the axes do not overlap.
    """
    low, high = max(axis[0] for axis in axes), min(axis[-1] for axis in axes)
    together = np.unique(np.concatenate([*axes, [low, high]]))
    inside: Floats = together[(together >= low) & (together <= high)]
    thinned = np.linspace(0, len(inside) - 1, min(points, len(inside))).round().astype(int)
    return np.asarray(inside[thinned])


def envelope(grid: Floats, axis: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Returns (low, high), each [position]: a band with straight edges between positions `grid` that contains a line.

    The line goes through `values` [point] over `axis` [point] (not decreasing). A point between two positions of the
    grid widens the band at both, so a spike that the grid passes over is inside the band. Without such points the band
    is the line itself.
    """
    low: Floats = np.interp(grid, axis, values)
    high = low.copy()
    reached = (axis >= grid[0]) & (axis <= grid[-1])
    before = np.searchsorted(grid, axis[reached], side="right") - 1
    after = np.searchsorted(grid, axis[reached], side="left")
    for position in (before, after):  # the same one for a point that lies on the grid
        np.minimum.at(low, position, values[reached])
        np.maximum.at(high, position, values[reached])
    return low, high


def resample(grid: Floats, axis: Floats, values: Floats, categorical: bool = False) -> Floats:
    """Returns `values` [point] over `axis` [point] (not decreasing) at the positions `grid`.

    Values are interpolated linearly; a `categorical` one is the last label before the position. If several points share
    a position (aligned by a loss that plateaus), it gets their mean, or their last label; next to it the line goes to
    the first or from the last of them.
    """
    places, inverse = np.unique(axis, return_inverse=True)
    if categorical:
        last = np.flatnonzero(np.append(np.diff(axis) > 0, True))
        return np.asarray(values[last][np.clip(np.searchsorted(places, grid, side="right") - 1, 0, None)])
    mean = np.bincount(inverse, values) / np.bincount(inverse)
    return np.where(np.isin(grid, places), np.interp(grid, places, mean), np.interp(grid, axis, values))


def aligned_median(grid: Floats, lines: Sequence[tuple[Floats, Floats]], transitions: Sequence[ArrayLike]) -> Floats:
    """Returns the median of `lines`, (axis, values) with [point] each, at the positions `grid`, transitions aligned.

    `transitions` has the positions of the transitions of each line. If all lines have the same number, each line is
    stretched linearly between them, so that its transitions come at the median positions. So the median of staircases
    is a staircase with as many steps. Otherwise the median is that of the lines as they are.
    """
    knots = [np.concatenate([grid[:1], _floats(places), grid[-1:]]) for places in transitions]
    if len({len(own) for own in knots}) == 1 and all((np.diff(own) > 0).all() for own in knots):
        together = np.median(knots, axis=0)
        values = [resample(np.interp(grid, together, own), *line) for own, line in zip(knots, lines, strict=True)]
    else:
        values = [resample(grid, *line) for line in lines]
    return np.asarray(np.median(values, axis=0))


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
