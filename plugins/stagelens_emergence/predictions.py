"""Theory as predictions: when the plateau of the toy model ends, and how its flow starts."""

from __future__ import annotations

from math import isnan, sqrt
from typing import Any

from stagelens import Prediction
from stagelens_emergence import theory
from stagelens_emergence.flow import flow_plateau
from stagelens_emergence.theory import ReducedModel

PLATEAU_LAW = "sqrt(pi/2) / lambda"


def toy_predictions(problem: ReducedModel, lr: float) -> list[Prediction]:
    """Returns the plateau's length in steps: from the reduced flow if it ends, and from the law for alpha << 1."""

    def measured(timeline: Any) -> float | None:
        name = "plateau_length/steps"
        return float(timeline.scalar(name)[1][-1]) if name in timeline else None

    times = {
        "end of the plateau": (flow_plateau(problem), "Eqs. 13-14, 18-21, by score"),
        "law of the plateau": (problem.plateau_law(), PLATEAU_LAW),
    }
    what = "plateau_length/steps: first step at which the loss is a fifth of its start"
    return [
        Prediction(name, "time", time / lr, reference, measure=measured, compared_with=what)
        for name, (time, reference) in times.items()
        if not isnan(time)
    ]


def flow_predictions(problem: ReducedModel, w_init: float) -> list[Prediction]:
    """Returns the plateau's length for alpha << 1; with 2 variables from w = 0 also the linearization (A.3.2).

    The linearized curves are compared up to lambda t = 1/2.
    """
    end = Prediction("end of the plateau", "time", problem.plateau_law(), PLATEAU_LAW, event="plateau_length")
    if problem.split or w_init:
        return [end]
    rate, early, reference = problem.rate, (0.0, 0.5 / problem.rate), "Eq. 15, A.3.2"

    def w(time: Any) -> Any:
        return theory.linear_w(time, rate) / sqrt(problem.mobility)

    def delta_a(time: Any) -> Any:
        return theory.linear_delta_a(time, rate)

    return [
        end,
        Prediction("w", "curve", w, reference, "w", early),
        Prediction("delta_a", "curve", delta_a, reference, "delta_a", early),
    ]
