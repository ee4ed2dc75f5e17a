"""Compares the running filters with scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import maximum_filter1d, percentile_filter

from stagelens.stages.filters import running_maximum, running_median


@pytest.mark.parametrize("n", [3, 10, 52, 400])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 51, 100])
def test_they_are_scipys(n: int, size: int) -> None:
    values = np.random.default_rng(n).normal(size=n).round(1)  # rounded: with ties
    if size <= n:
        assert np.array_equal(running_median(values, size), percentile_filter(values, 50, size=size, mode="mirror"))
    assert np.array_equal(running_maximum(values, size), maximum_filter1d(values, size))
