"""Stages depend on the shape of a curve: other units of values or steps give the same stages in these units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from kit.curves import Curve, decay, staircase
from stagelens.stages.detect import Stages, detect_stages

few = settings(max_examples=10)
curves = st.builds(
    lambda seed, kind: kind(np.random.default_rng([7, seed])),
    st.integers(0, 10**6),
    st.sampled_from([staircase, decay]),
)
powers = st.integers(-60, 60).map(lambda power: 2.0**power)
factors = st.floats(1e-6, 1e6)


def stages_of(curve: Curve, *, a: float = 1.0, b: float = 0.0, stretch: float = 1.0) -> Stages:
    return detect_stages(stretch * curve.steps, a * curve.values + b)


def assert_the_same(
    found: Stages, plain: Stages, curve: Curve, *, a: float = 1.0, b: float = 0.0, stretch: float = 1.0
):
    assert (found.axis, [stage.kind for stage in found]) == (plain.axis, [stage.kind for stage in plain])
    length, height = float(np.ptp(curve.steps)), float(np.ptp(curve.values))
    for one, two in zip(plain, found, strict=True):
        times = np.array([one.start, one.end, one.at])
        assert (two.start, two.end, two.at) == pytest.approx(stretch * times, rel=1e-6, abs=1e-6 * stretch * length)
        assert two.level == pytest.approx(a * one.level + b, abs=1e-6 * abs(a) * height)
        assert two.drop == pytest.approx(a * one.drop, abs=1e-6 * abs(a) * height)
        assert two.sharpness == pytest.approx(one.sharpness, abs=1e-6)


@few
@given(curves, factors, st.floats(-1e3, 1e3))
def test_shifting_and_scaling_the_values_shifts_and_scales_the_levels_alone(curve, a, offset):
    b = offset * a * float(np.ptp(curve.values))  # a shift of a thousand times the range leaves 13 digits of it
    assert_the_same(stages_of(curve, a=a, b=b), stages_of(curve), curve, a=a, b=b)


@few
@given(curves, factors)
def test_a_curve_upside_down_has_the_same_stages(curve, a):
    assert_the_same(stages_of(curve, a=-a), stages_of(curve), curve, a=-a)


@few
@given(curves, factors)
def test_scaling_the_steps_scales_the_times_alone(curve, stretch):
    assert_the_same(stages_of(curve, stretch=stretch), stages_of(curve), curve, stretch=stretch)


@few
@given(curves, powers, powers)
def test_powers_of_two_change_no_digit(curve, a, stretch):
    """They scale without rounding, so here equal means equal; a log axis rounds its logarithms."""
    found, plain = stages_of(curve, a=a), stages_of(curve)
    assert [(s.kind, s.start, s.end, s.at, s.level / a, s.drop / a, s.sharpness) for s in found] == [
        (s.kind, s.start, s.end, s.at, s.level, s.drop, s.sharpness) for s in plain
    ]
    if plain.axis == "linear":
        stretched = stages_of(curve, stretch=stretch)
        assert [(s.kind, s.start / stretch, s.end / stretch) for s in stretched] == [
            (s.kind, s.start, s.end) for s in plain
        ]


@few
@given(curves)
def test_stages_cover_the_curve_in_order_and_their_levels_lie_within_it(curve):
    stages = stages_of(curve)
    edges = [stages[0].start, *(stage.end for stage in stages)]
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == pytest.approx((curve.steps[0], curve.steps[-1]))
    low, high = curve.values.min(), curve.values.max()
    margin = 0.05 * (high - low)
    for stage in stages:
        assert low - margin <= stage.level <= high + margin
        assert stage.start <= stage.at <= stage.end and 0 <= stage.sharpness <= 1


# Curves whose plateaus are long enough to lose points: 600 points, transitions at 150, 300 and 480.
TIMES, LEVELS = (150.0, 300.0, 480.0), (4.0, 2.5, 1.5, 0.2)
STEPS = np.arange(600.0)


def stairs(seed: int) -> np.ndarray:
    """Transitions of about 30 steps between four levels, with 1% of noise, [step]."""
    drops = -np.diff(LEVELS)
    done = [drop / (1 + np.exp(-(STEPS - time) / 5)) for time, drop in zip(TIMES, drops, strict=True)]
    noise = np.random.default_rng(seed).standard_normal(len(STEPS))
    return LEVELS[0] - sum(done) + 0.01 * noise


def assert_transitions(found: Stages, times, drops, within: float) -> None:
    assert [t.at for t in found.transitions] == pytest.approx(list(times), abs=within)
    assert [t.drop for t in found.transitions] == pytest.approx(list(drops), abs=0.05)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [1 / 2, 1 / 5])
def test_fewer_points_of_each_plateau_leave_the_same_transitions(seed, share):
    """At uniform distances and at random; each plateau keeps 20 points or more."""
    values, generator = stairs(seed), np.random.default_rng(seed)
    drawn = np.sort(generator.choice(len(STEPS), round(share * len(STEPS)), replace=False))
    for kept in (np.arange(0, len(STEPS), round(1 / share)), drawn):
        assert_transitions(detect_stages(STEPS[kept], values[kept]), TIMES, -np.diff(LEVELS), within=10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_curve_that_ends_on_a_plateau_has_the_transitions_before_it(seed, count):
    end = int(TIMES[count]) - 50
    found = detect_stages(STEPS[:end], stairs(seed)[:end])
    assert_transitions(found, TIMES[:count], -np.diff(LEVELS)[:count], within=5)


@pytest.mark.parametrize("seed", range(4))
def test_a_curve_backwards_has_its_transitions_backwards(seed):
    found = detect_stages(STEPS, stairs(seed)[::-1], axis="linear")
    assert_transitions(found, STEPS[-1] - np.array(TIMES)[::-1], np.diff(LEVELS)[::-1], within=5)


@pytest.mark.parametrize("seed", range(4))
def test_a_shift_of_the_steps_shifts_the_times_of_a_linear_axis(seed):
    plain, moved = (detect_stages(STEPS + shift, stairs(seed), axis="linear") for shift in (0.0, 1e5))
    assert len(plain.transitions) == len(moved.transitions) == len(TIMES)
    for one, other in zip(plain, moved, strict=True):
        assert (other.kind, other.level) == (one.kind, pytest.approx(one.level, abs=1e-6))
        assert (other.start, other.end, other.at) == pytest.approx((one.start + 1e5, one.end + 1e5, one.at + 1e5))
