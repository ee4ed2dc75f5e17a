"""The main components of many readings: what they do together, so that copies of one thing count once.

Multiple factor analysis (Escofier and Pagès, 1994) is a principal component analysis of several tables of numbers.
Each table is first divided by its largest singular value. So 48 heads that do the same weigh as
much as one. Varimax (Kaiser, 1958) then rotates the components so that each belongs to few readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagelens.stages.pieces import Array

BLOCKS = 12  # stretches of equal length; the means over them are what lasts
LASTING = 0.8  # of the variance: what noise leaves at most in these means, so a reading below it weighs nothing
LEAST = 0.02  # of the variance of all readings: a smaller component is left out
MOST = 8  # components
TURNS = 50  # of varimax; it converges in about ten


@dataclass(frozen=True)
class Components:
    """`scores` [point, component] are the model's positions, `shares` [component] their fractions of the variance."""

    scores: Array
    shares: Array


def lasting(values: Array) -> Array:
    """Returns the fraction of the variance of each column of `values` [point, reading] that lasts, [reading].

    That is the variance of the means over `BLOCKS` stretches. White noise has little of it, a lasting change much.
    """
    n = len(values)
    starts = np.unique(np.linspace(0, n, min(BLOCKS, max(n // 3, 1)), endpoint=False).astype(int))
    counts = np.diff(np.append(starts, n))[:, None]
    means = np.add.reduceat(values, starts, axis=0) / counts
    between = np.sum(counts * (means - values.mean(0)) ** 2, axis=0) / n
    return np.asarray(between / np.maximum(values.var(0), 1e-300))


def components(tables: Sequence[Array], rotate: bool = True) -> Components:
    """Returns the components of `tables`, each [point, reading], the largest first. Noise alone has none.

    Each reading is in units of its standard deviation, times a weight from 0 to 1 that says how much of it lasts.
    """
    scaled = [table for values in tables if (table := _scaled(values)).size]
    if not scaled:
        return Components(np.empty((len(tables[0]) if tables else 0, 0)), np.empty(0))
    left, sizes, right = np.linalg.svd(np.hstack(scaled), full_matrices=False)
    shares = sizes**2 / np.sum(sizes**2)
    count = min(int(np.sum(shares >= LEAST)), MOST)
    scores, loadings = (left * sizes)[:, :count], (right.T * sizes)[:, :count]
    if not rotate or count < 2:
        return Components(scores, shares[:count])
    scores = scores @ varimax(loadings)
    shares = np.sum(scores**2, axis=0) / np.sum(sizes**2)
    order = np.argsort(-shares)
    return Components(scores[:, order], shares[order])


def _scaled(values: Array) -> Array:
    weights = np.sqrt(np.clip((lasting(values) - LASTING) / (1 - LASTING), 0.0, 1.0))
    used = weights > 0
    table = (values - values.mean(0))[:, used] / values.std(0)[used] * weights[used]
    return np.asarray(table * (weights.max() / np.linalg.norm(table, 2))) if used.any() else table


def varimax(loadings: Array) -> Array:
    """Returns the rotation [component, component] of `loadings` [reading, component] that makes each large or small.

    It maximizes the variance of the squared loadings of each component.
    """
    rotation = np.eye(loadings.shape[1])
    for _ in range(TURNS):
        turned = loadings @ rotation
        left, _, right = np.linalg.svd(loadings.T @ (turned**3 - turned * np.mean(turned**2, axis=0)))
        rotation, before = left @ right, rotation
        if np.allclose(rotation, before, atol=1e-9):
            break
    return np.asarray(rotation)
