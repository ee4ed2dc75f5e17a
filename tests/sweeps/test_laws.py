"""Power-law fits: known exponents are found, with intervals that cover them; impossible fits raise one line."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from stagelens.base.errors import UsageError

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


PAIRS = np.stack([T, D], axis=1)  # two columns
ONE = np.geomspace(1, 64, 10)[:, None]
# columns [point, column], seeds of each point, noise of a seed and of a point in log space
DESIGNS = {
    "1 seed": (ONE, [1] * 10, 0.2, 0.0),
    "2 seeds": (ONE, [2] * 10, 0.2, 0.0),
    "3 seeds": (ONE, [3] * 10, 0.2, 0.0),
    "5 seeds": (ONE, [5] * 10, 0.2, 0.0),
    "5 points": (ONE[::2], [2] * 5, 0.2, 0.0),
    "points scatter more than seeds": (ONE, [5] * 10, 0.05, 0.3),
    "one point has a second seed": (ONE, [1] * 9 + [2], 0.2, 0.0),
    "one point has a second seed, points scatter": (ONE, [2] + [1] * 9, 0.05, 0.3),
    "one seed at the ends": (ONE, [1, *[5] * 8, 1], 0.2, 0.0),
    "one seed at the ends of 6 points": (ONE[[0, 2, 4, 5, 7, 9]], [1, 5, 5, 5, 5, 1], 0.1, 0.0),
    "fewer seeds towards the end": (ONE, [5] * 7 + [4, 2, 1], 0.2, 0.0),
    "one seed at the ends, points scatter": (ONE, [1, *[5] * 8, 1], 0.05, 0.3),
    "one seed in the middle": (ONE, [10, *[1] * 8, 10], 0.2, 0.0),
    "two columns, one seed at the end of one": (PAIRS, [5, 5, 1] * 4, 0.2, 0.0),
    "two columns, 1 seed": (PAIRS, [1] * 12, 0.2, 0.0),
    "two columns, 3 seeds, points scatter": (PAIRS, [3] * 12, 0.1, 0.2),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_the_95_percent_interval_covers_the_truth_in_95_percent_of_laws(name: str) -> None:
    columns, counts, seed_noise, point_noise = DESIGNS[name]
    rows = np.repeat(np.arange(len(columns)), counts)
    seeds = np.concatenate([np.arange(count) for count in counts])
    named = dict(zip("xy", columns[rows].T, strict=False))
    generator, laws = np.random.default_rng(0), 1000
    covered = np.zeros(len(named))
    for _ in range(laws):
        deviation = point_noise * generator.standard_normal(len(columns))
        noise = deviation[rows] + seed_noise * generator.standard_normal(len(rows))
        law = sl.fit_law(named, 2 * np.prod(columns[rows], axis=1) ** 1.5 * np.exp(noise), seeds=seeds)
        covered += [exponent.low <= 1.5 <= exponent.high for exponent in law.exponents.values()]
    assert (covered >= 0.93 * laws).all()
    if len(set(counts)) == 1:  # else HC3, which covers more if the well-measured points decide
        assert (covered <= 0.97 * laws).all()


def test_the_interval_is_the_t_interval_of_a_textbook() -> None:
    from scipy import stats

    x, y = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.array([1.0, 3.0, 3.0, 9.0, 11.0])
    known, exponent = stats.linregress(np.log(x), np.log(y)), sl.fit_law({"x": x}, y).exponents["x"]
    half = stats.t.ppf(0.975, len(x) - 2) * known.stderr
    np.testing.assert_allclose([exponent.low, exponent.high], [known.slope - half, known.slope + half])


@pytest.mark.parametrize("counts", [[1, 3, 3, 3, 1], [2, 1, 1, 1, 1], [2, 2, 2, 2, 2]])
def test_the_errors_are_those_of_hc3_if_the_points_have_different_numbers_of_seeds(counts: list[int]) -> None:
    from scipy import stats

    generator, grid = np.random.default_rng(0), np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    seeds = [seed for count in counts for seed in range(count)]
    groups = [3 * x**2 * np.exp(0.2 * generator.standard_normal(n)) for x, n in zip(grid, counts, strict=True)]
    found = sl.fit_law({"x": np.repeat(grid, counts)}, np.concatenate(groups), seeds=seeds).exponents["x"]
    design, means = np.stack([np.ones(5), np.log(grid)], axis=1), np.array([np.log(group).mean() for group in groups])
    inverse = np.linalg.inv(design.T @ design)
    errors = means - design @ inverse @ design.T @ means
    shown = 1 - np.diag(design @ inverse @ design.T)
    hc3 = inverse @ (design.T * (errors / shown) ** 2) @ design @ inverse
    plain = inverse * (errors @ errors) / 3
    width = stats.t.ppf(0.975, 3) * np.sqrt((plain if len(set(counts)) == 1 else hc3)[1, 1])
    np.testing.assert_allclose([found.value - found.low, found.high - found.value], width)


def test_a_point_that_alone_decides_an_exponent_has_the_error_of_the_others() -> None:
    x, y = [1.0, 2.0, 4.0, 8.0, 8.0], [1.0, 1.0, 1.0, 1.0, 3.0]
    values = 2 * np.array(x) * np.array(y) * np.exp([0.1, -0.2, 0.15, -0.1, 0.3])
    law = sl.fit_law({"x": [*x, 8.0], "y": [*y, 3.0]}, [*values, values[-1]], seeds=[0] * 5 + [1])
    assert all(np.isfinite([e.low, e.high]).all() and e.low < e.high for e in law.exponents.values())


def test_every_seed_of_a_grid_point_counts_once_and_every_value_without_seeds() -> None:
    x, y = np.array([1.0, 2.0, 4.0, 4.0]), np.array([1.0, 2.5, 4.0, 5.0])
    means = sl.fit_law({"x": x[:3]}, [1.0, 2.5, np.sqrt(20.0)])
    together, apart = sl.fit_law({"x": x}, y, seeds=[0, 0, 0, 1]), sl.fit_law({"x": x}, y)
    assert together.exponents["x"].value == pytest.approx(means.exponents["x"].value)
    assert (together.grid_points, together.points) == (3, 4)
    assert (apart.grid_points, apart.points) == (4, 4)
    assert together.to_dict()["resampled"] == "points"


def test_the_options_of_the_bootstrap_are_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="no effect"):
        law = sl.fit_law({"T": T, "d": D}, T, resamples=10)
    assert law.exponents["T"].value == pytest.approx(1)


def test_censored_points_are_left_out_counted_and_reported() -> None:
    values = 2 * T
    values[-2:] = [1e9, np.nan]
    law = sl.fit_law({"T": T}, values, censored=[False] * (len(T) - 2) + [True, True])
    assert law.exponents["T"].value == pytest.approx(1)
    assert (law.censored, law.points) == (2, len(T) - 2)
    assert np.isnan(law.residuals[-2:]).all()
    assert law.to_dict()["censored"] == 2
    assert "2 censored" in str(law)


def test_a_grid_point_with_a_censored_seed_is_left_out_because_its_other_seeds_are_the_fast_ones() -> None:
    sizes, end = np.repeat(64.0 * 2 ** np.arange(6), 5), 2867.0
    seeds, generator = np.tile(np.arange(5), 6), np.random.default_rng(0)
    found = []
    for _ in range(200):
        lengths = 2 * sizes * np.exp(0.4 * generator.standard_normal(30))
        late = lengths > end
        law = sl.fit_law({"T": sizes}, np.minimum(lengths, end), seeds=seeds, censored=late)
        alone = ~np.isin(sizes, sizes[late])
        assert law.exponents == sl.fit_law({"T": sizes[alone]}, lengths[alone], seeds=seeds[alone]).exponents
        assert (law.points, law.censored) == (alone.sum(), late.sum())
        assert np.array_equal(np.isfinite(law.residuals), alone)
        others = 30 - alone.sum() - late.sum()
        assert (f"with {others} other seeds of their grid points" in str(law)) == (others > 0)
        found.append(law.exponents["T"].value)
    assert np.mean(found) == pytest.approx(1, abs=0.04)  # 0.90 if only the censored seeds are left out


@pytest.mark.parametrize("value", [0.7, 1.1, 3.3, 1e-5])
@pytest.mark.parametrize("points", [3, 7, 11])
def test_values_that_are_all_equal_are_explained_in_full(value: float, points: int) -> None:
    law = sl.fit_law({"T": np.arange(1.0, points + 1)}, [value] * points)
    assert law.r2 == 1  # it was -10 where the mean of equal logarithms differs from them by rounding
    assert law.exponents["T"].value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seeds", [1, 5])
def test_a_saturated_fit_has_neither_r2_nor_intervals_and_gives_the_reason(seeds: int) -> None:
    x, noise = np.tile([1.0, 2.0], seeds), np.repeat(np.linspace(1.0, 1.2, seeds), 2)
    law = sl.fit_law({"x": x}, 3 * x**2 * noise, seeds=np.repeat(np.arange(seeds), 2))
    assert law.exponents["x"].value == pytest.approx(2)
    shape = law.to_dict()
    assert (shape["r2"], shape["exponents"]["x"]["low"], shape["exponents"]["x"]["high"]) == (None, None, None)
    assert shape["problem"] == "a saturated fit has no R2 and no intervals: 2 grid points for 2 unknowns"
    assert "nan" not in str(law)
    assert shape["problem"] in str(law)


def test_seeds_do_not_stand_in_for_missing_grid_points() -> None:
    with pytest.raises(UsageError, match=r"6 values at 2 grid points for 3 unknowns.*add values of x"):
        sl.fit_law({"x": [1.0, 2.0] * 3, "y": [3.0, 5.0] * 3}, [1.0, 2.0] * 3, seeds=[0, 0, 1, 1, 2, 2])


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
        ({"x": [1.0, 2.0, 4.0], "y": [2.0, 8.0, 32.0]}, [1.0, 2.0, 3.0], "are collinear"),
        ({"x": [1.0, 2.0]}, [1.0, 2.0, 3.0], "column 'x' has 2 entries, the values 3"),
    ],
)
def test_what_cannot_be_fitted_is_reported_in_one_line(
    columns: dict[str, list[float]], values: list[float], word: str
) -> None:
    with pytest.raises(UsageError, match=word) as told:
        sl.fit_law(columns, values)
    assert "\n" not in str(told.value)


def test_all_censored_is_reported() -> None:
    with pytest.raises(UsageError, match=r"0 points \(3 more are censored, or seeds of a censored point\)"):
        sl.fit_law({"x": [1.0, 2.0, 3.0]}, [1.0, 2.0, 3.0], censored=[True] * 3)


def test_predicting_without_a_column_names_the_law_s_own() -> None:
    law = sl.fit_law({"T": T, "d": D}, T * D)
    with pytest.raises(UsageError, match="the power law is in T, d; given T"):
        law.predict({"T": [1.0]})
