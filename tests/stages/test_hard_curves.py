"""`detect_stages` against autocorrelated noise, decays, bumps, rounding and resampling.

The curves here come from the tuning seeds, and those for the intervals from seeds of their own.
`benchmarks/stages.py` measures the hold-out.
"""

from __future__ import annotations

import numpy as np
import pytest

from kit.hard_curves import INTERVALS, TUNING, family, noise
from stagelens.stages import detect_stages

COUNT = 40
MANY = 200  # as in the benchmark: a false transition is rare


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("flat, white", 0.05),
        ("flat, 0.5", 0.05),
        ("flat, 0.8", 0.05),
        ("flat, 0.95", 0.3),
        ("moving averages", 0.3),
        ("decays", 0.1),
        ("rounded constants", 0.0),
    ],
)
def test_curves_without_transitions_have_none(name: str, most: float) -> None:
    found = [len(detect_stages(c.steps, c.values).transitions) for c in family(name, TUNING, MANY)]
    assert np.mean(found) <= most


@pytest.mark.parametrize(("name", "least"), [("drops", 0.9), ("bumps", 0.95)])
def test_the_number_is_right_and_times_are_within_5_percent(name: str, least: float) -> None:
    curves = family(name, TUNING, COUNT)
    found = [detect_stages(c.steps, c.values).transitions for c in curves]
    right = [(c, f) for c, f in zip(curves, found, strict=True) if len(c.times) == len(f)]
    assert len(right) >= least * COUNT
    errors = [c.errors([t.at for t in f]).max() for c, f in right if f]
    assert np.mean(np.array(errors) < 0.05) >= 0.95


def test_plateaus_around_a_bump_have_unbiased_levels() -> None:
    """The bump goes up and comes back, so the plateaus before and after it have the same level, 0."""
    off = []
    for curve in family("bumps", TUNING, COUNT):
        plateaus = detect_stages(curve.steps, curve.values).plateaus
        off += [plateaus[0].level, plateaus[-1].level]
    assert abs(np.mean(off)) < 0.1  # noise widths
    assert np.median(np.abs(off)) < 0.3


def test_intervals_contain_the_truth() -> None:
    inside = []
    for curve in family("drops", INTERVALS, 2 * COUNT):
        found = detect_stages(curve.steps, curve.values).transitions
        if len(found) == len(curve.times):
            for stage, at, drop in zip(found, curve.times, curve.drops, strict=True):
                assert stage.at_low <= stage.at <= stage.at_high and stage.drop_low < stage.drop < stage.drop_high
                inside.append((stage.at_low <= at <= stage.at_high, stage.drop_low <= drop <= stage.drop_high))
    assert np.mean(inside, axis=0).min() >= 0.93


def test_strength_is_the_drop_in_standard_errors() -> None:
    """Two plateaus of 100 points in white noise of 0.1: a drop of 1 is 1 / (0.1 sqrt(2 / 100)) standard errors."""
    rng = np.random.default_rng(0)
    values = np.repeat([1.0, 0.0], 100) + 0.1 * rng.normal(size=200)
    (found,) = detect_stages(np.arange(200), values).transitions
    assert found.strength == pytest.approx(1 / (0.1 * np.sqrt(2 / 100)), rel=0.15)


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_the_interval_of_a_drop_has_the_width_that_theory_gives(rho: float) -> None:
    """The mean of n autocorrelated points varies as the mean of n (1 - rho) / (1 + rho) independent ones."""
    values = np.repeat([1.0, 0.0], 1000) + 0.1 * noise(np.random.default_rng(0), 2000, rho)
    (found,) = detect_stages(np.arange(2000), values).transitions
    error = 0.1 * np.sqrt((1 + rho) / (1 - rho) / 1000)
    expected = 1.96 * np.sqrt(2) * np.hypot(error, 0.006)  # 0.6% of the drop: the ends of the move
    assert found.drop_high - found.drop == pytest.approx(expected, rel=0.15)


def test_the_result_explains_itself() -> None:
    steps, rng = np.arange(200.0), np.random.default_rng(0)
    assert "constant" in detect_stages(steps, np.ones(200)).explanation
    assert "falls steadily" in detect_stages(steps, np.exp(-steps / 50)).explanation
    assert "rises steadily" in repr(detect_stages(steps, -np.exp(-steps / 50)))
    flat = detect_stages(steps, 1 + 0.03 * rng.normal(size=200)).explanation
    start, wander = flat.rsplit(" ", 1)
    assert start == "one plateau: nothing exceeds the wander of"
    assert float(wander) == pytest.approx(0.03, rel=0.2)
    assert "too few" in detect_stages([1, 2, 3], [3, 2, 1]).explanation
    assert "weakest" in detect_stages(steps, steps > 100).explanation
