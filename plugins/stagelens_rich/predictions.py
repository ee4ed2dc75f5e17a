"""Theorem 4's times as predictions of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stagelens import Prediction, Timeline
from stagelens_rich import theory
from stagelens_rich.theory import PhaseTimes, Setting

REFERENCES = {
    "T_I": "Theorem 4, phase I; L_G4 = 1/(4t)",
    "T_o": "Theorem 4; Eq. 12",
    "T_II": "Theorem 4, phase II; Eqs. 10, 12",
    "T_III": "Theorem 4, phase III; Eq. 10",
}
DEFINITIONS = {  # as `theory.phase_times` measures them
    "T_I": "first time at which L_G4 is 1% of its start",
    "T_o": "first time at which w_V2 is h*",
    "T_II": "first time after T_o at which L_IH2 is 99% of what it was at T_o",
    "T_III": "first time after T_o at which L_IH2 is 1% of what it was at T_o",
}


def plateau_prediction(s: Setting) -> Prediction:
    """Returns the predicted level of L_IH2 on the plateau."""
    level = float(theory.induction_loss(0.0, s.h_plateau, s))
    return Prediction("plateau", "level", level, "Eq. 10 at w = 0", series="loss_induction")


def time_predictions(
    expected: PhaseTimes, measure: Callable[[Timeline], PhaseTimes], to_step: Callable[[float], float] = float
) -> list[Prediction]:
    """Returns a prediction for each of Theorem 4's times; `to_step` converts time to the run's steps."""

    def measured(timeline: Timeline, name: str) -> float | None:
        time: float | None = getattr(measure(timeline), name)
        return None if time is None else to_step(time)

    return [
        Prediction(
            name,
            "time",
            to_step(time),
            REFERENCES[name],
            series="loss_induction",
            measure=partial(measured, name=name),
            compared_with=DEFINITIONS[name],
        )
        for name, time in expected._asdict().items()
    ]
