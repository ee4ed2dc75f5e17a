"""The gradient flow of the regression variant (Eq. 5), of heads that differ a little or are all alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from stagelens import Event, Flow, FlowConfig, Prediction, Reading
from stagelens.base import derive
from stagelens.experiments import Config, Floats, State
from stagelens_markov import theory
from stagelens_markov.data import check_importance, importance

PARTED = 0.1  # a head's distance from the flow of heads that are all alike
HALF = 1 - 0.5**0.5  # the share of a feature at which half of its loss is gone


class MarkovFlowConfig(FlowConfig):
    """C.6. Feature k is told by position k alone; the other positions tell nothing."""

    h: int = Field(3, ge=1, description="number of features")
    heads: int = Field(0, ge=0, description="number of heads; 0: as many as features")
    T: int = Field(40, ge=1, description="number of positions")
    m: float = Field(1.7, gt=0, description="importance ratio of neighbouring features")
    b0: float = Field(10.0, gt=0, description="importance of the last feature")
    noise: float = Field(
        0.0, ge=0, le=1e6, description="E|xi|^2 of the noise on the target, which adds half of it to the loss"
    )
    eps: float = Field(1e-6, ge=0, description="variance of the initial attention around 1/T")
    system: Literal["full", "symmetric"] = Field("full", description="heads of their own, or all alike (Theorem 1)")
    start: Literal["even", "ordered"] = Field("even", description="V = 0 and even attention, or any that fulfil Eq. 6")
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


class RegressionFlow(Flow):
    """Eq. 5 from V = 0 and nearly even attention, beside the flow of heads that are all alike (Theorem 1)."""

    id = "markov/flow"
    title = "the gradient flow of the regression variant: heads compete for one position, then part"
    Config: ClassVar[type[Config]] = MarkovFlowConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {"time": 1e5, "points": 2000}}

    @cached_property
    def scales(self) -> Floats:
        """m_1, m_2, ..., [feature]."""
        return np.array(importance(self.config.m, self.config.b0, self.config.h))

    @cached_property
    def G(self) -> Floats:
        return theory.target(self.scales, self.config.T)

    @property
    def copies(self) -> int:
        """How many heads each head of the state stands for."""
        return int(self.config.n_heads) if self.config.system == "symmetric" else 1

    def initial(self) -> State:
        """The heads (v, s), and in the full system (v0, s0), where they would be if they were all alike."""
        c = self.config
        random = np.random.default_rng(derive(self.seed, "flow"))
        v0, s0 = np.zeros(c.h), np.full(c.T, 1 / c.T)
        if c.start == "ordered":
            v0, s0 = ordered_start(c.h, c.T, random)
        if c.system == "symmetric":
            return {"v": v0[None], "s": s0[None]}
        apart = c.eps**0.5 * random.normal(size=(c.n_heads, c.T))
        s = s0 + apart - apart.mean(1, keepdims=True)
        return {"v": np.tile(v0, (c.n_heads, 1)), "s": s, "v0": v0, "s0": s0}

    def derivative(self, time: float, state: State) -> State:  # noqa: ARG002
        if self.config.system == "symmetric":
            d_v, d_s = theory.symmetric_rates(state["v"][0], state["s"][0], self.G, self.copies)
            return {"v": d_v[None], "s": d_s[None]}
        d_v, d_s = theory.rates(state["v"], state["s"], self.G)
        d_v0, d_s0 = theory.symmetric_rates(state["v0"], state["s0"], self.G, self.config.n_heads)
        return {"v": d_v, "s": d_s, "v0": d_v0, "s0": d_s0}

    def observables(self, time: float, state: State) -> Iterable[Reading]:  # noqa: ARG002
        c, v, s = self.config, state["v"], state["s"]
        parts = theory.loss_parts(self.copies * v, s, self.G)
        heads = {"head": list(range(1, len(v) + 1))}
        features = {"feature": list(range(1, c.h + 1))}
        positions = {"position": [*map(str, range(1, c.h + 1)), "rest"]}
        yield Reading("loss", self.loss(v, s) + c.noise / 2)
        yield Reading("loss_parts", gathered(parts, c.h), ("feature", "position"), {**features, **positions})
        yield Reading("learned", self.shares(state), ("feature",), features)
        yield Reading("attention", gathered(s, c.h), ("head", "position"), {**heads, **positions})
        yield Reading("value", v, ("head", "feature"), {**heads, **features})
        v1, s1 = theory.competitive_end(self.G, c.n_heads)
        if c.system == "symmetric":
            yield Reading("distance", float(max(np.linalg.norm(v[0] - v1), np.linalg.norm(s[0] - s1))))
        else:
            yield Reading("deviation", deviation(state))
            yield Reading("distance", float(max(np.linalg.norm(state["v0"] - v1), np.linalg.norm(state["s0"] - s1))))

    def loss(self, v: Floats, s: Floats) -> float:
        """Proposition 1's loss, without the noise."""
        each = np.repeat(v, self.copies, axis=0), np.repeat(s, self.copies, axis=0)
        return max(theory.tensor_loss(*each, self.G), 0.0)  # at the end it is a difference of equal numbers

    def shares(self, state: State) -> Floats:
        """How much of each feature is at its position: P_jj / m_j, [feature]."""
        P = self.copies * state["v"].T @ state["s"]
        return np.asarray(np.diagonal(P) / self.scales)

    def events(self) -> Sequence[Event]:
        """`feature j learned`: half of its loss is gone. `heads part`: one leaves the common path."""
        learned = [self._learned(j) for j in range(self.config.h)]
        if self.config.system == "symmetric":
            return learned
        return [*learned, Event("heads part", lambda _, x: deviation(x) - PARTED, terminal=False, direction=1)]

    def _learned(self, j: int) -> Event:
        def beyond_half(_: float, state: State) -> float:
            return float(self.shares(state)[j]) - HALF

        return Event(f"feature {j + 1} learned", beyond_half, terminal=False, direction=1)

    def predictions(self) -> Sequence[Prediction]:
        """The losses at the fixed points with the 0, 1, ... most important features learned."""
        c = self.config
        levels = theory.plateau_losses(self.scales) + c.noise / 2
        reached = levels[:2] if c.system == "symmetric" else levels[: min(c.h, c.n_heads) + 1]
        return [Prediction(f"{j} learned", "level", float(x), "fixed points of Eq. 5") for j, x in enumerate(reached)]

    def stage_names(self) -> Sequence[str]:
        count = 1 if self.config.system == "symmetric" else min(self.config.h, self.config.n_heads)
        return [f"feature {j} learned" for j in range(1, count + 1)]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_markov.figures import flow_figure

        return {"fig10": flow_figure(run)} if self.config.system == "full" else {}


def gathered(values: Floats, h: int) -> Floats:
    """[..., position] -> [..., h + 1]: the positions that tell a feature, and the sum over the others."""
    return np.concatenate([values[..., :h], values[..., h:].sum(-1, keepdims=True)], axis=-1)


def deviation(state: State) -> float:
    """The largest |V_k - V| or |s_k - s| of a head from the flow of heads that are all alike (Theorem 2)."""
    apart = [np.linalg.norm(state[name] - state[f"{name}0"], axis=1).max() for name in ("v", "s")]
    return float(max(apart))


def ordered_start(h: int, T: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """v [feature] >= 0 and s [position] drawn at random so that the first feature leads in both (Eq. 6)."""
    v, s = random.uniform(size=h), random.dirichlet(np.ones(T))  # nosec B311  # numpy's, of the run's seed
    for leads, values in ((int(v.argmax()), v), (int(s[:h].argmax()), s)):
        values[0], values[leads] = values[leads], values[0]
    return v, s
