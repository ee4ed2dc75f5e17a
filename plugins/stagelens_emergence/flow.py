"""The gradient flow of the reduced model, and the length of its plateau."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from stagelens import Event, Flow, FlowConfig, Prediction, Reading
from stagelens.experiments import Config, Floats, State
from stagelens_emergence import theory
from stagelens_emergence.data import check_data
from stagelens_emergence.theory import SHARE, Reduced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens import Run


class ReducedConfig(FlowConfig):
    """Without a `time` of its own the flow goes on for about five plateaus."""

    T: int = Field(512, description="tokens in a sequence")
    d: int = Field(64, description="dimension of a token")
    B: int = Field(1, description="how often the relevant token stands in a sequence")
    p: float = Field(0.0, description="probability that the relevant token is the repeated one")
    variables: Literal[0, 2, 3] = Field(0, description="2: Eqs. 13-14; 3: Eqs. 18-21; 0: 2 where p = 0, else 3")
    scores: Literal["joint", "each"] = Field(
        "joint", description="joint: Delta a moves by its gradient (Eqs. 14, 20); each: every score does (Eq. 2)"
    )
    w_init: float = Field(0.0, ge=-1000, le=1000, description="w at the start")
    until: Literal["time", "plateau"] = Field("time", description="whether the end of the plateau ends the flow")
    time: float = Field(1.0, description="end of the integration; where none is given, five plateaus")
    points: int = Field(200, description="times at which the flow is recorded")

    @model_validator(mode="after")
    def _consistent(self) -> ReducedConfig:
        check_data(self.T, self.d, self.B, self.p)
        if self.variables == 2 and self.p > 0:
            raise ValueError(f"two variables cannot follow p={self.p:g}; give variables=3, or p=0")
        if "time" not in self.model_fields_set:
            object.__setattr__(self, "time", self.problem.horizon())  # the config is frozen from here on
        return self

    @property
    def problem(self) -> Reduced:
        return Reduced(self.T, self.d, self.B, self.p, split=self.variables == 3, each=self.scores == "each")


class ReducedFlow(Flow):
    """Eqs. 3-4 and 13-14, or with cross-sample repetition 18-21. `loss` is the test loss of D.1, where p = 0."""

    id = "emergence/flow"
    title = "the toy model's gradient flow in two or three variables"
    Config: ClassVar[type[Config]] = ReducedConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"points": 2000, "rtol": 1e-10, "atol": 1e-12},
        "fig1": {},
        "fig2": {"T": 4096},
        "fig6": {"T": 256},
        "fig7": {"d": 512},
        "fig8": {"points": 2000},
        "fig10": {"p": 0.1},
    }

    @cached_property
    def problem(self) -> Reduced:
        problem: Reduced = self.config.problem
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
        if time >= self.length * (1 - 1e-9):
            yield Reading("plateau_length", self.length)

    @cached_property
    def length(self) -> float:
        """The length of the plateau; nan where it outlasts the flow."""
        c = self.config
        return flow_plateau(self.problem, time=c.time, w_init=c.w_init)

    def times(self) -> Floats:
        """A third of them even, a third even in log time, and a third around the end of the plateau."""
        end, points = self.config.time, self.config.points
        middle = self.length if self.length == self.length else end
        spaced = np.geomspace(end / 10**4, end, points // 3), np.linspace(0.9 * middle, 1.2 * middle, points // 3)
        times: Floats = np.unique(np.concatenate([np.linspace(0, end, points - 2 * (points // 3)), *spaced]))
        return np.asarray(times[times <= end])

    def events(self) -> Sequence[Event]:
        """`plateau_length`: the test loss has fallen to a fifth of its start (D.1)."""
        test = self.problem.without_repetition
        end = SHARE * float(test.loss(test.along_target(self.config.w_init), 0.0))

        def above(time: float, state: State) -> float:  # noqa: ARG001
            return float(test.loss(state["w"].tolist(), float(state["delta_a"]))) - end

        return [Event("plateau_length", above, terminal=self.config.until == "plateau", direction=-1)]

    def predictions(self) -> Sequence[Prediction]:
        """The length of the plateau while alpha << 1, and for 2 variables the linearization up to lambda t = 1/2."""
        problem, early = self.problem, (0.0, 0.5 / self.problem.rate)
        length = Prediction(
            "end of the plateau",
            "time",
            problem.plateau_law(),
            "sqrt(pi/2) / lambda",
            event="plateau_length",
        )
        if problem.split or self.config.w_init:
            return [length]
        rate, scale = problem.rate, sqrt(problem.mobility)
        curves: dict[str, Callable[[Any], Any]] = {
            "w": lambda t: theory.linear_w(t, rate) / scale,
            "delta_a": lambda t: theory.linear_delta_a(t, rate),
        }
        where = "Eq. 15, A.3.2"
        return [length, *(Prediction(name, "curve", curve, where, name, early) for name, curve in curves.items())]

    def stage_names(self) -> Sequence[str]:
        return ["attention emerges"]

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_emergence.figures import flow_figures

        return flow_figures(run)


def solve(problem: Reduced, times: Any, w_init: float = 0.0) -> tuple[Any, Any]:
    """The flow at `times` (the first is 0): w [group, time] and Delta a [time]."""
    solved = _integrated(problem, float(times[-1]), w_init, t_eval=times)
    return solved.y[:-1], solved.y[-1]


def flow_plateau(problem: Reduced, *, time: float | None = None, w_init: float = 0.0) -> float:
    """When the test loss of `problem`'s flow has fallen to a fifth of its start (D.1); nan: not by `time`."""
    test = problem.without_repetition
    end = SHARE * float(test.loss(test.along_target(w_init), 0.0))

    def above(_: float, state: Any) -> float:
        *w, delta_a = state.tolist()
        return float(test.loss(w, delta_a)) - end

    above.terminal = True  # type: ignore[attr-defined]
    crossed = _integrated(problem, problem.horizon() if time is None else time, w_init, events=above).t_events[0]
    return float(crossed[0]) if len(crossed) else float("nan")


def flow_plateaus(problems: Iterable[Reduced]) -> list[float]:
    """`flow_plateau` of each."""
    return [flow_plateau(problem) for problem in problems]


def _integrated(problem: Reduced, until: float, w_init: float, **options: Any) -> Any:
    """scipy's solution of the flow from Delta a = 0 and W along W*; its state is [*w, Delta a]."""
    from scipy.integrate import solve_ivp

    def rate(_: float, state: Any) -> list[float]:
        *w, delta_a = state.tolist()
        by_w, by_a = problem.velocity(w, delta_a)
        return [*by_w, by_a]

    start = np.array([*problem.along_target(w_init), 0.0])
    return solve_ivp(rate, (0.0, until), start, "LSODA", rtol=1e-8, atol=1e-10, **options)
