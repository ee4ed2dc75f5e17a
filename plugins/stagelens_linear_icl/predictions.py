"""The paper's theory of one run as predictions: plateau levels, the gradient flow, Eq. 7's curves and drop times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagelens import Prediction, Timeline
from stagelens.experiments import Floats, recording_times
from stagelens.timelines import first_crossing
from stagelens_linear_icl import theory
from stagelens_linear_icl.flow import WeightPath, flow_path

POINTS = 5000  # of the flow: between them its loss is a straight line, which is off by at most 0.1% of the loss's range
JUST_LEARNED = 0.9  # learned fraction of an eigenvector at t_d of Fig. 6, just after the d-th drop


def plateau_levels(problem: theory.Problem) -> list[Prediction]:
    """Returns the losses on the plateaus, Eq. 5 or 12."""
    where = "Eq. 12" if problem.config.every else "Eq. 5"
    return [Prediction(f"L(M_{m})", "level", float(loss), where) for m, loss in enumerate(problem.plateaus)]


@dataclass(frozen=True)
class ValueCurve:
    """The solution of Eq. 7 for e_{d+1}, as a function of the step: v is `value` at time `begin`, in units of tau."""

    problem: theory.Problem
    d: int
    begin: float
    value: float
    per_step: float  # time of one step

    def __call__(self, steps: Floats) -> Floats:
        times = np.append(self.begin, np.maximum(steps * self.per_step, self.begin))
        unique, back = np.unique(times, return_inverse=True)
        solved = theory.value_curve(unique, abs(self.value), self.problem.lam, self.d, self.problem.inverse_length)
        return np.asarray(np.sign(self.value) * solved[back[1:]])


class FlowReference(WeightPath):
    """The gradient flow from the start of one run, with what it predicts about the run."""

    @classmethod
    def of(cls, problem: theory.Problem, end: float) -> FlowReference:
        """Integrates the flow until time `end`, in units of tau."""
        path = flow_path(problem, problem.start(), recording_times(end, log=POINTS), rtol=1e-7)
        return cls(problem, path.times, path.loss, path.weights)

    def drop_time(self, d: int) -> float | None:
        """Eqs. 38, 43: returns t_d + tau / (lambda_{d+1}^2 v(t_d)) with the value of the head that learns e_{d+1}."""
        begin = 0.0 if d == 0 else self.time_learned(d - 1, JUST_LEARNED)
        if begin is None or self.time_learned(d, 0.5) is None:
            return None
        value = self.value_at(begin, d)
        return begin + theory.plateau_duration(float(self.problem.lam[d]), value) if value else None

    def loss_curve(self, per_step: float) -> Prediction:
        """Returns the flow's loss as a function of the step, which is `per_step` tau."""
        where = "Eq. 24" if self.problem.config.R == 1 else "Eq. 45"

        def curve(steps: Floats) -> Floats:
            return np.interp(steps * per_step, self.times, self.loss)

        return Prediction("gradient flow", "curve", curve, where)

    def predictions(self, per_step: float) -> list[Prediction]:
        """Returns, for each eigenvector, the time of its drop and the value of its head (Eq. 7, for R = 1)."""
        found = []
        for d in range(self.problem.config.D):
            if (time := self.drop_time(d)) is not None:
                found.append(drop_prediction(self.problem, d, time / per_step))
            if self.problem.config.R == 1 and (left := self.leaving(d, JUST_LEARNED)) is not None:
                head = self.head_of(d)
                start = float(self.times[left]), float(self.weights.v[left, head])
                found.append(value_prediction(self.problem, d, head, *start, per_step))
        return found


def drop_prediction(problem: theory.Problem, d: int, step: float) -> Prediction:
    """Returns `step` as the predicted step of drop d + 1."""

    def measure(timeline: Timeline) -> float | None:
        return first_crossing(*timeline.scalar("loss"), float(problem.half_drops[d]), rising=False)

    compared = f"step at which the loss is half-way from L(M_{d}) to L(M_{d + 1})"
    where = "Eq. 43" if d else "Eq. 38"
    return Prediction(f"drop {d + 1}", "time", step, where, measure=measure, compared_with=compared)


def value_prediction(
    problem: theory.Problem, d: int, head: int, begin: float, value: float, per_step: float
) -> Prediction:
    """Returns the value of `head` by Eq. 7, from time `begin` on."""
    curve, series = ValueCurve(problem, d, begin, value, per_step), "principal_components/value"
    window, place = (begin / per_step, np.inf), {"head": head}
    return Prediction(f"v of head {head}, e{d + 1}", "curve", curve, "Eq. 7", series=series, window=window, place=place)
