"""Configs of the trained tasks (the chain, the model and the optimizer) and of the gradient flow."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Literal

from pydantic import Field, field_validator, model_validator

from stagelens import FlowConfig, TaskConfig
from stagelens_markov.data import check_importance

Intervals = tuple[tuple[int, ...], ...]


class MarkovConfig(TaskConfig):
    """Tables 1, 2 and 4 of the paper. Intervals are lists of lags, the most important first."""

    d: int = Field(50, ge=2, description="size of the dictionary")
    h: int = Field(3, ge=1, description="number of intervals")
    heads: int = Field(0, ge=0, description="number of attention heads; 0: as many as intervals")
    m: float = Field(1.7, gt=0, description="importance ratio of neighbouring intervals")
    b0: float = Field(10.0, gt=0, description="importance of the last interval")
    T: int = Field(20, ge=1, description="number of predicted tokens")
    w: int = Field(0, ge=0, description="past tokens that the next one depends on; 0: as many as the intervals have")
    intervals: Intervals = Field(((1, 2), (3, 4), (5, 6)), description="lags of I(1), I(2), ...")
    init_scale: float = Field(0.05, ge=0, description="u: the score matrices start uniform in [-u, u]")
    context: int = Field(0, ge=0, description="lags that the model sees, the others are masked; 0: all")
    window: int = Field(0, ge=0, description="an n-gram model on windows of n tokens (B); 0: on whole sequences")
    compare: Literal["chain", "contexts", "windows"] = Field(
        "chain", description="references: Eq. 3's predictors, or models trained with context 1, 2, ... intervals"
    )
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay")
    patience: int = Field(0, ge=0, description="steps without progress before the rate is halved; 0: constant rate")
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0: no clipping")

    @field_validator("intervals")
    @classmethod
    def _partition(cls, intervals: Intervals) -> Intervals:
        lags = Counter(lag for interval in intervals for lag in interval)
        if not lags or any(not interval for interval in intervals):
            raise ValueError("every interval needs at least one lag, for example [[1,2],[3,4],[5,6]]")
        wanted = range(1, max(lags) + 1)
        wrong = chain(
            (f"lag {lag} is given {count} times" for lag, count in lags.items() if count > 1),
            (f"there is no lag {lag}" for lag in lags if lag < 1),
            (f"lag {lag} is missing" for lag in wanted if lag not in lags),
        )
        if first := next(wrong, ""):
            share = f"the intervals must share out the lags 1..{max(wanted[-1:], default=1)} without overlap or gap"
            raise ValueError(f"{share}; {first}")
        return intervals

    @model_validator(mode="after")
    def _agrees(self) -> MarkovConfig:
        if len(self.intervals) != self.h:
            raise ValueError(
                f"h={self.h} but {len(self.intervals)} intervals are given; give h and intervals that agree"
            )
        if self.w and self.w != self.order:
            how = "exceeds" if self.order > self.w else "falls short of"
            raise ValueError(f"lag {self.order} of the intervals {how} the context w={self.w}; give intervals up to w")
        for key in ("context", "window"):
            if getattr(self, key) > self.order:
                raise ValueError(
                    f"{key}={getattr(self, key)} is more than the {self.order} lags of the chain; give at most those"
                )
        if self.context and self.window:
            raise ValueError("context and window both restrict what the model sees; give one of them")
        check_importance(self.m, self.b0, self.h)
        return self

    @property
    def order(self) -> int:
        """w, the number of lags."""
        return max(max(interval) for interval in self.intervals)

    @property
    def n_heads(self) -> int:
        return self.heads or self.h

    @property
    def contexts(self) -> list[int]:
        """The lag at which each interval ends, the nearest first."""
        return sorted(max(interval) for interval in self.intervals)


class MarkovFullConfig(MarkovConfig):
    """Tables 1 to 4 for the standard transformer."""

    intervals: Intervals = Field(
        ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)), description="lags of I(1), I(2), ...", validate_default=True
    )
    init_scale: float = Field(1.0, ge=0, description="of all weights, 1: TransformerLens' own")
    d_model: int = Field(255, ge=1, description="width of the residual stream")
    d_mlp: int = Field(64, ge=1, description="width of the feedforward layer")
    dropout: float = Field(0.1, ge=0, lt=1, description="rate of dropout")


class MarkovFlowConfig(FlowConfig):
    """C.6. Feature k is carried by position k alone; the other positions carry no feature."""

    h: int = Field(3, ge=1, description="number of features")
    heads: int = Field(0, ge=0, description="number of heads; 0: as many as features")
    T: int = Field(40, ge=1, description="number of positions")
    m: float = Field(1.7, gt=0, description="importance ratio of neighbouring features")
    b0: float = Field(10.0, gt=0, description="importance of the last feature")
    noise: float = Field(
        0.0, ge=0, le=1e6, description="E|xi|^2 of the noise on the target, which adds half of it to the loss"
    )
    eps: float = Field(1e-6, ge=0, description="variance of the initial attention around 1/T")
    system: Literal["full", "symmetric"] = Field("full", description="heads of their own, or identical (Theorem 1)")
    start: Literal["even", "ordered", "negative"] = Field(
        "even", description="V = 0 and uniform attention, or a start that fulfils Eq. 6: random with V >= 0, or V < 0"
    )
    time: float = Field(1e4, gt=0, description="end of the integration")
    points: int = Field(600, ge=2, description="times at which the flow is recorded")

    @model_validator(mode="after")
    def _fits(self) -> MarkovFlowConfig:
        check_importance(self.m, self.b0, self.h)
        if self.h > self.T:
            raise ValueError(f"h={self.h} features need a position each, and T={self.T}; give T of at least h")
        if 5 * self.eps**0.5 * self.T > 1:
            raise ValueError(
                f"eps={self.eps:g} can make attention negative at T={self.T}; give at most {0.04 / self.T**2:g}"
            )
        return self

    @property
    def n_heads(self) -> int:
        return self.heads or self.h
