"""The tasks on sampled sequences: the original model, and a standard transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from stagelens import Group, Prediction, Schedule, Task
from stagelens.base import derive, generator
from stagelens.models import HookedRootModule
from stagelens_recall.config import OriginalConfig, RecallTransformerConfig
from stagelens_recall.data import asked_responses, context_length, response_reference, sample_sequences
from stagelens_recall.losses import answer_loss
from stagelens_recall.model import OriginalTransformer
from stagelens_recall.predictions import plateau_predictions, stage_names, tokens_named


class OnSequences(Task):
    """The base of both tasks: the data, the loss of the last token, and the references."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns sequences [n, l + 1] that end with the answer."""
        return sample_sequences(self.config.order, self.config.responses, n, generator)

    def log_probabilities(self, output: Tensor) -> Tensor:
        """Returns the log-probabilities [n, token] of the token after the query, from the model's output."""
        return output

    def _answer(self, output: Tensor, batch: Tensor) -> Tensor:
        """Returns log p_r [n, 1], the log-probability of the right response."""
        return self.log_probabilities(output).gather(1, batch[:, -1:])

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """Returns the loss of the answer, which is predicted at the query's last token only."""
        return answer_loss(self._answer(model(batch[:, :-1]), batch), self.config.loss)

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """Returns the dot-product loss 1 - p_r for either training loss: it has the simplified model's plateaus."""
        return {"dot_product": 1 - self._answer(output, batch).exp().mean()}

    def queries(self) -> slice:
        return slice(-1, None)

    def groups(self) -> Mapping[str, Group]:
        """Returns the keys that are 0, 1, ..., k positions before the query."""
        return {f"{i} back": Group(offsets=(i,)) for i in range(self.config.order + 1)}

    def induction_target(self) -> Group | None:
        """Returns the response of the permutation that is the query, for the second layer's last query."""
        return Group(mask=partial(asked_responses, order=self.config.order), layers=(1,))

    def references(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """Returns the partial predictors f^N of A.4, for every set N of up to k - 1 tokens."""
        c = self.config
        return {
            tokens_named(n) if n else "nothing": lambda batch, n=n: self._reference(batch, n)  # type: ignore[misc]
            for size in range(c.order)
            for n in combinations(range(1, c.order + 1), size)
        }

    def _reference(self, batch: Tensor, matched: tuple[int, ...]) -> Tensor:
        c = self.config
        return response_reference(batch, c.order, c.order + c.responses, matched)

    @property
    def learning_order(self) -> list[tuple[int, ...]]:
        """The tokens in the order in which they are matched: from the last one on."""
        return [(i,) for i in range(1, self.config.order)]

    def predictions(self) -> Sequence[Prediction]:
        """Returns the plateaus of the simplified model."""
        c = self.config
        return plateau_predictions(self.learning_order, c.order, c.responses, c.loss)

    def stage_names(self) -> Sequence[str]:
        return ["responses attended", *stage_names(self.learning_order)]

    def schedule(self) -> Schedule:
        return Schedule(log=15, even=80)


class Original(OnSequences):
    """The disentangled two-layer attention-only model (2.2) with full matrices Q and K."""

    id = "recall/original"
    title = "the two-layer disentangled attention-only model on sampled sequences"
    Config = OriginalConfig
    presets = {"quick": {"order": 3, "steps": 1500}, "paper": {"lr": 0.005}}
    sources = {
        "A.6": ("order", "responses"),
        "section 2.2": ("heads",),
        "a guess": ("optimizer", "loss", "lr", "steps", "batch_size", "init_scale", "w_scale"),
    }
    probes = ("recall_circuit",)

    def build_model(self) -> HookedRootModule:
        c = self.config
        scales = (c.w_scale, c.init_scale)
        return OriginalTransformer(c.order, c.responses, c.n_heads, scales, generator(self.seed, "init"))

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        c = self.config
        if c.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=c.lr)
        return torch.optim.SGD(model.parameters(), lr=c.lr, momentum=c.momentum)


class Standard(OnSequences):
    """A standard transformer of two attention layers: does it learn in stages too?"""

    id = "recall/transformer"
    title = "a standard two-layer attention-only transformer on the same sequences"
    Config = RecallTransformerConfig
    presets = {"quick": {"order": 3, "steps": 500}, "paper": {"steps": 5000}}
    sources = {
        "A.6": ("order", "responses"),
        "a guess: the paper has no such model": ("heads", "d_model", "positions", "lr", "steps", "batch_size"),
    }

    def build_model(self) -> HookedRootModule:
        from stagelens.models import build_transformer  # needs TransformerLens 3

        c = self.config
        return build_transformer(
            n_layers=2,
            n_heads=c.n_heads,
            d_model=c.d_model,
            d_head=max(1, c.d_model // c.n_heads),
            n_ctx=context_length(c.order),
            d_vocab=c.order + c.responses,
            normalization="layer",
            positions=c.positions,
            init_scale=c.init_scale,
            seed=derive(self.seed, "init"),
        )

    def induction_target(self) -> None:
        """Returns None: the model reads any tokens, so random ones are repeated."""

    def stage_names(self) -> Sequence[str]:
        """Returns no names: theory has none for this model. `kl_to_references` shows which predictor it is near."""
        return ()

    def log_probabilities(self, output: Tensor) -> Tensor:
        """Returns log-probabilities [n, token] of logits [n, l, token] at the last position."""
        return output[:, -1].log_softmax(-1)

    def _reference(self, batch: Tensor, matched: tuple[int, ...]) -> Tensor:
        return super()._reference(batch, matched)[:, None]  # [n, 1, token], for the one scored position
