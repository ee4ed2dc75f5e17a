"""The flow: a task given by differential equations, which are integrated."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stagelens.base import StagelensError
from stagelens.experiments.config import Config, FlowConfig
from stagelens.experiments.experiment import Experiment
from stagelens.experiments.times import recording_times
from stagelens.timelines import Measurement, Reading, pack

Floats = NDArray[np.float64]
State = Mapping[str, Floats]


def quiet() -> np.errstate:
    """Turns off numpy's warnings, for code that checks for numbers that are not finite."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


@dataclass(frozen=True)
class Event:
    """A zero crossing of `function(time, state)`. A `terminal` event ends the integration.

    `direction` 1 counts only crossings from below, -1 only those from above, 0 both.
    """

    name: str
    function: Callable[[float, Any], float]
    terminal: bool = True
    direction: int = 0


class Flow(Experiment):
    """A differential equation: its initial state, derivative, observables and events."""

    Config: ClassVar[type[Config]] = FlowConfig
    happened: Mapping[str, float] = {}  # first time of each event; set before `times` and `observables` are called

    @abstractmethod
    def initial(self) -> State:
        """Returns the state at time 0; its randomness depends on `self.seed`."""

    @abstractmethod
    def derivative(self, time: float, state: State) -> State:
        """Returns d state / d time, with the names and shapes of the state."""

    @abstractmethod
    def observables(self, time: float, state: State) -> Iterable[Reading]:
        """Returns the readings of the state that are recorded."""

    def series(self, states: State) -> Iterable[Reading]:  # noqa: ARG002
        """What is recorded of all states at once: `states` and the readings have a first dimension, `time`.

        Override it for readings that are much cheaper to compute together than one by one.
        """
        return ()

    def events(self) -> Sequence[Event]:
        """Returns the events to find, such as the end of a plateau."""
        return ()

    def times(self) -> Floats:
        """Returns the times that are recorded, [time]: half of them evenly spaced, half evenly spaced in log time."""
        points = self.config.points
        return recording_times(self.config.time, even=points // 2 + 1, log=points - points // 2)


@dataclass(frozen=True)
class Trajectory:
    """A solved flow: what was recorded, the first time of each event, and the error if it ended early."""

    measurements: list[Measurement]
    readings: list[list[Reading]]  # of each measurement
    events: dict[str, float]
    error: str = ""


class Diverged(StagelensError):
    """A derivative or a loss that is not a finite number."""


def integrate(flow: Flow, progress: Callable[[float], None] | None = None) -> Trajectory:
    """Solves `flow` with scipy's `solve_ivp` and records its observables on its times, up to the terminal event."""
    from scipy.integrate import solve_ivp

    config = flow.config
    initial = flow.initial()
    pack_state, unpack_state = _packing(initial)

    def derivative(time: float, flat: Floats) -> Floats:
        if progress is not None:
            progress(time)
        with quiet():  # checked below
            rate = pack_state(flow.derivative(time, unpack_state(flat)))
        if not np.isfinite(rate).all():
            raise Diverged(f"the derivative is not finite at time {time:.6g}")
        return rate

    events = list(flow.events())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the solver; its message says the same
            solution: Any = solve_ivp(
                derivative,
                (0.0, config.time),
                pack_state(initial),
                method=_stopping(config.method),
                rtol=config.rtol,
                atol=config.atol,
                dense_output=True,
                events=[scipy_event(event, unpack_state) for event in events] or None,
            )
    except Diverged as error:  # in the first step
        readings = _observed(flow, [0.0], [initial])
        return Trajectory([pack(0.0, readings[0])], readings, {}, str(error))
    end = float(solution.t[-1])
    happened = {e.name: float(t[0]) for e, t in zip(events, solution.t_events or [], strict=False) if len(t)}
    flow.happened = happened
    times = flow.times()
    times = np.append(times[times < end], end)
    states = [solution.sol(t) if end > 0 else solution.y[:, 0] for t in times]
    readings = _observed(flow, times.tolist(), [unpack_state(state) for state in states])
    columns = {column.name: column for column in pack(end, readings[-1]).layout}  # found once, not at every time
    measurements = [pack(float(t), found, columns) for t, found in zip(times, readings, strict=True)]
    reason = "" if solution.success else f"{solution.message}; the solution is stored up to time {end:.6g}"
    return Trajectory(measurements, readings, happened, reason)


def _observed(flow: Flow, times: Sequence[float], states: Sequence[State]) -> list[list[Reading]]:
    """Returns the readings at each time: the observables of its state, and its part of each series."""
    with quiet():
        readings = [list(flow.observables(time, state)) for time, state in zip(times, states, strict=True)]
        for form in flow.series({name: np.stack([state[name] for state in states]) for name in states[0]}):
            for found, values in zip(readings, form.array(), strict=True):
                found.append(replace(form, values=values, dims=form.dims[1:]))
    return readings


def _stopping(method: str) -> Any:
    """Returns scipy's solver `method`, changed to fail instead of raising if the derivative diverges.

    scipy then returns the solution up to that time.
    """
    import scipy.integrate

    class Stopping(getattr(scipy.integrate, method)):  # type: ignore[misc]
        def _step_impl(self) -> tuple[bool, str | None]:
            try:
                taken: tuple[bool, str | None] = super()._step_impl()
                return taken
            except Diverged as error:
                return False, str(error)

    return Stopping


def _packing(state: State) -> tuple[Callable[[State], Floats], Callable[[Floats], dict[str, Floats]]]:
    """Returns two functions: from a named state to one flat vector [variable], and back."""
    shapes = {name: np.shape(value) for name, value in state.items()}
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes.values())]).tolist()
    places = [(name, slice(*ends[i : i + 2]), shape) for i, (name, shape) in enumerate(shapes.items())]

    def flatten(named: State) -> Floats:
        if named.keys() != shapes.keys():
            raise StagelensError(f"the derivative names {sorted(named)}, the state has {sorted(shapes)}")
        return np.concatenate([np.ravel(np.asarray(named[name], dtype=np.float64)) for name in shapes])

    def unflatten(flat: Floats) -> dict[str, Floats]:
        return {name: flat[place].reshape(shape) for name, place, shape in places}

    return flatten, unflatten


def scipy_event(event: Event, unpack_state: Callable[[Floats], Any] = np.asarray) -> Callable[[float, Floats], float]:
    """Returns the function of (time, flat state [variable]) whose zeros scipy finds.

    `unpack_state` turns the flat state into what `event.function` gets.
    """

    def function(time: float, flat: Floats) -> float:
        return event.function(time, unpack_state(flat))

    function.terminal = event.terminal  # type: ignore[attr-defined]
    function.direction = event.direction  # type: ignore[attr-defined]
    return function
