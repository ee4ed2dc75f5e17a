"""Start, steepest point and end of a transition are those of the data, for any sampling."""

from __future__ import annotations

import numpy as np
import pytest

from stagelens.stages.detect import Stage, detect_stages
from stagelens.stages.timing import crossings

END = 2000.0
# Drops from 1 to 0 around 0, from 10 to 90 % in one unit: the function, its 10 % point, and its steepest half's middle.
DROPS = {
    "logistic": (lambda x: 1 / (1 + np.exp(np.clip(2 * np.log(9) * x, -700, 700))), -0.5, 0.0),
    "exponential": (lambda x: np.exp(-np.log(9) * np.maximum(x, 0)), np.log(1 / 0.9) / np.log(9), None),
    "linear": (lambda x: 1 - np.clip(0.8 * x + 0.5, 0, 1), -0.5, 0.0),
}
SPACINGS = {
    "even": lambda n: np.linspace(0, END, n),
    "log": lambda n: np.append(0.0, np.geomspace(1, END, n - 1)),
}


def the_transition(steps: np.ndarray, values: np.ndarray) -> Stage:
    (found,) = detect_stages(steps, values).transitions
    return found


def drop_of(shape: str, spacing: str, points: int, within: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Steps, values, 10 % point and width of a drop that has `within` points from 10 to 90 %."""
    steps = SPACINGS[spacing](points)
    middle = int(np.searchsorted(steps, 800.0))
    width = within * (steps[middle + 1] - steps[middle])
    drop, begin, _ = DROPS[shape]
    return steps, drop((steps - steps[middle]) / width), steps[middle] + begin * width, width


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("shape", DROPS)
@pytest.mark.parametrize("points", [200, 301, 1000, 4000, 16001])
def test_a_drop_without_noise_is_as_wide_as_it_is(shape: str, spacing: str, points: int) -> None:
    for within in (5, 6, 8, 16, 60, 300):
        steps, values, start, width = drop_of(shape, spacing, points, within)
        if width > END / 16:  # plateaus of at least several widths, as far as the levels are to be seen
            continue
        found = the_transition(steps, values)
        # An exponential drop has a corner, which lies anywhere between two points: with few of them 3 %.
        allowed = 0.035 if shape == "exponential" and within < 8 else 0.02
        assert (found.end - found.start) / width == pytest.approx(1, abs=allowed), within
        assert abs(found.start - start) < 0.04 * width
        assert found.start < found.at < found.end


@pytest.mark.parametrize("points", [200, 1000, 16001])
@pytest.mark.parametrize("shape", ["logistic", "linear"])
def test_the_steepest_point_of_a_symmetric_drop_is_its_middle(shape: str, points: int) -> None:
    for within in (5, 12, 60):
        steps, values, start, width = drop_of(shape, "even", points, within)
        if width <= END / 16:
            assert the_transition(steps, values).at == pytest.approx(start + width / 2, abs=0.03 * width)


def test_the_narrow_drop_of_a_long_curve() -> None:
    """The drop takes 22 of 16,000 steps from 10 to 90 %. The fitted pieces alone would give 43.9 steps."""
    steps = np.arange(16001.0)
    found = the_transition(steps, 1 / (1 + np.exp(np.clip((steps - 8000) * 2 * np.log(9) / 22, -700, 700))))
    assert found.end - found.start == pytest.approx(22, rel=0.01)
    assert found.at == pytest.approx(8000, abs=0.2)
    assert found.sharpness == pytest.approx(1 - 22 / 16000, abs=1e-5)


@pytest.mark.parametrize(("noise", "spread"), [(0.01, 0.05), (0.03, 0.11), (0.1, 0.23)])
def test_noise_does_not_bias_the_width(noise: float, spread: float) -> None:
    """Median and third quartile of |log(width / truth)|. The fitted pieces had quartiles of 0.06, 0.13 and 0.24."""
    rng = np.random.default_rng(0)
    logs = []
    for shape in DROPS:
        for points, within in ((300, 10), (300, 20), (1500, 10), (1500, 40), (1500, 90)):
            steps, values, _, width = drop_of(shape, "even", points, within)
            for _ in range(3):
                noisy = values + noise * rng.normal(size=points)
                found = detect_stages(steps, noisy).transitions
                logs += [np.log((t.end - t.start) / width) for t in found if t.drop > 0.5]
    assert len(logs) >= 40
    assert abs(np.median(logs)) < 0.05
    assert np.percentile(np.abs(logs), 75) < spread


def test_points_that_do_not_get_from_a_tenth_to_nine_tenths_have_no_crossings() -> None:
    u = np.linspace(0, 1, 11)
    assert crossings(u, np.linspace(0.2, 1, 11)) is None
    assert crossings(u, np.linspace(0, 0.8, 11)) is None
    assert crossings(u[:2], np.array([0.0, 1.0])) is None
    assert crossings(u, u) == pytest.approx((0.1, 0.5, 0.9))
