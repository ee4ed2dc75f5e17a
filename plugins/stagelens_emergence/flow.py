"""The gradient flow of the reduced model, and the length of its plateau."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stagelens import Event, Flow, Prediction, Reading
from stagelens.experiments import Floats, Solution, State, recording_times, solve
from stagelens_emergence.config import ReducedConfig
from stagelens_emergence.theory import PLATEAU_END, ReducedModel

PLATEAU = "plateau_length"  # the event and the reading


class ReducedFlow(Flow):
    """Eqs. 3-4 and 13-14, or with cross-sample repetition 18-21. `loss` is the test loss of D.1, with p = 0."""

    id = "emergence/flow"
    title = "the toy model's gradient flow in two or three variables"
    Config = ReducedConfig
    presets = {
        "quick": {},
        "paper": {"points": 2000, "rtol": 1e-10, "atol": 1e-12},
        "fig1": {},
        "fig2": {"T": 4096},
        "fig6": {"T": 256},
        "fig7": {"d": 512},
        "fig8": {"points": 2000},
        "fig10": {"p": 0.1},
    }
    sources = {
        "Fig. 1": ("T", "d"),
        "ours": ("points", "rtol", "atol"),
    }

    @cached_property
    def problem(self) -> ReducedModel:
        problem: ReducedModel = self.config.problem
        return problem

    def initial(self) -> State:
        return {"w": np.array(self.problem.along_target(self.config.w_init)), "delta_a": np.array(0.0)}

    def derivative(self, time: float, state: State) -> State:  # noqa: ARG002
        w, delta_a = self.problem.velocity(state["w"].tolist(), float(state["delta_a"]))
        return {"w": np.array(w), "delta_a": delta_a}

    def observables(self, time: float, state: State) -> Iterable[Reading]:
        problem, w, delta_a = self.problem, state["w"].tolist(), float(state["delta_a"])
        alpha = problem.attention(delta_a)
        yield Reading("loss", problem.without_repetition.loss(w, delta_a))
        yield Reading("train_loss", problem.loss(w, delta_a))
        yield Reading("w", problem.projection(w))
        if problem.split:
            yield Reading("w_repeated", w[0])
            yield Reading("w_rest", w[1])
        else:
            yield Reading("w_equilibrium", problem.equilibrium(alpha)[0])
        yield Reading("alpha", alpha)
        yield Reading("relevant", problem.B * alpha)
        yield Reading("delta_a", delta_a)
        eigenvalues = np.linalg.eigvalsh(problem.hessian(w, delta_a))
        yield Reading("curvature/smallest", float(eigenvalues[0]))
        yield Reading("curvature/largest", float(eigenvalues[-1]))
        length = self.happened.get(PLATEAU, np.inf)
        if time >= length * (1 - 1e-9):
            yield Reading(PLATEAU, length)

    def series(self, states: State) -> Iterable[Reading]:
        """Returns what `attention_sparsity` reads of the one head: the last B of the T tokens are relevant."""
        from stagelens_probes.pattern_series import pattern_series

        T, B = self.problem.T, self.problem.B
        alpha = self.problem.attention(states["delta_a"])[:, None]  # [time, 1]
        others = (1 - B * alpha) / (T - B)
        attention = np.concatenate([np.repeat(others, T - B, axis=1), np.repeat(alpha, B, axis=1)], axis=1)
        return pattern_series({"a": attention}, lambda a: {0: a[None, None, None]}, {})

    def times(self) -> Floats:
        """Returns the recorded times: a third evenly spaced, a third in log time, a third around the plateau's end."""
        end, points = self.config.time, self.config.points
        third, middle = points // 3, self.happened.get(PLATEAU, end)
        around = [(0.9 * middle, 1.2 * middle, third)]
        return recording_times(end, even=points - 2 * third, log=third, around=around)

    def events(self) -> Sequence[Event]:
        """Returns `plateau_length`: the test loss has fallen to a fifth of its start (D.1)."""
        excess = plateau_excess(self.problem, self.config.w_init)

        def function(time: float, state: State) -> float:  # noqa: ARG001
            return excess(state["w"].tolist(), float(state["delta_a"]))

        return [Event(PLATEAU, function, terminal=self.config.until == "plateau", direction=-1)]

    def predictions(self) -> Sequence[Prediction]:
        from stagelens_emergence.predictions import flow_predictions

        return flow_predictions(self.problem, self.config.w_init)

    def stage_names(self) -> Sequence[str]:
        return ["attention emerges"]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_emergence.figures.toy import flow_figures

        return flow_figures(run)


Start = float | Sequence[float]  # w of a W that is parallel to W*, or w of each group


def start_of(problem: ReducedModel, w_init: Start) -> list[float]:
    """Returns w of each group at the start."""
    return list(w_init) if isinstance(w_init, Sequence) else problem.along_target(w_init)


def plateau_excess(problem: ReducedModel, w_init: Start) -> Callable[[Any, float], float]:
    """Returns a function of (w, Delta a): the test loss minus the loss at which the plateau ends (D.1)."""
    test = problem.without_repetition
    end = PLATEAU_END * float(test.loss(start_of(test, w_init), 0.0))
    return lambda w, delta_a: float(test.loss(w, delta_a)) - end


def trajectory(problem: ReducedModel, times: Any) -> tuple[Floats, Floats]:
    """Returns the flow from w = 0 at `times` (the first is 0): w [group, time] and Delta a [time]."""
    states = _solve(problem, times, 0.0).states
    return states[:, :-1].T, states[:, -1]


def flow_plateau(problem: ReducedModel, *, time: float | None = None, w_init: Start = 0.0) -> float:
    """Returns the time at which the flow's test loss has fallen to a fifth of its start (D.1); nan: not by `time`."""
    excess = plateau_excess(problem, w_init)

    def function(_: float, state: Floats) -> float:
        *w, delta_a = state.tolist()
        return excess(w, delta_a)

    end = problem.horizon() if time is None else time
    event = Event(PLATEAU, function, terminal=True, direction=-1)
    return _solve(problem, [0.0, end], w_init, [event]).events.get(PLATEAU, np.nan)


def flow_plateaus(problems: Iterable[ReducedModel]) -> list[float]:
    """Returns `flow_plateau` of each problem."""
    return [flow_plateau(problem) for problem in problems]


def _solve(problem: ReducedModel, times: Any, w_init: Start, events: Sequence[Event] = ()) -> Solution:
    """Solves the flow from Delta a = 0. The state is [*w, Delta a]."""

    def rate(_: float, state: Floats) -> list[float]:
        *w, delta_a = state.tolist()
        by_w, by_a = problem.velocity(w, delta_a)
        return [*by_w, by_a]

    return solve(rate, [*start_of(problem, w_init), 0.0], times, events=events)
