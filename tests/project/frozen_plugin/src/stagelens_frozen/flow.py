# frozen: do not edit. Written against the import paths of stagelens 0.1.0, which later versions must keep.
"""A flow: x' = x - x^3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import stagelens as sl
from stagelens import Event, Flow, FlowConfig, Prediction, Reading


class PitchforkConfig(FlowConfig):
    start: float = 1e-3
    time: float = 20.0
    points: int = 40


class Pitchfork(Flow):
    """A long plateau at the unstable point, and a jump."""

    id, title = "frozen/flow", "a pitchfork"
    Config = PitchforkConfig
    presets = {"quick": {}}

    def initial(self) -> Mapping[str, Any]:
        return {"x": np.array([self.config.start])}

    def derivative(self, time: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": state["x"] - state["x"] ** 3}

    def observables(self, time: float, state: Mapping[str, Any]) -> Iterable[Reading]:
        x = float(state["x"][0])
        yield Reading("loss", (1 - x**2) ** 2 / 4)
        yield sl.Reading("frozen/x", state["x"], ("place",), {"place": ["only"]})

    def events(self) -> Sequence[Event]:
        return [Event("half", lambda time, state: float(state["x"][0]) - 0.5, terminal=False, direction=1)]

    def predictions(self) -> Sequence[Prediction]:
        # x / sqrt(1 - x^2) = start e^t
        half = float(np.log(0.5 / np.sqrt(0.75) / self.config.start))
        return [Prediction("half", "time", half, "exact"), Prediction("start", "level", 0.25, "exact")]

    def stage_names(self) -> Sequence[str]:
        return ["jump"]
