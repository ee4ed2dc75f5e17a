"""The gradient flow on the closed forms: of the second layer (Training Stage II), or of the first (Stage I)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from stagelens import Flow, FlowConfig, Prediction, Reading, StagelensError, Timeline
from stagelens.experiments import Config, Floats, State, integrate
from stagelens_rich import theory
from stagelens_rich.problem import Mixture, setting_of, time_predictions
from stagelens_rich.theory import PhaseTimes, Setting, Tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens import Run

STAGES = ("partial learning", "emergence")  # the two drops of log L_IH2, before and after the plateau
LONG_ENOUGH = 3.0  # times T_III, so that the convergence is seen


class RichFlowConfig(Mixture, FlowConfig):
    """`system` four: p, w_V1, w_KQ, w_V2 as in C.3; five: w_Q and w_K apart; first-layer: p(1,1) alone (C.2)."""

    tokens: Tokens = Field("gaussian", description="tokens of the closed form: gaussian (Eq. 10) or boolean")
    system: Literal["four", "five", "first-layer"] = Field("four", description="which parameters move")
    imbalance: float = Field(
        0.0, gt=-1, le=1000, description="with system=five, w_Q starts at (1 + imbalance) sigma_init"
    )
    time: float = Field(0.0, description="end of the integration; unless given, 3 times the T_III that theory expects")
    points: int = Field(800, description="times at which the flow is recorded")
    rtol: float = Field(1e-10, description="relative tolerance")
    atol: float = Field(1e-40, description="absolute tolerance; far below any sigma_init, so that rtol decides")

    @model_validator(mode="after")
    def _end(self) -> RichFlowConfig:
        if self.time == 0:
            object.__setattr__(self, "time", self._long_enough())  # the config is frozen from here on
        return self

    @property
    def setting(self) -> Setting:
        return setting_of(self, self.tokens)

    @property
    def pair(self) -> int:
        """How often the gradient with respect to w_Q w_K reaches each of the two, in units of w."""
        return theory.PAIR if self.system == "four" else 1

    def _long_enough(self) -> float:
        if self.system == "first-layer":
            return 1000 * (self.L - 2) / (self.setting.g_star * self.sigma_init)
        T_III = theory.expected_times(self.setting, self.pair).T_III
        assert T_III is not None
        return LONG_ENOUGH * T_III


class RichFlow(Flow):
    """Gradient flow of Eqs. 7 and 10 from all parameters at sigma_init (Eq. 4)."""

    id = "rich/flow"
    title = "the gradient flow of the second layer on the closed-form losses"
    Config: ClassVar[type[Config]] = RichFlowConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {"points": 4000}, "scaling": {}}
    metric: ClassVar[str] = "induction_decades"

    @property
    def first(self) -> bool:
        return bool(self.config.system == "first-layer")

    def initial(self) -> State:
        c = self.config
        names = {
            "four": ("p", "w_V1", "w_KQ", "w_V2"),
            "five": ("p", "w_V1", "w_Q", "w_K", "w_V2"),
            "first-layer": ("p_first",),
        }[c.system]
        return {name: np.array(c.sigma_init * (1 + c.imbalance * (name == "w_Q"))) for name in names}

    def derivative(self, time: float, state: State) -> State:  # noqa: ARG002
        s = self.config.setting
        if self.first:
            return {"p_first": np.array(theory.first_layer(float(state["p_first"]), s.sigma, s.sigma, s)[1])}
        dp, dg = theory.four_gram_rates(state["p"], state["w_V1"], s)
        dv, dh = theory.induction_rates(_product(state), state["w_V2"], s)
        known = {"p": dp, "w_V1": dg, "w_V2": dh}
        if "w_KQ" in state:
            return known | {"w_KQ": theory.PAIR * state["w_KQ"] * dv}
        return known | {"w_Q": state["w_K"] * dv, "w_K": state["w_Q"] * dv}

    def observables(self, time: float, state: State) -> Iterable[Reading]:  # noqa: ARG002
        s = self.config.setting
        if self.first:
            p_first = float(state["p_first"])
            four_gram = theory.first_layer(p_first, s.sigma, s.sigma, s)[0]
            induction = theory.induction_loss(s.sigma**2, s.sigma, s)
            yield Reading("previous_token", theory.previous_token(p_first, s.L))
        else:
            four_gram = theory.four_gram_loss(state["p"], state["w_V1"], s)
            induction = theory.induction_loss(_product(state), state["w_V2"], s)
        yield Reading("loss", float(four_gram + induction))
        yield Reading("loss_4gram", float(four_gram))
        yield Reading("loss_induction", float(induction))
        yield Reading("induction_decades", float(theory.decades(induction, theory.induction_loss(0.0, 0.0, s))))
        for name, value in state.items():
            yield Reading(name, float(value))
        if "w_Q" in state:
            yield Reading("conserved/w_Q^2 - w_K^2", float(state["w_Q"] ** 2 - state["w_K"] ** 2))

    def times(self) -> Floats:
        """Two thirds of them even, one third even in log time from 0.1 on."""
        end, points = self.config.time, self.config.points
        log = np.geomspace(min(0.1, end / 10), end, points // 3)
        return np.unique(np.concatenate([np.linspace(0, end, points - points // 3), log]))

    def measured_times(self, timeline: Timeline) -> PhaseTimes:
        """Theorem 4's times, by their definitions."""
        four_gram, induction, h = (timeline.scalar(name)[1] for name in ("loss_4gram", "loss_induction", "w_V2"))
        return theory.phase_times(timeline.steps, four_gram, induction, h, self.config.setting.h_star)

    def predictions(self) -> Sequence[Prediction]:
        if self.first:
            return []
        s, pair = self.config.setting, self.config.pair
        plateau = float(theory.induction_loss(0.0, s.h_plateau, s))
        times = time_predictions(theory.expected_times(s, pair), self.measured_times)
        return [Prediction("plateau", "level", plateau, "Eq. 10 at w = 0", series="loss_induction"), *times]

    def stage_names(self) -> Sequence[str]:
        return () if self.first else STAGES

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_rich import figures

        if self.first:
            return {"first_layer": figures.first_layer(run)}
        return (
            {"scaling": figures.scaling(run)} if run.manifest.preset == "scaling" else {"phases": figures.phases(run)}
        )


@lru_cache(maxsize=64)
def _solved(settings: tuple[tuple[str, Any], ...]) -> tuple[RichFlow, Timeline]:
    flow = RichFlow(RichFlowConfig(**dict(settings)))
    found = integrate(flow)
    if found.error:
        raise StagelensError(f"the flow with {dict(settings)} failed: {found.error}")
    return flow, Timeline(found.measurements)


def solved(**settings: Any) -> Timeline:
    """The flow with these settings, integrated now and kept in memory."""
    return _solved(tuple(sorted(settings.items())))[1]


def solved_times(**settings: Any) -> PhaseTimes:
    """Its phase times."""
    flow, timeline = _solved(tuple(sorted(settings.items())))
    return flow.measured_times(timeline)


def _product(state: State) -> Any:
    """v = w_Q w_K."""
    return state["w_KQ"] ** 2 if "w_KQ" in state else state["w_Q"] * state["w_K"]
