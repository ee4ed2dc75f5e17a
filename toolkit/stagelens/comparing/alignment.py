"""Alignment: runs of different length and speed on one axis. Pure functions of steps, losses and transition times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stagelens.base import UsageError, unknown

Floats = NDArray[np.float64]

# What each alignment puts on the axis, as its label.
ALIGNMENTS = {
    "step": "training step",
    "fraction": "fraction of training",
    "loss": "fraction of the way from the first to the lowest loss",
    "stage": "stage (k: the k-th transition)",
}

UNBOUNDED = ("step", "fraction")  # alignments on which a time beyond the run has a position; the others end with it


def check_alignment(name: str) -> str:
    """`name` if it is an alignment, else an error that lists them."""
    if name not in ALIGNMENTS:
        raise unknown("alignment", name, ALIGNMENTS)
    return name


def by_fraction(steps: ArrayLike, end: float) -> Floats:
    """`steps` [point] as fractions of `end`, the last step of the whole training."""
    if not end > 0:
        raise UsageError(f"fraction of training: the training ends at step {end:g}, so it has no fractions")
    return _floats(steps) / end


def by_loss(steps: ArrayLike, loss_steps: ArrayLike, losses: ArrayLike) -> Floats:
    """`steps` [point] as the fraction of the way from the first to the lowest loss that was made by then, 0 to 1.

    The loss is taken as the lowest so far, so that a run never goes back; between its steps it is interpolated.
    """
    lowest = np.minimum.accumulate(_floats(losses))
    if not len(lowest) or not lowest[0] > lowest[-1]:
        raise UsageError("alignment by loss: the loss never falls below its first value; align by step or fraction")
    progress = (lowest[0] - lowest) / (lowest[0] - lowest[-1])
    return np.asarray(np.interp(_floats(steps), _floats(loss_steps), progress))


def by_stage(steps: ArrayLike, transitions: Sequence[float], first: float, last: float) -> Floats:
    """`steps` [point] with the run's stages stretched onto 0..1, 1..2, ...

    The run's `first` step goes to 0, its k-th transition to k, its `last` step to the number of transitions plus one,
    and what is between goes in straight lines. A transition at the very first or last step leaves no stage there.
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
    """The places of all `axes` (each [point], not decreasing) that lie where every one of them reaches, thinned out.

    Empty where they have no place in common.
    """
    low, high = max(axis[0] for axis in axes), min(axis[-1] for axis in axes)
    together = np.unique(np.concatenate([*axes, [low, high]]))
    inside: Floats = together[(together >= low) & (together <= high)]
    thinned = np.linspace(0, len(inside) - 1, min(points, len(inside))).round().astype(int)
    return np.asarray(inside[thinned])


def envelope(grid: Floats, axis: Floats, values: Floats) -> tuple[Floats, Floats]:
    """(low, high), each [position]: a band with straight edges between the positions `grid` that contains a line.

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
    """`values` [point] over `axis` [point] (not decreasing) at the places `grid`.

    Straight lines between points; the label before for `categorical` ones. Where several points share a place (a loss
    that rests), the place gets their mean, or their last label.
    """
    places, inverse = np.unique(axis, return_inverse=True)
    if categorical:
        last = np.flatnonzero(np.append(np.diff(axis) > 0, True))
        return np.asarray(values[last][np.clip(np.searchsorted(places, grid, side="right") - 1, 0, None)])
    mean = np.bincount(inverse, values) / np.bincount(inverse)
    return np.asarray(np.interp(grid, places, mean))


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
