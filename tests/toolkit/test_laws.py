"""Laws: known powers come back, with intervals that cover them; what cannot be fitted is told in one line."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from stagelens.errors import UsageError

T, D = (grid.ravel().astype(float) for grid in np.meshgrid([10, 20, 40, 80], [5, 15, 45], indexing="ij"))


def test_an_exact_law_comes_back_exactly() -> None:
    law = sl.fit_law({"T": T, "d": D}, 3 * T**2 * D**-0.5)
    assert law.constant == pytest.approx(3)
    assert law.exponents["T"].value == pytest.approx(2)
    assert law.exponents["d"].value == pytest.approx(-0.5)
    assert law.exponents["d"].low == pytest.approx(-0.5)
    assert law.exponents["d"].high == pytest.approx(-0.5)
    assert law.r2 == pytest.approx(1)
    assert np.abs(law.residuals).max() < 1e-12
    np.testing.assert_allclose(law.predict({"T": [7.0], "d": [9.0]}), [3 * 49 / 3])


def test_r2_and_residuals_are_those_of_the_logarithms() -> None:
    x, y = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.0, 3.0, 3.0, 9.0])
    law = sl.fit_law({"x": x}, y)
    slope, intercept = np.polyfit(np.log(x), np.log(y), 1)
    residuals = np.log(y) - intercept - slope * np.log(x)
    np.testing.assert_allclose(law.residuals, residuals)
    assert law.exponents["x"].value == pytest.approx(slope)
    assert law.r2 == pytest.approx(1 - np.sum(residuals**2) / np.sum((np.log(y) - np.log(y).mean()) ** 2))


def test_the_interval_over_seeds_covers_the_truth_about_as_often_as_it_says() -> None:
    generator, covered, trials = np.random.default_rng(0), 0, 200
    x, seeds = np.tile([1.0, 3.0, 9.0, 27.0], 20), np.repeat(np.arange(20), 4)
    for trial in range(trials):
        y = x**1.5 * np.exp(0.3 * generator.standard_normal(len(x)))
        exponent = sl.fit_law({"x": x}, y, seeds=seeds, resamples=300, seed=trial).exponents["x"]
        covered += exponent.low <= 1.5 <= exponent.high
    assert 0.88 <= covered / trials <= 0.99


def test_seeds_are_redrawn_within_their_combination_and_points_where_there_is_one_seed() -> None:
    x, y = np.array([1.0, 2.0, 4.0] * 2), np.array([1.0, 2.5, 4.0, 1.1, 2.4, 4.2])
    assert sl.fit_law({"x": x}, y, seeds=[0, 0, 0, 1, 1, 1]).resampled == "seeds"
    assert sl.fit_law({"x": x[:3]}, y[:3], seeds=[0, 0, 0]).resampled == "points"
    assert sl.fit_law({"x": x}, y).resampled == "points"


def test_the_same_seed_gives_the_same_interval() -> None:
    noise = np.exp(0.1 * np.random.default_rng(1).standard_normal(len(T)))
    first, second, other = (sl.fit_law({"T": T, "d": D}, T * noise, seed=seed).exponents["T"] for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_censored_points_are_left_out_counted_and_said() -> None:
    values = 2 * T
    values[-2:] = [1e9, np.nan]
    law = sl.fit_law({"T": T}, values, censored=[False] * (len(T) - 2) + [True, True])
    assert law.exponents["T"].value == pytest.approx(1)
    assert (law.censored, law.points) == (2, len(T) - 2)
    assert np.isnan(law.residuals[-2:]).all()
    assert law.to_dict()["censored"] == 2
    assert "2 censored" in str(law)


def test_without_points_to_spare_the_interval_is_unknown() -> None:
    law = sl.fit_law({"x": [1.0, 2.0]}, [3.0, 12.0])
    assert law.exponents["x"].value == pytest.approx(2)
    assert law.to_dict()["exponents"]["x"]["low"] is None


def test_to_dict_has_the_promised_keys() -> None:
    shape = sl.fit_law({"T": T, "d": D}, T * D).to_dict()
    assert {"constant", "r2", "exponents"} <= set(shape)
    assert set(shape["exponents"]) == {"T", "d"}
    assert set(shape["exponents"]["T"]) == {"value", "low", "high"}


@pytest.mark.parametrize(
    ("columns", "values", "word"),
    [
        ({}, [1.0, 2.0], "at least one column"),
        ({"x": [1.0, 2.0], "y": [2.0, 1.0]}, [1.0, 2.0], "2 points for 3 unknowns"),
        ({"x": [1.0, 2.0, 3.0]}, [1.0, -2.0, 3.0], "the values hold -2: a power law needs positive"),
        ({"x": [1.0, 2.0, 3.0]}, [1.0, float("nan"), 3.0], "the values hold nan"),
        ({"x": [0.0, 2.0, 3.0]}, [1.0, 2.0, 3.0], "column 'x' holds 0"),
        ({"x": [2.0, 2.0, 2.0]}, [1.0, 2.0, 3.0], "column 'x' has one value only"),
        ({"x": [1.0, 2.0, 4.0], "y": [2.0, 8.0, 32.0]}, [1.0, 2.0, 3.0], "move together"),
        ({"x": [1.0, 2.0]}, [1.0, 2.0, 3.0], "column 'x' has 2 entries, the values 3"),
    ],
)
def test_what_cannot_be_fitted_is_told_in_one_line(
    columns: dict[str, list[float]], values: list[float], word: str
) -> None:
    with pytest.raises(UsageError, match=word) as told:
        sl.fit_law(columns, values)
    assert "\n" not in str(told.value)


def test_all_censored_says_so() -> None:
    with pytest.raises(UsageError, match=r"0 points \(3 more are censored\)"):
        sl.fit_law({"x": [1.0, 2.0, 3.0]}, [1.0, 2.0, 3.0], censored=[True] * 3)


def test_predicting_without_a_column_names_the_law_s_own() -> None:
    law = sl.fit_law({"T": T, "d": D}, T * D)
    with pytest.raises(UsageError, match="the law is in T, d; given T"):
        law.predict({"T": [1.0]})
