"""Flows: systems with a known solution."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from kit.tasks import Decay, host_with, run
from stagelens.base.errors import StagelensError
from stagelens.experiments.flow import integrate


def solved(kind, **config):
    return integrate(kind(sl.FlowConfig(**config)))


def series(trajectory, name="x"):
    timeline = sl.Timeline(trajectory.measurements)
    return timeline.steps.astype(float), timeline.series(name)


class Observed(sl.Flow):
    id = "small/observed"

    def observables(self, time, state):
        for name, value in state.items():
            yield sl.Reading(name, value, tuple(f"{name}{i}" for i in range(np.ndim(value))))


class Oscillator(Observed):
    """x'' = -x: x = cos t, v = -sin t."""

    def initial(self):
        return {"x": np.array(1.0), "v": np.array(0.0)}

    def derivative(self, time, state):
        return {"x": state["v"], "v": -state["x"]}


class Logistic(Observed):
    def initial(self):
        return {"x": np.array([0.01, 0.1])}

    def derivative(self, time, state):
        return {"x": state["x"] * (1 - state["x"])}


class Stiff(Observed):
    """x' = -10^4 (x - cos t): after a boundary layer, x = cos t up to 10^-4."""

    def initial(self):
        return {"x": np.array(0.0)}

    def derivative(self, time, state):
        return {"x": -1e4 * (state["x"] - np.cos(time))}


class Shapes(Observed):
    """Arrays of several shapes, each decaying at its own rate."""

    rates = {"scalar": 1.0, "vector": 2.0, "matrix": 0.5}

    def initial(self):
        return {"scalar": 3.0, "vector": np.arange(1.0, 4.0), "matrix": np.arange(1.0, 7.0).reshape(2, 3)}

    def derivative(self, time, state):
        assert {name: np.shape(value) for name, value in state.items()} == {
            "scalar": (),
            "vector": (3,),
            "matrix": (2, 3),
        }
        return {name: -self.rates[name] * state[name] for name in reversed(list(state))}


class Blowup(Observed):
    """x' = x^2 from 1: x = 1 / (1 - t), which ends at time 1."""

    def initial(self):
        return {"x": np.array(1.0)}

    def derivative(self, time, state):
        return {"x": state["x"] ** 2}


@pytest.mark.parametrize("method", ["LSODA", "RK45", "DOP853", "Radau", "BDF"])
def test_the_harmonic_oscillator_by_every_method(method):
    found = solved(Oscillator, time=10.0, points=50, method=method, rtol=1e-7, atol=1e-9)
    times, x = series(found)
    assert found.error == "" and times[0] == 0 and times[-1] == 10.0 and len(times) >= 45
    assert np.allclose(x, np.cos(times), atol=2e-4)
    assert np.allclose(series(found, "v")[1], -np.sin(times), atol=2e-4)


def test_logistic_growth():
    times, x = series(solved(Logistic, time=15.0))
    start = np.array([0.01, 0.1])
    assert np.allclose(x, start / (start + (1 - start) * np.exp(-times)[:, None]), atol=1e-7)


def test_a_stiff_system():
    times, x = series(solved(Stiff, time=3.0))
    late = times > 0.01
    assert np.allclose(x[late], np.cos(times[late]), atol=2e-4)


def test_tighter_tolerances_give_smaller_errors():
    def error(rtol):
        times, x = series(solved(Oscillator, time=20.0, rtol=rtol, atol=rtol))
        return np.abs(x - np.cos(times)).max()

    assert error(1e-10) < 1e-7 < error(1e-4)


def test_a_state_of_several_arrays_keeps_names_and_shapes():
    found = solved(Shapes, time=2.0, points=10)
    for name, start in Shapes(sl.FlowConfig()).initial().items():
        times, values = series(found, name)
        expected = np.exp(-Shapes.rates[name] * times).reshape(-1, *[1] * np.ndim(start)) * start
        assert np.allclose(values, expected, rtol=1e-6)


def test_a_terminal_event_ends_the_flow_at_its_time():
    found = solved(Decay, time=5.0)
    assert found.events == pytest.approx({"three quarters": np.log(4 / 3), "half": np.log(2)}, abs=1e-7)
    times, x = series(found, "loss")
    assert times[-1] == pytest.approx(np.log(2), abs=1e-7) and x[-1] == pytest.approx(0.5, abs=1e-7)
    assert np.allclose(x, np.exp(-times), atol=1e-7)


def test_an_event_that_never_happens_has_no_time():
    assert solved(Decay, time=0.1).events == {}


def test_a_direction_counts_only_its_crossings():
    class Crossings(Oscillator):
        def events(self):
            return [sl.Event(name, lambda t, s: float(s["x"]), False, d) for name, d in (("down", -1), ("up", 1))]

    assert solved(Crossings, time=7.0).events == pytest.approx({"down": np.pi / 2, "up": 3 * np.pi / 2}, abs=1e-6)


@pytest.mark.parametrize("method", ["LSODA", "RK45", "BDF"])
def test_a_flow_that_blows_up_keeps_what_was_solved_before(method):
    found = solved(Blowup, time=2.0, points=60, method=method)
    times, x = series(found)
    assert "stored up to time 1" in found.error
    early = times < 0.9
    assert early.sum() > 10 and np.allclose(x[early], 1 / (1 - times[early]), rtol=1e-5)
    assert times[-1] == pytest.approx(1.0, abs=1e-5)


def test_a_derivative_that_is_never_finite_keeps_the_start():
    class Nowhere(Blowup):
        def derivative(self, time, state):
            return {"x": np.log(-state["x"])}

    found = solved(Nowhere, time=2.0)
    assert "not finite at time 0" in found.error and len(found.measurements) == 1


def test_a_derivative_of_other_names_is_reported():
    class Misnamed(Blowup):
        def derivative(self, time, state):
            return {"y": state["x"]}

    with pytest.raises(StagelensError, match=r"names \['y'\], the state has \['x'\]"):
        solved(Misnamed)


def test_a_flow_runs_as_a_run_and_its_observers_see_every_reading(tmp_path):
    class Observer:
        seen = []

        @sl.hookimpl
        def stagelens_reading_recorded(self, run, step, readings):
            self.seen.append((step, readings[0].values))

    found = run(Decay, tmp_path, host_with(Observer()))
    assert (found.status, found.manifest.kind, found.manifest.steps) == ("finished", "flow", 5.0)
    assert found.manifest.events["half"] == pytest.approx(np.log(2), abs=1e-7)
    assert [step for step, _ in Observer.seen] == found.timeline.steps.tolist()
    assert [value for _, value in Observer.seen] == found.timeline.series("loss").tolist()
    with pytest.raises(StagelensError, match="is a flow"):
        found.model_at(0)
    again = run(Decay, tmp_path, resume=True)
    assert again.folder == found.folder and again.timeline.steps.tolist() == found.timeline.steps.tolist()


def test_a_flow_that_fails_is_a_failed_run_with_its_records(tmp_path):
    found = run(Blowup, tmp_path, settings={"time": 2.0, "points": 50})
    assert found.status == "failed" and "stored up to time 1" in found.manifest.error
    assert len(found.timeline.steps) > 20
