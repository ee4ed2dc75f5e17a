"""Solves a small differential equation in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stagelens.base import StagelensError
from stagelens.experiments.flow import Event, Floats, scipy_event

RTOL, ATOL = 1e-8, 1e-10  # the tolerances of `solve`, and those of a flow's config


class Solution(NamedTuple):
    """A solved differential equation."""

    times: Floats  # [time]: those asked for, up to the terminal event if there was one
    states: Floats  # [time, variable]
    events: dict[str, float]  # the first time of each event that happened


def solve(
    rate: Callable[[float, Any], Any],
    start: Any,
    times: Any,
    *,
    events: Sequence[Event] = (),
    jac: Callable[[float, Any], Any] | None = None,
    method: str = "LSODA",
    rtol: float = RTOL,
    atol: float = ATOL,
) -> Solution:
    """Returns the solution of `dx/dt = rate(t, x)` from x = `start` at `times[0]`, at each of `times`.

        >>> decay = solve(lambda t, x: -x, [1.0], [0.0, 1.0], events=[Event("half", lambda t, x: x[0] - 0.5)])
        >>> round(decay.events["half"], 4)  # log 2
        0.6931

    A `Flow` is recorded as a run; use `solve` for the many small systems that a claim, a figure or a prediction needs.

    Args:
        rate: (time, state [variable]) -> the derivative, [variable].
        start: [variable].
        times: increasing, [time]. Only their first and last decide which steps the solver takes.
        events: crossings of zero to find. `Event.function` gets (time, state [variable]). A terminal event ends the
            solution there.
        jac: (time, state) -> the Jacobian [variable, variable], for the implicit methods.
        method: scipy's name of the method.

    Raises a `StagelensError` if the solver fails before the last time.
    """
    from scipy.integrate import solve_ivp

    times, start = np.asarray(times, dtype=np.float64), np.asarray(start, dtype=np.float64)
    if times[-1] == times[0]:
        return Solution(times, np.tile(start, (len(times), 1)), {})
    options: dict[str, Any] = {"t_eval": times, "method": method, "rtol": rtol, "atol": atol}
    if jac is not None:
        options["jac"] = jac
    if events:
        options["events"] = [scipy_event(event) for event in events]
    solved = solve_ivp(rate, (times[0], times[-1]), start, **options)
    if not solved.success:
        reached = solved.t[-1] if len(solved.t) else times[0]
        raise StagelensError(f"the flow cannot be integrated beyond time {reached:.3g}: {solved.message}")
    happened = zip(events, solved.t_events or [], strict=True)
    return Solution(solved.t, solved.y.T, {event.name: float(t[0]) for event, t in happened if len(t)})
