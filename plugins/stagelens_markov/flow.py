"""The gradient flow of the regression variant (Eq. 5), of heads that differ a little or are identical."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from stagelens import Event, Flow, Group, Prediction, Reading
from stagelens.base import derive
from stagelens.experiments import Floats, State
from stagelens_markov import theory
from stagelens_markov.config import MarkovFlowConfig
from stagelens_markov.data import importance
from stagelens_markov.predictions import plateau_levels

PARTED = 0.1  # a head's distance from the flow of identical heads at which the heads have parted
HALF = 1 - 0.5**0.5  # the learned fraction of a feature at which half of its loss is gone


class RegressionFlow(Flow):
    """Eq. 5 from V = 0 and nearly uniform attention, together with the flow of identical heads (Theorem 1)."""

    id = "markov/flow"
    title = "the gradient flow of the regression variant: heads compete for one position, then separate"
    Config = MarkovFlowConfig
    presets = {"quick": {}, "paper": {"time": 1e5, "points": 2000}}
    sources = {
        "C.6": ("h", "T", "m", "eps"),
        "a guess: Table 1's; C.6 gives none": ("b0",),
        "ours": ("time", "points"),
    }

    @cached_property
    def scales(self) -> Floats:
        """m_1, m_2, ..., [feature]."""
        return np.array(importance(self.config.m, self.config.b0, self.config.h))

    @cached_property
    def G(self) -> Floats:
        """The target of Proposition 1, [feature, position]."""
        return theory.target(self.scales, self.config.T)

    @property
    def symmetric(self) -> bool:
        return bool(self.config.system == "symmetric")

    @property
    def copies(self) -> int:
        """The number of heads that each head of the state represents."""
        return int(self.config.n_heads) if self.symmetric else 1

    @property
    def learnable(self) -> int:
        """The number of features that are learned in the end."""
        return 1 if self.symmetric else min(self.config.h, self.config.n_heads)

    def initial(self) -> State:
        """Returns the heads (v, s) and, in the full system, (v0, s0): the state of identical heads."""
        c = self.config
        random = np.random.default_rng(derive(self.seed, "flow"))
        v0, s0 = np.zeros(c.h), np.full(c.T, 1 / c.T)
        if c.start == "ordered":
            v0, s0 = ordered_start(c.h, c.T, random)
        elif c.start == "negative":
            v0, s0 = negative_start(c.h, c.T, c.b0, random)
        if self.symmetric:
            return {"v": v0[None], "s": s0[None]}
        noise = c.eps**0.5 * random.normal(size=(c.n_heads, c.T))
        s = s0 + noise - noise.mean(1, keepdims=True)
        return {"v": np.tile(v0, (c.n_heads, 1)), "s": s, "v0": v0, "s0": s0}

    def derivative(self, time: float, state: State) -> State:  # noqa: ARG002
        if self.symmetric:
            d_v, d_s = theory.symmetric_rates(state["v"][0], state["s"][0], self.G, self.copies)
            return {"v": d_v[None], "s": d_s[None]}
        d_v, d_s = theory.rates(state["v"], state["s"], self.G)
        d_v0, d_s0 = theory.symmetric_rates(state["v0"], state["s0"], self.G, self.config.n_heads)
        return {"v": d_v, "s": d_s, "v0": d_v0, "s0": d_s0}

    def observables(self, time: float, state: State) -> Iterable[Reading]:  # noqa: ARG002
        c, v, s = self.config, state["v"], state["s"]
        parts = theory.loss_parts(self.copies * v, s, self.G)
        heads = {"head": range(len(v))}
        features = {"feature": list(range(1, c.h + 1))}
        positions = {"position": [*map(str, range(1, c.h + 1)), "rest"]}
        yield Reading("loss", self.loss(v, s) + c.noise / 2)
        yield Reading("loss_parts", with_rest(parts, c.h), ("feature", "position"), {**features, **positions})
        yield Reading("learned", self.learned(state), ("feature",), features)
        yield Reading("attention", with_rest(s, c.h), ("head", "position"), {**heads, **positions})
        yield Reading("value", v, ("head", "feature"), {**heads, **features})
        v1, s1 = theory.competitive_end(self.G, c.n_heads)
        v0, s0 = (v[0], s[0]) if self.symmetric else (state["v0"], state["s0"])
        if not self.symmetric:
            yield Reading("deviation", deviation(state))
        yield Reading("distance", float(max(np.linalg.norm(v0 - v1), np.linalg.norm(s0 - s1))))

    def series(self, states: State) -> Iterable[Reading]:
        """Returns what the attention probes read of the heads. I(k) is the position that carries feature k."""
        from stagelens_probes.pattern_series import pattern_series

        groups = {f"I({k})": Group(positions=(k - 1,)) for k in range(1, self.config.h + 1)}
        return pattern_series({"s": states["s"]}, lambda s: {0: s[None, :, None]}, groups)

    def loss(self, v: Floats, s: Floats) -> float:
        """Returns Proposition 1's loss, without the noise."""
        v, s = (np.repeat(part, self.copies, axis=0) for part in (v, s))
        return max(theory.tensor_loss(v, s, self.G), 0.0)  # in the end it is the difference of two equal numbers

    def learned(self, state: State) -> Floats:
        """Returns the learned fraction of each feature at its position, P_jj / m_j, [feature]."""
        P = self.copies * state["v"].T @ state["s"]
        return np.asarray(np.diagonal(P) / self.scales)

    def events(self) -> Sequence[Event]:
        """Returns `feature j learned` (half of its loss is gone) and `heads part` (one leaves the common path)."""
        happens: Any = {"terminal": False, "direction": 1}
        learned = [
            Event(f"feature {j + 1} learned", partial(self._beyond_half, j), **happens) for j in range(self.config.h)
        ]
        parting = [Event("heads part", lambda _, state: deviation(state) - PARTED, **happens)]
        return learned if self.symmetric else learned + parting

    def _beyond_half(self, j: int, time: float, state: State) -> float:  # noqa: ARG002
        return float(self.learned(state)[j]) - HALF

    def predictions(self) -> Sequence[Prediction]:
        return plateau_levels(self.scales, self.config.noise, self.learnable)

    def stage_names(self) -> Sequence[str]:
        return [f"feature {j} learned" for j in range(1, self.learnable + 1)]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_markov.figures.flow import flow_figure

        return {} if self.symmetric else {"fig10": flow_figure(run)}


def with_rest(values: Floats, h: int) -> Floats:
    """[..., position] -> [..., h + 1]: the h positions that carry a feature, and the sum over the others."""
    return np.concatenate([values[..., :h], values[..., h:].sum(-1, keepdims=True)], axis=-1)


def deviation(state: State) -> float:
    """Returns the largest |V_k - V| or |s_k - s| of a head k from the flow of identical heads (Theorem 2)."""
    return float(max(np.linalg.norm(state[name] - state[f"{name}0"], axis=1).max() for name in ("v", "s")))


def negative_start(h: int, T: int, b0: float, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws v [feature] < 0 and nearly uniform s [position] that fulfil Eq. 6: both fall with the feature's number."""
    s = 1 + 0.1 * random.uniform(size=T)  # nosec B311  # numpy's, of the run's seed
    s[:h] = np.sort(s[:h])[::-1]
    v: Floats = -2 * b0 * (1 + 0.05 * np.arange(h, dtype=np.float64))
    return v, s / s.sum()


def ordered_start(h: int, T: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws v [feature] >= 0 and s [position] in which the first feature has the largest entries (Eq. 6)."""
    v, s = random.uniform(size=h), random.dirichlet(np.ones(T))  # nosec B311  # numpy's, of the run's seed
    for values, largest in ((v, int(v.argmax())), (s, int(s[:h].argmax()))):
        values[0], values[largest] = values[largest], values[0]
    return v, s
