"""The gradient flow: of the whole simplified model, or Theorem 3.1's two equations for the first jump."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stagelens import Event, Flow, Prediction, Reading
from stagelens.experiments import Floats, State, recording_times
from stagelens_recall import theory
from stagelens_recall.config import RecallFlowConfig
from stagelens_recall.data import window_groups
from stagelens_recall.predictions import ESCAPE, learning_order, plateau_predictions, stage_names

LEARNED_W = np.log(1e6)  # the score on its own token of a head that starts learned: attention is one-hot


class RecallFlow(Flow):
    """Gradient flow on the population dot-product loss (2.3), from w = 0 and the given betas."""

    id = "recall/flow"
    title = "the gradient flow of the simplified model, and Theorem 3.1's two equations"
    Config = RecallFlowConfig
    presets = {
        "quick": {"points": 2000},  # several within each jump
        "paper": {"time": 1e5, "points": 10_000},
    }
    sources = {
        "A.6": ("order", "responses"),
        "a guess": ("betas",),
        "ours": ("time", "points"),
    }

    @property
    def first_jump(self) -> bool:
        return bool(self.config.system == "first-jump")

    def initial(self) -> State:
        c = self.config
        if self.first_jump:
            return {"alpha": np.zeros(1), "beta": np.array(c.first_betas[:1])}
        w, beta = np.zeros((c.n_heads, c.order)), np.array(c.first_betas)
        for h in range(c.learned):
            w[h, h] = LEARNED_W
            beta[h] = np.sqrt(c.learned_score / theory.match_score(LEARNED_W, 1.0, c.order))  # so that gamma_h = c
        return {"w": w, "beta": beta}

    def derivative(self, time: float, state: State) -> State:  # noqa: ARG002
        c = self.config
        if self.first_jump:
            d_alpha, d_beta = theory.first_jump_rates(state["alpha"], state["beta"], c.order, c.responses)
            return {"alpha": c.rate * d_alpha, "beta": c.rate * d_beta}
        d_w, d_beta = theory.population_gradient(self._seen(state["w"]), state["beta"], c.responses)
        return {"w": -d_w, "beta": -d_beta}

    def _seen(self, w: Floats) -> Floats:
        """Returns the scores w; if the config says `blind`, the tokens of learned heads are masked for the others."""
        c = self.config
        if not (c.blind and c.learned):
            return w
        masked = w.copy()
        masked[c.learned :, : c.learned] = -np.inf
        return masked

    def _loss(self, state: State) -> float:
        c = self.config
        if self.first_jump:
            return float(theory.first_jump_loss(state["alpha"][0], state["beta"][0], c.order, c.responses))
        return theory.population_loss(self._seen(state["w"]), state["beta"], c.responses)

    def observables(self, time: float, state: State) -> Iterable[Reading]:  # noqa: ARG002
        order, beta = self.config.order, state["beta"]
        heads = {"head": range(len(beta))}
        if not self.first_jump:
            coordinates = heads | {"token": list(range(1, order + 1))}
            yield Reading("w", state["w"], ("head", "token"), coordinates)
            yield Reading("attention", theory.attention(self._seen(state["w"])), ("head", "token"), coordinates)
        alpha = state["alpha"] if self.first_jump else theory.alpha_of(state["w"])
        yield Reading("loss", self._loss(state))
        yield Reading("alpha", alpha, ("head",), heads)
        yield Reading("beta", beta, ("head",), heads)
        yield Reading("conserved/proof", theory.conserved(alpha, beta, order, 1), ("head",), heads)
        yield Reading("conserved/statement", theory.conserved(alpha, beta, order, -1), ("head",), heads)

    def series(self, states: State) -> Iterable[Reading]:
        """Returns what the attention probes read of the first layer; the first jump has one head, w = alpha e_1."""
        from stagelens_probes.pattern_series import pattern_series

        order = self.config.order
        w = states["alpha"][..., None] * np.eye(1, order) if self.first_jump else states["w"]  # [time, head, token]
        attention = theory.attention(np.stack([self._seen(one) for one in w]))
        in_order = attention[..., ::-1].copy()  # the tokens of w are counted from the end
        return pattern_series({"a": in_order}, lambda a: {0: a[None, :, None]}, window_groups(order))

    def events(self) -> Sequence[Event]:
        """Returns the crossing `escape`: the loss is half-way between the first plateau and the next."""
        c = self.config
        half = theory.half_way(c.order, c.responses, c.learned)
        return [Event("escape", lambda _, state: self._loss(state) - half, terminal=False, direction=-1)]

    def times(self) -> Floats:
        """Returns the recorded times [time]: half evenly spaced, half evenly spaced in log time."""
        end, points = self.config.time, self.config.points
        return recording_times(end, even=points // 2 + 1, log=points - points // 2, first=min(1.0, end / 10))

    @property
    def learning_order(self) -> list[tuple[int, ...]]:
        """The heads in the order in which they learn; those that start learned come first, together."""
        c = self.config
        betas = c.first_betas[:1] if self.first_jump else c.first_betas
        ahead = learning_order([0.0] * c.learned + list(betas[c.learned :]), c.order)
        return [tuple(range(1, c.learned + 1)), *ahead] if c.learned else ahead

    def predictions(self) -> Sequence[Prediction]:
        """Returns the plateaus from the start on, and the time of the first jump."""
        c = self.config
        levels = plateau_predictions(self.learning_order, c.order, c.responses, "dot-product")
        if c.learned:
            return levels[1:]
        largest = max(c.first_betas)
        if largest == 0:
            return levels
        end = theory.escape_time(largest, c.order, c.responses) / c.rate
        return [*levels, Prediction("first jump", "time", end, ESCAPE, event="escape")]

    def stage_names(self) -> Sequence[str]:
        return stage_names(self.learning_order)[1 if self.config.learned else 0 :]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_recall.figures.first_jump import first_jump

        return {"first_jump": first_jump(run)}
