"""The simplified model, trained on the exact population loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stagelens import Group, Prediction, Schedule, Task
from stagelens.base import generator
from stagelens.experiments import FixedBatch
from stagelens.models import HookedRootModule
from stagelens_recall import theory
from stagelens_recall.config import SimplifiedConfig
from stagelens_recall.data import (
    all_permutations,
    asked_in,
    queries_of,
    recall_reference,
    sample_sequences,
    window_groups,
)
from stagelens_recall.losses import answer_loss, answer_probability, mean_cross_entropy, mean_dot_product
from stagelens_recall.model import SimplifiedTransformer
from stagelens_recall.predictions import (
    escape_prediction,
    learning_order,
    partial_matches,
    plateau_predictions,
    stage_names,
)


class Simplified(Task):
    """The model of A0-A3 (A.2), trained by gradient descent with momentum on the exact population loss."""

    id = "recall/simplified"
    title = "one head after another learns to match one more token of the query; exact population loss"
    Config = SimplifiedConfig
    presets = {"quick": {}, "paper": {"lr": 0.2, "steps": 4500}}
    sources = {
        "A.6": ("order", "responses"),
        "section 3": ("loss",),
        "the last time in Fig. 1": ("steps",),
        "a guess; section 3 has SGD with momentum": ("lr", "momentum", "betas"),
    }
    probes = ("recall_circuit",)

    def build_model(self) -> HookedRootModule:
        c = self.config
        return SimplifiedTransformer(c.order, c.first_betas, c.init_scale, generator(self.seed, "init"))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns the query pi_1 [1, k], or n sequences [n, l + 1] if the config says `sampled`.

        Relabelling the tokens turns every other query into pi_1, so one query represents all.
        """
        c = self.config
        if c.sampled:
            return sample_sequences(c.order, c.responses, n, generator)
        return all_permutations(c.order)[:1]

    def batches(self, device: torch.device | str) -> Callable[[int], Tensor]:
        """Returns a function from a step to its batch; unless sampled, every step has the same query."""
        if self.config.sampled:
            return super().batches(device)
        return FixedBatch(all_permutations(self.config.order)[:1], device)

    def _queries(self, batch: Tensor) -> Tensor:
        return queries_of(batch, self.config.order) if self.config.sampled else batch

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """Returns the mean loss over all maps f, and so over all queries; if sampled, over those of the batch."""
        c = self.config
        log_s = model(self._queries(batch))  # [n, k!]
        if c.sampled:
            p = answer_probability(log_s, batch, c.order)
            return answer_loss(p.clamp_min(torch.finfo(p.dtype).tiny).log(), c.loss)
        mean = mean_dot_product if c.loss == "dot-product" else mean_cross_entropy
        return mean(log_s, asked_in(batch), c.responses)

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """Returns `recalled`: the attention s_q on the permutation that is the query."""
        return {"recalled": (output.exp() * asked_in(self._queries(batch))).sum(-1).mean()}

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.lr, momentum=self.config.momentum)

    def groups(self) -> Mapping[str, Group]:
        return window_groups(self.config.order)

    def induction_target(self) -> Group:
        """Returns the permutation that is the query: the second layer then reads its response."""
        return Group(mask=self._asked, layers=(1,))

    def _asked(self, batch: Tensor) -> Tensor:
        return asked_in(self._queries(batch))[:, None]  # [batch, query, permutation]

    def references(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """Returns the partial predictors f^N of A.4, as attention to the permutations that match in N."""
        return {
            name: lambda batch, n=matched: recall_reference(self._queries(batch), n)  # type: ignore[misc]
            for name, matched in partial_matches(self.learning_order).items()
        }

    def conserved(self, model: HookedRootModule) -> Mapping[str, Tensor]:
        """Returns Theorem 3.1d's quantity of each head, and the sum of its scores, which the softmax conserves."""
        quantity = theory.conserved(theory.alpha_of(model.w), model.beta, self.config.order, xp=torch)
        return {"f(alpha) - beta^2/4": quantity, "sum of w": model.w.sum(-1)}

    @property
    def learning_order(self) -> list[tuple[int, ...]]:
        """The heads in the order in which theory expects them to learn."""
        return learning_order(self.config.first_betas, self.config.order)

    def predictions(self) -> Sequence[Prediction]:
        """Returns the plateaus, and for the dot-product loss the end of the first one."""
        c = self.config
        levels = plateau_predictions(self.learning_order, c.order, c.responses, c.loss)
        largest = max(c.first_betas)
        if c.loss != "dot-product" or largest == 0:
            return levels
        end = theory.escape_time(largest, c.order, c.responses) * (1 - c.momentum) / c.lr
        return [*levels, escape_prediction(end, theory.half_way(c.order, c.responses))]

    def stage_names(self) -> Sequence[str]:
        return stage_names(self.learning_order)

    def schedule(self) -> Schedule:
        return Schedule(log=20, even=100)

    def figures(self, run: Any) -> Mapping[str, Any]:
        from stagelens_recall.figures.stages import staged_learning

        return {"staged_learning": staged_learning(run)}
