"""Small differential equations with a known solution, and the times at which flows are recorded."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from kit.tasks import Decay
from stagelens import Event, StagelensError
from stagelens.experiments import recording_times, solve, solving, times

OSCILLATOR = np.array([[0.0, 1.0], [-1.0, 0.0]])
AT = np.linspace(0, 10, 23)


@pytest.mark.parametrize("module", [solving, times])
def test_the_examples_of_the_docstrings_are_true(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted >= 1 and outcome.failed == 0


@pytest.mark.parametrize("method", ["LSODA", "RK45", "Radau"])
def test_an_oscillator_is_a_cosine(method):
    found = solve(lambda t, x: OSCILLATOR @ x, [1.0, 0.0], AT, method=method)
    assert np.array_equal(found.times, AT) and found.states.shape == (23, 2)
    assert np.allclose(found.states[:, 0], np.cos(AT), atol=1e-5)


def test_the_numbers_are_those_of_scipy_with_the_same_options():
    options = {"method": "LSODA", "rtol": 1e-10, "atol": 1e-12}
    found = solve(lambda t, x: -(x**3), [1.0, 2.0], AT, **options)
    expected = solve_ivp(lambda t, x: -(x**3), (0, 10), [1.0, 2.0], t_eval=AT, **options)
    assert np.array_equal(found.states, expected.y.T)


def test_the_jacobian_is_used():
    calls = []

    def jacobian(t, x):
        calls.append(t)
        return 1000 * OSCILLATOR - 1000 * np.eye(2)

    found = solve(lambda t, x: jacobian(t, x) @ x, [1.0, 0.0], [0, 1], method="Radau", jac=jacobian)
    assert calls and np.allclose(found.states[-1], 0, atol=1e-8)


def test_events_are_found_by_name_and_a_terminal_one_ends_the_solution():
    down = Event("down", lambda t, x: x[0], terminal=False, direction=-1)
    end = Event("end", lambda t, x: t - 7.25)
    never = Event("never", lambda t, x: x[0] - 2)
    found = solve(lambda t, x: OSCILLATOR @ x, [1.0, 0.0], AT, events=[down, end, never])
    assert found.events == {"down": pytest.approx(np.pi / 2, abs=1e-6), "end": pytest.approx(7.25)}
    assert found.times[-1] <= 7.25 and len(found.times) == len(found.states) == (AT <= 7.25).sum()


def test_a_solution_may_start_later_and_may_be_of_one_moment():
    found = solve(lambda t, x: -x, [1.0], [3.0, 4.0])
    assert found.states[:, 0] == pytest.approx([1.0, np.exp(-1)])
    assert solve(lambda t, x: -x, [1.0, 2.0], [3.0, 3.0]).states.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_a_solver_that_fails_reports_the_time_that_it_reached():
    with np.errstate(all="ignore"), pytest.raises(StagelensError, match="beyond time 1: Required step size"):
        solve(lambda t, x: x**2, [1.0], np.linspace(0, 2, 21), method="RK45")  # 1 / (1 - t)


def test_a_flow_is_recorded_evenly_and_evenly_in_log_time():
    flow = Decay(Decay.Config(time=50.0, points=7))
    log = np.geomspace(50 / 10**4, 50, 4)
    assert np.array_equal(flow.times(), np.unique(np.concatenate([np.linspace(0, 50, 4), log])))


def test_times_around_an_event_are_added_within_the_flow():
    found = recording_times(10, even=2, around=[(9, 11, 5), (-1, 1, 3)])
    assert found.tolist() == [0, 1, 9, 9.5, 10]
    assert recording_times(10, log=2, first=1).tolist() == [0, 1, 10]
    assert recording_times(10).tolist() == [0]
