"""Chooses the times at which a flow is recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def recording_times(
    end: float,
    *,
    even: int = 0,
    log: int = 0,
    first: float | None = None,
    around: Sequence[tuple[float, float, int]] = (),
) -> Floats:
    """Returns the times from 0 to `end` at which a flow is recorded, increasing, without repetition.

        >>> recording_times(100, even=3, log=3).round(2).tolist()
        [0.0, 0.01, 1.0, 50.0, 100.0]

    Args:
        end: the last time.
        even: how many times are evenly spaced from 0 to `end`.
        log: how many times are evenly spaced in log time, from `first` to `end`.
        first: the first time of the log-spaced ones; `end / 10**4` if it is None.
        around: (low, high, count) of each stretch that gets `count` evenly spaced times more, such as a sharp drop.
            What lies outside 0..end is left out.
    """
    spaced = [np.zeros(1), np.linspace(0, end, even)]
    if log:
        spaced.append(np.geomspace(end / 10**4 if first is None else first, end, log))
    spaced += [np.linspace(low, high, count) for low, high, count in around]
    times: Floats = np.unique(np.concatenate(spaced))
    return np.asarray(times[(times >= 0) & (times <= end)])
