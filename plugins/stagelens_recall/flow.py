"""The gradient flow: of the whole simplified model, or Theorem 3.1's two equations for the first jump."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from stagelens import Event, Flow, FlowConfig, Prediction, Reading
from stagelens.experiments import Config, Floats, State
from stagelens_recall import theory
from stagelens_recall.data import refuse_above
from stagelens_recall.learning import SimplifiedHeads, learning_order, plateau_predictions, tokens_named

DOUBLE = 8  # bytes of a number


class RecallFlowConfig(SimplifiedHeads, FlowConfig):
    """`system` full: w and beta of every head; first-jump: alpha and beta of head 1 alone (Theorem 3.1c)."""

    system: Literal["full", "first-jump"] = Field("full", description="which equations are integrated")
    learned: int = Field(0, ge=0, description="the first heads that start out learned: I_h of A.6, h = learned + 1")
    learned_score: float = Field(
        40.0, gt=0, le=500, description="c: what a match of a learned head adds to a score (A.6)"
    )
    blind: bool = Field(False, description="whether the other heads cannot see the tokens of learned heads")
    rate: float = Field(
        1.0, gt=0, le=1e6, description="factor on Xi in the first-jump system; Eq. 4 of the paper says 2"
    )
    time: float = Field(8000.0, gt=0, description="end of the integration")
    method: Literal["LSODA", "RK45", "RK23", "DOP853", "Radau", "BDF"] = Field("DOP853", description="of solve_ivp")
    rtol: float = Field(1e-10, gt=0, description="relative tolerance")
    atol: float = Field(1e-12, gt=0, description="absolute tolerance")

    @model_validator(mode="after")
    def _consistent(self) -> RecallFlowConfig:
        needed = theory.table_size(self.order, self.n_heads)
        if self.system == "full":
            refuse_above("the table of matches", 2 * DOUBLE * needed, self.order)
        elif self.learned:
            raise ValueError("learned heads are for the full system; give system=full")
        if self.learned >= self.n_heads:
            raise ValueError(f"learned={self.learned} of {self.n_heads} heads leaves none to learn; give fewer")
        return self


class GradientFlow(Flow):
    """Gradient flow on the population dot-product loss (2.3), from w = 0 and the given betas."""

    id = "recall/flow"
    title = "the gradient flow of the simplified model, and Theorem 3.1's two equations"
    Config: ClassVar[type[Config]] = RecallFlowConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"points": 2000},  # several within each jump
        "paper": {"time": 1e5, "points": 10_000},
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
            w[h, h] = np.log(1e6)  # one-hot, and beta such that gamma_h = c
            beta[h] = np.sqrt(c.learned_score / theory.match_score(w[h, h], 1.0, c.order))
        return {"w": w, "beta": beta}

    def derivative(self, time: float, state: State) -> State:  # noqa: ARG002
        c = self.config
        if self.first_jump:
            d_alpha, d_beta = theory.first_jump_rates(state["alpha"], state["beta"], c.order, c.responses)
            return {"alpha": c.rate * d_alpha, "beta": c.rate * d_beta}
        d_w, d_beta = theory.population_gradient(self._seen(state["w"]), state["beta"], c.responses)
        return {"w": -d_w, "beta": -d_beta}

    def _seen(self, w: Floats) -> Floats:
        """The scores, with the tokens of learned heads hidden from the others where the config says so."""
        c = self.config
        if not (c.blind and c.learned):
            return w
        hidden = w.copy()
        hidden[c.learned :, : c.learned] = -np.inf
        return hidden

    def observables(self, time: float, state: State) -> Iterable[Reading]:  # noqa: ARG002
        c = self.config
        if self.first_jump:
            alpha, beta = state["alpha"], state["beta"]
            loss = float(theory.first_jump_loss(alpha[0], beta[0], c.order, c.responses))
        else:
            w, beta = self._seen(state["w"]), state["beta"]
            alpha, loss = theory.head_start(state["w"]), theory.population_loss(w, beta, c.responses)
            heads = {"head": list(range(1, len(w) + 1))}
            dims = ("head", "token")
            tokens = {"token": list(range(1, c.order + 1))}
            yield Reading("w", state["w"], dims, {**heads, **tokens})
            yield Reading("attention", theory.attention(w), dims, {**heads, **tokens})
        heads = {"head": list(range(1, len(beta) + 1))}
        yield Reading("loss", loss)
        yield Reading("alpha", alpha, ("head",), heads)
        yield Reading("beta", beta, ("head",), heads)
        yield Reading("conserved/proof", theory.conserved(alpha, beta, c.order, 1), ("head",), heads)
        yield Reading("conserved/statement", theory.conserved(alpha, beta, c.order, -1), ("head",), heads)

    def events(self) -> Sequence[Event]:
        """`escape`: the loss is half-way between the first plateau and the next."""
        c = self.config
        first, second = (theory.plateau_loss(c.order, c.responses, c.learned + j) for j in (0, 1))

        def half_way(time: float, state: State) -> float:
            loss = next(float(r.array()) for r in self.observables(time, state) if r.name == "loss")
            return loss - (first + second) / 2

        return [Event("escape", half_way, terminal=False, direction=-1)]

    def times(self) -> Floats:
        """Half of them even, half even in log time from 1 on."""
        end, points = self.config.time, self.config.points
        log = np.geomspace(min(1.0, end / 10), end, points - points // 2)
        return np.unique(np.concatenate([np.linspace(0, end, points // 2 + 1), log]))

    @property
    def learning_order(self) -> list[tuple[int, ...]]:
        """The heads that are not learned yet, in the order in which they will be."""
        c = self.config
        betas = c.first_betas[:1] if self.first_jump else c.first_betas
        fresh = learning_order([0.0] * c.learned + list(betas[c.learned :]), c.order)
        return [*([tuple(range(1, c.learned + 1))] if c.learned else []), *fresh]

    def predictions(self) -> Sequence[Prediction]:
        c = self.config
        levels = plateau_predictions(
            self.learning_order, c.order, lambda j: theory.plateau_loss(c.order, c.responses, j)
        )[1 if c.learned else 0 :]
        largest = max(c.first_betas)
        if c.learned or largest == 0:
            return levels
        end = theory.escape_time(largest, c.order, c.responses) / c.rate
        return [*levels, Prediction("first jump", "time", end, "Theorem 3.1, escape time", event="escape")]

    def stage_names(self) -> Sequence[str]:
        return [f"{tokens_named(heads)} matched" for heads in self.learning_order[1 if self.config.learned else 0 :]]

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_recall.figures import first_jump

        return {"first_jump": first_jump(run)}
