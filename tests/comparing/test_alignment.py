"""Alignments of curves with known positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stagelens.base.errors import UsageError
from stagelens.comparing.alignment import (
    by_fraction,
    by_loss,
    by_stage,
    check_alignment,
    common_grid,
    envelope,
    resample,
)


def test_fraction_is_the_step_over_the_last_step():
    assert by_fraction([0, 50, 200], 200).tolist() == [0, 0.25, 1]


def test_fraction_of_a_training_without_length_is_refused():
    with pytest.raises(UsageError, match="ends at step 0"):
        by_fraction([0], 0)


def test_loss_is_the_fraction_of_the_fall_from_first_to_lowest():
    assert by_loss([0, 10, 20], [0, 10, 20], [4.0, 3.0, 2.0]).tolist() == [0, 0.5, 1]


def test_a_loss_that_rises_again_does_not_take_a_run_back():
    places = by_loss([0, 1, 2, 3], [0, 1, 2, 3], [4.0, 2.0, 3.0, 0.0])
    assert places.tolist() == [0, 0.5, 0.5, 1]


def test_steps_between_two_losses_are_interpolated():
    assert by_loss([5], [0, 10], [1.0, 0.0]).tolist() == [0.5]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_loss_that_is_not_finite_is_neither_first_nor_lowest(bad):
    progress = by_loss([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [bad, 4.0, bad, 2.0, 0.0])
    assert progress.tolist() == [0, 0, 0.25, 0.5, 1]


def test_a_loss_that_never_falls_cannot_be_aligned():
    with pytest.raises(UsageError, match="never falls"):
        by_loss([0, 1], [0, 1], [1.0, 1.5])


def test_stages_are_stretched_onto_integers():
    places = by_stage([0, 50, 100, 250, 400, 1000], [100, 400], 0, 1000)
    assert places.tolist() == [0, 0.5, 1, 1.5, 2, 3]


def test_runs_of_different_speed_meet_at_their_transitions():
    slow, fast = np.array([100.0, 800.0]), np.array([10.0, 30.0])
    assert by_stage(slow, slow.tolist(), 0, 1000).tolist() == by_stage(fast, fast.tolist(), 0, 50).tolist() == [1, 2]


def test_a_transition_at_the_end_or_start_leaves_no_stage_there():
    assert by_stage([0, 10], [10], 0, 10).tolist() == [0, 1]
    assert by_stage([0, 10], [0], 0, 10).tolist() == [1, 2]


def test_without_transitions_there_is_no_stage_to_align_by():
    with pytest.raises(UsageError, match="no transition"):
        by_stage([0, 1], [], 0, 1)


@given(st.lists(st.integers(1, 999), min_size=1, max_size=8, unique=True).map(sorted))
def test_the_stage_axis_rises_and_keeps_the_order_of_steps(transitions):
    steps = np.arange(1001)
    places = by_stage(steps, transitions, 0, 1000)
    assert (np.diff(places) > 0).all()
    assert places[0] == 0 and places[-1] == len(transitions) + 1
    assert places[transitions].tolist() == list(range(1, len(transitions) + 1))


def test_an_unknown_alignment_names_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown alignment 'stages' .*'stage'.*fraction"):
        check_alignment("stages")


def test_the_common_grid_ends_where_the_first_axis_does():
    grid = common_grid([np.array([0.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0])])
    assert grid.tolist() == [1, 2, 3]


def test_the_common_grid_is_thinned_out_but_keeps_its_ends():
    grid = common_grid([np.linspace(0, 1, 5001)], points=100)
    assert len(grid) == 100 and grid[0] == 0 and grid[-1] == 1


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_envelope_on_a_thinned_grid_contains_the_line_everywhere(seed, resting):
    random = np.random.default_rng(seed)
    axis = np.sort(random.uniform(size=1000))
    if resting:  # an axis on which many points share a position, as by a loss on a plateau
        axis = axis.round(2)
    values = random.standard_cauchy(1000)
    grid = common_grid([axis, np.linspace(0.05, 0.9, 500)], points=37)
    low, high = envelope(grid, axis, values)
    here = (axis >= grid[0]) & (axis <= grid[-1])
    assert (np.interp(axis[here], grid, low) <= values[here] + 1e-9 * abs(values[here])).all()
    assert (np.interp(axis[here], grid, high) >= values[here] - 1e-9 * abs(values[here])).all()
    assert low.min() >= values.min() and high.max() <= values.max()


def test_the_envelope_on_a_grid_of_all_points_is_the_line():
    axis, values = np.array([0.0, 1.0, 3.0]), np.array([5.0, -2.0, 7.0])
    low, high = envelope(axis, axis, values)
    assert low.tolist() == high.tolist() == values.tolist()


def test_resampling_a_line_gives_the_line():
    axis = np.array([0.0, 1.0, 5.0])
    assert resample(np.array([0.5, 3.0]), axis, 2 * axis).tolist() == [1, 6]


def test_points_that_share_a_position_count_as_their_mean():
    assert resample(np.array([1.0]), np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0, 9.0])).tolist() == [3]


def test_a_resampled_line_starts_from_the_last_of_the_points_that_share_a_position():
    axis, values = np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0, 9.0])
    assert resample(np.array([0.5, 1.5]), axis, values).tolist() == [1, 6.5]


@given(st.integers(0, 2**32 - 1))
def test_a_resampled_line_is_inside_its_envelope(seed):
    random = np.random.default_rng(seed)
    axis, values = np.sort(random.uniform(size=50)).round(1), random.standard_normal(50)
    grid = common_grid([axis, np.linspace(0.2, 0.8, 31)])
    low, high = envelope(grid, axis, values)
    line = resample(grid, axis, values)
    assert (low <= line + 1e-12).all() and (line <= high + 1e-12).all()


def test_labels_are_not_mixed():
    axis, codes = np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 2.0, 1.0, 2.0])
    assert resample(np.array([0.9, 1.0, 1.9, 2.0]), axis, codes, categorical=True).tolist() == [0, 1, 1, 2]
