"""Running filters of a curve, as in `scipy.ndimage`, whose import alone takes longer than showing a run."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]


def running_median(values: Array, size: int) -> Array:
    """The middle (of an even number, the upper one) of the `size` values around each; mirrored at the ends."""
    windows = sliding_window_view(_padded(values, size, "reflect"), size)
    return np.partition(windows, size // 2, axis=-1)[:, size // 2]


def running_maximum(values: Array, size: int) -> Array:
    """The largest of the `size` values around each, in time n log(size): windows of 1, 2, 4, ... are joined."""
    best, width = _padded(values, size, "symmetric"), 1
    while 2 * width <= size:
        best = np.maximum(best[:-width], best[width:])
        width *= 2
    return np.maximum(best[: len(values)], best[size - width :])


def _padded(values: Array, size: int, mode: str) -> Array:
    return np.pad(values, (size // 2, size - size // 2 - 1), mode=mode)  # type: ignore[call-overload,no-any-return]
