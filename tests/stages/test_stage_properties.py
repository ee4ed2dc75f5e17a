"""Stages belong to the curve's shape: other units of its values or of its steps give the same stages in those units."""

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
