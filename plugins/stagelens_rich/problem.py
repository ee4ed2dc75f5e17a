"""The config keys that every task here shares, with their bounds, and what theory says in those terms."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field, field_validator, model_validator

from stagelens import Prediction, Timeline
from stagelens.experiments import Config
from stagelens_rich.theory import PhaseTimes, Setting, Tokens

DOMAIN = 0.7  # of w*: the closed form needs 4 w*^4 < 1
SHORTEST = 5
SMALLEST = 1e-35  # of sigma_init: what is learned from it grows from sigma_init^2


class Mixture(Config):
    """The mixed target of Eq. 2 and the scale of the initialization."""

    L: int = Field(40, description="tokens in a sequence")
    alpha_star: float = Field(1.0, description="weight of the 4-gram against the induction head")
    w_star: float = Field(0.49, description="w*: the target attends by w*^2 x_L x_(s-1)")
    sigma_init: float = Field(0.01, description="every parameter at the start (Eq. 4)")

    @field_validator("L")
    @classmethod
    def _long(cls, L: int) -> int:
        if L < SHORTEST:
            raise ValueError(
                f"a 4-gram beside an induction head needs at least {SHORTEST} tokens; give L >= {SHORTEST}"
            )
        return L

    @field_validator("alpha_star", "sigma_init")
    @classmethod
    def _above_zero(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("it should be above 0: give for example 1 for alpha_star, 0.01 for sigma_init")
        if value < SMALLEST:
            raise ValueError(f"its square is beyond what can be computed: give at least {SMALLEST:g}")
        return value

    @field_validator("w_star")
    @classmethod
    def _inside(cls, w_star: float) -> float:
        if not 0 < w_star < DOMAIN:
            raise ValueError(f"the closed form of the loss needs 4 w*^4 < 1; give 0 < w_star < {DOMAIN}")
        return w_star

    @model_validator(mode="after")
    def _small(self) -> Mixture:
        least = min(self.w_star, 1 / (1 + self.alpha_star), self.alpha_star / (1 + self.alpha_star))
        if self.sigma_init >= least:
            raise ValueError(
                f"sigma_init={self.sigma_init:g} does not lie below what is to be learned (w*, 1/(1+alpha*) and "
                f"alpha*/(1+alpha*)); give sigma_init < {least:.3g}"
            )
        return self


def setting_of(config: Mixture, tokens: Tokens = "gaussian") -> Setting:
    return Setting(config.L, config.alpha_star, config.w_star, config.sigma_init, tokens)


STATEMENTS = {
    "T_I": "Theorem 4, phase I; L_G4 = 1/(4t)",
    "T_o": "Theorem 4; Eq. 12",
    "T_II": "Theorem 4, phase II; Eqs. 10, 12",
    "T_III": "Theorem 4, phase III; Eq. 10",
}
MEASURED = {  # `theory.phase_times`
    "T_I": "first time at which L_G4 is 1% of its start",
    "T_o": "first time at which w_V2 is h*",
    "T_II": "first time after T_o at which L_IH2 is 99% of what it was at T_o",
    "T_III": "first time after T_o at which L_IH2 is 1% of what it was at T_o",
}


def time_predictions(
    expected: PhaseTimes, measure: Callable[[Timeline], PhaseTimes], to_step: Callable[[float], float] = float
) -> list[Prediction]:
    """The four times beside those of a run; `to_step` turns time into the run's steps."""

    def measured(name: str) -> Callable[[Timeline], float | None]:
        def of(timeline: Timeline) -> float | None:
            time: float | None = getattr(measure(timeline), name)
            return None if time is None else to_step(time)

        return of

    return [
        Prediction(
            name,
            "time",
            to_step(time),
            STATEMENTS[name],
            series="loss_induction",
            measure=measured(name),
            compared_with=MEASURED[name],
        )
        for name, time in expected._asdict().items()
    ]
