"""The simplified model, trained on the exact population loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import factorial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformer_lens import HookedRootModule

from stagelens import Group, Prediction, Schedule, Task, TaskConfig
from stagelens.base import generator
from stagelens.experiments import Config
from stagelens_recall import theory
from stagelens_recall.data import (
    all_permutations,
    matching,
    queries_of,
    recall_reference,
    refuse_above,
    sample_sequences,
)
from stagelens_recall.learning import (
    SimplifiedHeads,
    escape_prediction,
    learning_order,
    partial_matches,
    plateau_predictions,
    tokens_named,
)
from stagelens_recall.losses import NODES, answer_probability, loss_of, mean_cross_entropy, mean_dot_product
from stagelens_recall.model import SimplifiedTransformer

Loss = Literal["dot-product", "cross-entropy"]
BYTES = 4  # of a number


class SimplifiedConfig(SimplifiedHeads, TaskConfig):
    """The simplified model. `batch_size` and `eval_size` count only where `sampled` is set."""

    loss: Loss = Field("dot-product", description="1 - p_r or -log p_r, of the right response r")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD's momentum")
    init_scale: float = Field(0.0, ge=0, description="standard deviation of the heads' scores w at the start")
    sampled: bool = Field(False, description="draw random maps instead of taking the exact mean over all of them")
    lr: float = Field(0.5, gt=0, description="learning rate")
    steps: int = Field(1200, ge=1, description="training steps")

    @model_validator(mode="after")
    def _consistent(self) -> SimplifiedConfig:
        per_permutation = (
            self.order**2 + 3 * self.order * self.n_heads + (2 * NODES if self.loss != "dot-product" else 0)
        )
        refuse_above("a training step", 4 * BYTES * factorial(self.order) * per_permutation, self.order)
        if self.train_size and not self.sampled:
            raise ValueError("the exact loss has no training set; give train_size=0, or sampled=true")
        return self


class Simplified(Task):
    """A0-A3 (A.2) by gradient descent with momentum on the exact population loss."""

    id = "recall/simplified"
    title = "one head after another learns to match one more token of the query; exact population loss"
    Config: ClassVar[type[Config]] = SimplifiedConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {"lr": 0.2, "steps": 4500}}
    probes: ClassVar[Sequence[str]] = (
        "attention_sparsity",
        "head_specialization",
        "kl_to_references",
        "weight_norms",
        "conserved",
        "recall_circuit",
    )

    def build_model(self) -> HookedRootModule:
        c = self.config
        return SimplifiedTransformer(c.order, c.first_betas, c.init_scale, generator(self.seed, "init"))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """The query pi_1, [1, k]: relabelling the tokens turns all others into it. If sampled, sequences [n, l + 1]."""
        c = self.config
        if c.sampled:
            return sample_sequences(c.order, c.responses, n, generator)
        return all_permutations(c.order)[:1]

    def batches(self, device: torch.device | str) -> Callable[[int], Tensor]:
        """Unless sampled, the same query at every step."""
        if self.config.sampled:
            return super().batches(device)
        query = all_permutations(self.config.order)[:1].to(device)
        return lambda step: query  # noqa: ARG005

    def _queries(self, batch: Tensor) -> Tensor:
        return queries_of(batch, self.config.order) if self.config.sampled else batch

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """The mean over all maps f (and so over all queries); if sampled, over those of the batch."""
        c = self.config
        log_s = model(self._queries(batch))  # [n, k!]
        if c.sampled:
            return loss_of(answer_probability(log_s, batch, c.order), c.loss)
        asked = _asked(batch)
        mean = mean_dot_product if c.loss == "dot-product" else mean_cross_entropy
        return mean(log_s, asked, c.responses)

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """`recalled`: the attention s_q on the permutation that is asked for."""
        return {"recalled": (output.exp() * _asked(self._queries(batch))).sum(-1).mean()}

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.lr, momentum=self.config.momentum)

    def groups(self) -> Mapping[str, Group]:
        """The tokens of the first layer's window, counted from its end. The second layer's keys are permutations."""
        return {f"token {i}": Group(positions=(-i,), layers=(0,)) for i in range(1, self.config.order + 1)}

    def references(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """The partial predictors f^N of A.4, as attention to the permutations that match in N."""
        return {
            name: lambda batch, n=matched: recall_reference(self._queries(batch), n)  # type: ignore[misc]
            for name, matched in partial_matches(self.learning_order).items()
        }

    def conserved(self, model: HookedRootModule) -> Mapping[str, Tensor]:
        """Theorem 3.1d's quantity of each head, and the sum of its scores, which the softmax leaves alone."""
        return {"f(alpha) - beta^2/4": model.conserved(), "sum of w": model.w.sum(-1)}

    @property
    def learning_order(self) -> list[tuple[int, ...]]:
        return learning_order(self.config.first_betas, self.config.order)

    def predictions(self) -> Sequence[Prediction]:
        """The plateaus on the way, and when the first one ends (for the dot-product loss)."""
        c = self.config
        level = theory.plateau_loss if c.loss == "dot-product" else theory.plateau_cross_entropy
        levels = plateau_predictions(self.learning_order, c.order, lambda j: level(c.order, c.responses, j))
        largest = max(c.first_betas)
        if c.loss != "dot-product" or largest == 0:
            return levels
        end = theory.escape_time(largest, c.order, c.responses) * (1 - c.momentum) / c.lr
        first, second = (level(c.order, c.responses, j) for j in (0, 1))
        return [*levels, escape_prediction(end, (first + second) / 2)]

    def stage_names(self) -> Sequence[str]:
        return [f"{tokens_named(heads)} matched" for heads in self.learning_order]

    def schedule(self) -> Schedule:
        return Schedule(log=20, even=100)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_recall.figures import staged_learning

        return {"staged_learning": staged_learning(run)}


def _asked(queries: Tensor) -> Tensor:
    """bool [n, k!]: which permutation is the query."""
    return matching(queries, tuple(range(1, queries.shape[-1] + 1)))
