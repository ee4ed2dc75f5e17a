"""Crossings of curves and lines through them, against answers that are known."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy.stats import linregress

from stagelens.timelines import crossings, first_crossing, fits, line_fit, local_slope

STEPS = np.array([0, 10, 20, 30, 40])
FALLING = np.array([8.0, 4.0, 2.0, 1.0, 0.5])


@pytest.mark.parametrize("module", [crossings, fits])
def test_the_examples_of_the_docstrings_are_true(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted >= 2 and outcome.failed == 0


@pytest.mark.parametrize(
    ("values", "level", "options", "expected"),
    [
        (FALLING, 3.0, {}, 15.0),
        (-FALLING, -3.0, {}, 15.0),  # from the other side
        (FALLING, 4.0, {}, 10.0),  # a value on the level has reached it
        (FALLING, 0.4, {}, None),
        (FALLING, 9.0, {"rising": True}, None),  # it lies below and never rises
        (FALLING, 9.0, {"rising": False}, 0.0),  # beyond the level from the start on
        (FALLING, 3.0, {"after": 12}, 15.0),
        (FALLING, 3.0, {"after": 17}, 17.0),  # the line between two points is beyond the level by then
        (FALLING, 3.0, {"after": 22}, 30.0),  # beyond the level at the first point from there on
        (FALLING, 3.0, {"after": 41}, None),
        ([8, 2, 8, 2, 1], 5.0, {}, 5.0),
        ([8, 2, 8, 2, 1], 5.0, {"lasting": True}, 25.0),
        ([8, 2, 8, 2, 8], 5.0, {"lasting": True}, None),
        ([2, 2, 2, 2, 2], 5.0, {"lasting": True, "rising": False}, 0.0),
        ([8, 2, 8, 2, 1], 5.0, {"lasting": True, "after": 32}, 40.0),
        ([8, np.nan, 2, 1, 0], 5.0, {}, 20.0),  # it is unknown when between 0 and 20
        ([np.nan, 8, 2, 1, 0], 5.0, {}, 15.0),
        ([np.inf, 2, 2, 1, 0], 5.0, {}, 10.0),
        ([8, 8, -np.inf, 1, 0], 5.0, {}, 20.0),  # it was 10, where the curve is still at 8
        ([8, 2, 2, np.nan, np.nan], 5.0, {"lasting": True}, 5.0),
        ([np.nan] * 5, 5.0, {}, None),
        ([], 5.0, {}, None),
    ],
)
def test_the_first_crossing(values, level, options, expected):
    found = first_crossing(STEPS[: len(values)], values, level, **options)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_a_crossing_of_a_fine_exponential_is_its_logarithm():
    steps = np.linspace(0, 5, 2001)
    assert first_crossing(steps, np.exp(-steps), 0.1) == pytest.approx(np.log(10), abs=1e-5)


def test_a_line_is_the_one_of_linear_regression():
    random = np.random.default_rng(0)
    x = random.normal(size=40)
    y = 1.7 * x - 0.3 + 0.2 * random.normal(size=40)
    found, expected = line_fit(x, y), linregress(x, y)
    assert found.slope == pytest.approx(expected.slope) and found.intercept == pytest.approx(expected.intercept)
    assert found.r2 == pytest.approx(expected.rvalue**2)


@pytest.mark.parametrize(
    ("x", "y"), [([0, 1], [0, 1]), ([0, 1, np.nan], [0, 1, 2]), ([0, 1, 2], [0, np.inf, 2]), ([1, 1, 1], [0, 1, 2])]
)
def test_there_is_no_line_without_three_finite_points_at_different_x(x, y):
    assert np.isnan(line_fit(x, y)).all()


def test_a_constant_has_a_line_but_no_r2():
    found = line_fit([0, 1, 2], [5, 5, 5])
    assert (found.slope, found.intercept) == (pytest.approx(0, abs=1e-12), pytest.approx(5)) and np.isnan(found.r2)


def test_a_local_slope_follows_the_derivative_of_a_parabola():
    x = np.sort(np.random.default_rng(1).uniform(0, 2, 400))
    at = np.linspace(0.3, 1.7, 8)
    assert np.allclose(local_slope(x, x**2, at, 0.03), 2 * at, atol=0.02)


def test_a_wide_local_slope_is_that_of_the_whole_line_fit():
    x = np.arange(9.0)
    y = np.array([0, 1, 0, 2, 3, 2, 5, 4, 6.0])
    assert local_slope(x, y, [4.0], 1e6) == pytest.approx(line_fit(x, y).slope)
