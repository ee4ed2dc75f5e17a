"""The gradient flow on the closed forms: of the second layer (Training Stage II), or of the first (Stage I)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from stagelens import Flow, Prediction, Reading, StagelensError, Timeline
from stagelens.base import generator
from stagelens.experiments import Floats, State, integrate, recording_times
from stagelens_rich import theory
from stagelens_rich.config import RichFlowConfig
from stagelens_rich.predictions import plateau_prediction, time_predictions
from stagelens_rich.theory import PhaseTimes

STAGES = ("partial learning", "emergence")  # the drops of L_IH2 before and after the plateau
SEQUENCES = 16  # that the attention probes are read on
SYSTEMS = {
    "four": ("p", "w_V1", "w_KQ", "w_V2"),
    "five": ("p", "w_V1", "w_Q", "w_K", "w_V2"),
    "first-layer": ("p_first",),
}


class RichFlow(Flow):
    """Gradient flow of Eqs. 7 and 10 from all parameters at sigma_init (Eq. 4)."""

    id = "rich/flow"
    title = "the gradient flow of the second layer on the closed-form losses"
    Config = RichFlowConfig
    presets = {"quick": {}, "paper": {"points": 4000}, "scaling": {}}
    sources = {
        "Fig. 1": ("L", "alpha_star", "w_star", "sigma_init"),
        "ours": ("points",),
    }
    metric = "induction_decades"

    @property
    def first(self) -> bool:
        """True if the first layer is integrated."""
        return bool(self.config.system == "first-layer")

    def initial(self) -> State:
        c = self.config
        return {name: np.array(c.sigma_init * (1 + c.imbalance * (name == "w_Q"))) for name in SYSTEMS[c.system]}

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
        relative = theory.log10_relative(induction, theory.induction_loss(0.0, 0.0, s))
        yield Reading("induction_decades", float(relative))
        for name, value in state.items():
            yield Reading(name, float(value))
        if "w_Q" in state:
            yield Reading("conserved/w_Q^2 - w_K^2", float(state["w_Q"] ** 2 - state["w_K"] ** 2))

    def series(self, states: State) -> Iterable[Reading]:
        """Returns what the attention probes read of the layer that moves, on a few sequences of the run's seed."""
        from stagelens_probes.pattern_series import pattern_series
        from stagelens_rich.data.toy import first_pattern, mixed_groups, sample_tokens, second_pattern, visible_keys

        L = self.config.L
        x = sample_tokens(SEQUENCES, L, 1, self.config.tokens, generator(self.seed, "probes")).double()
        seen: Any = {"groups": mixed_groups(), "batch": x, "visible_keys": visible_keys}
        if self.first:
            return pattern_series(states, lambda p_first: {0: first_pattern(p_first, L)}, **seen)
        moving = {"p": states["p"], "v": _product(states)}
        return pattern_series(moving, lambda p, v: {1: second_pattern(p, v, x)}, **seen)

    def times(self) -> Floats:
        """Returns the recorded times [time]: two thirds evenly spaced, one third evenly spaced in log time."""
        end, points = self.config.time, self.config.points
        return recording_times(end, even=points - points // 3, log=points // 3, first=min(0.1, end / 10))

    def measured_times(self, timeline: Timeline) -> PhaseTimes:
        """Returns Theorem 4's times of a recorded flow, by their definitions."""
        four_gram, induction, h = (timeline.scalar(name)[1] for name in ("loss_4gram", "loss_induction", "w_V2"))
        return theory.phase_times(timeline.steps, four_gram, induction, h, self.config.setting.h_star)

    def predictions(self) -> Sequence[Prediction]:
        """Returns the plateau's level and Theorem 4's times."""
        if self.first:
            return []
        s = self.config.setting
        expected = theory.expected_times(s, self.config.pair)
        return [plateau_prediction(s), *time_predictions(expected, self.measured_times)]

    def stage_names(self) -> Sequence[str]:
        return () if self.first else STAGES

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_rich.figures.flow import first_layer, scaling
        from stagelens_rich.figures.toy import phases

        if self.first:
            return {"first_layer": first_layer(run)}
        return {"scaling": scaling(run)} if run.manifest.preset == "scaling" else {"phases": phases(run)}


class ParameterFlow(RichFlow):
    """The flow of the parameters and losses alone, without readings of the attention."""

    def series(self, states: State) -> Iterable[Reading]:  # noqa: ARG002
        return ()


@lru_cache(maxsize=64)
def _solved(settings: tuple[tuple[str, Any], ...]) -> tuple[RichFlow, Timeline]:
    flow = ParameterFlow(RichFlowConfig(**dict(settings)))
    found = integrate(flow)
    if found.error:
        raise StagelensError(f"the flow with {dict(settings)} failed: {found.error}")
    return flow, Timeline(found.measurements)


def solved(**settings: Any) -> Timeline:
    """Returns the flow with these settings, integrated in memory; the last 64 are cached."""
    return _solved(tuple(sorted(settings.items())))[1]


def solved_times(**settings: Any) -> PhaseTimes:
    """Returns the phase times of the flow with these settings."""
    flow, timeline = _solved(tuple(sorted(settings.items())))
    return flow.measured_times(timeline)


def _product(state: State) -> Any:
    """Returns v = w_Q w_K."""
    return state["w_KQ"] ** 2 if "w_KQ" in state else state["w_Q"] * state["w_K"]
