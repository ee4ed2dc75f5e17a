"""Schedules: planned steps, additional steps while the loss changes, and the same steps after a resume."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from stagelens.experiments.schedule import Schedule

schedules = st.builds(Schedule, log=st.integers(0, 30), even=st.integers(0, 60), refine=st.integers(1, 6))


def walk(schedule, steps, loss, known=()):
    """Returns all measured (step, loss) pairs, continuing from the `known` ones."""
    measured = list(known) or [(0, loss(0))]
    while (step := schedule.next_after(int(measured[-1][0]), steps, measured)) is not None:
        measured.append((step, loss(step)))
    return measured


@given(schedules, st.integers(1, 5000))
def test_the_plan_is_sorted_and_holds_both_ends(schedule, steps):
    plan = schedule.planned(steps)
    assert plan[0] == 0 and plan[-1] == steps
    assert all(a < b for a, b in pairwise(plan))


@given(schedules, st.integers(1, 2000), st.integers(0, 2**32 - 1))
def test_steps_only_grow_end_at_the_last_and_hold_the_whole_plan(schedule, steps, seed):
    losses = np.random.default_rng(seed).normal(size=steps + 1)
    taken = [step for step, _ in walk(schedule, steps, lambda s: float(losses[s]))]
    assert all(a < b for a, b in pairwise(taken))
    assert taken[-1] == steps and set(schedule.planned(steps)) <= set(taken)


@given(schedules, st.integers(1, 2000), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_a_resumed_run_chooses_the_same_steps(schedule, steps, seed, where):
    losses = np.random.default_rng(seed).normal(size=steps + 1)

    def loss(step):
        return float(losses[step])

    whole = walk(schedule, steps, loss)
    kept = whole[: 1 + int(where * (len(whole) - 1))]
    assert walk(schedule, steps, loss, kept) == whole


def test_a_constant_loss_takes_the_plan_alone():
    schedule = Schedule()
    assert [step for step, _ in walk(schedule, 1000, lambda step: 1.0)] == list(schedule.planned(1000))


def test_a_sudden_drop_is_measured_more_densely_than_the_plateaus():
    taken = np.array([s for s, _ in walk(Schedule(log=0, even=20), 2000, lambda s: 1 / (1 + np.exp((s - 1000) / 60)))])
    inside = np.diff(taken[(taken >= 900) & (taken <= 1150)]).max()
    assert inside < 50 and np.diff(taken[taken > 1500]).min() == 100


def test_losses_that_are_not_numbers_do_not_stop_the_schedule():
    assert walk(Schedule(), 100, lambda step: float("nan"))[-1][0] == 100
