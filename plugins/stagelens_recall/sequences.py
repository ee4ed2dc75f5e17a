"""The tasks on sampled sequences: the original model, and a standard transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformer_lens import HookedRootModule

from stagelens import Group, Prediction, Schedule, Task, TaskConfig
from stagelens.base import derive, generator
from stagelens.experiments import Config
from stagelens.models import build_transformer
from stagelens_recall import theory
from stagelens_recall.data import context_length, refuse_above, response_reference, sample_sequences
from stagelens_recall.learning import RecallConfig, check_heads, plateau_predictions, tokens_named
from stagelens_recall.model import OriginalTransformer
from stagelens_recall.tasks import BYTES, Loss


class SequenceConfig(RecallConfig, TaskConfig):
    """What the models on sampled sequences have in common."""

    heads: int = Field(0, ge=0, description="heads of the first layer; 0: k")
    loss: Loss = Field("cross-entropy", description="1 - p_r or -log p_r, of the right response r")
    init_scale: float = Field(0.02, gt=0, description="standard deviation of the second layer's Q and K at the start")
    lr: float = Field(0.003, gt=0, description="learning rate of Adam")
    steps: int = Field(4000, ge=1, description="training steps")
    batch_size: int = Field(64, ge=1, description="sequences in a training batch")

    @property
    def n_heads(self) -> int:
        return self.heads or self.order


class OnSequences(Task):
    """What the tasks on sampled sequences share: the data, the losses at the last token, and the references."""

    probes: ClassVar[Sequence[str] | None] = (
        "attention_sparsity",
        "head_specialization",
        "kl_to_references",
        "weight_norms",
        "recall_circuit",
    )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Sequences with the answer as the last token, [n, l + 1]."""
        return sample_sequences(self.config.order, self.config.responses, n, generator)

    def log_probabilities(self, output: Tensor) -> Tensor:
        """The model's output as log-probabilities of what follows the last token, [n, token]."""
        return output

    def loss(self, model: HookedRootModule, batch: Tensor) -> Tensor:
        """The loss of the answer, after the query's last token only."""
        answer = self.log_probabilities(model(batch[:, :-1])).gather(1, batch[:, -1:])  # [n, 1]
        return -answer.mean() if self.config.loss == "cross-entropy" else (1 - answer.exp()).mean()

    def metrics(self, output: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """The dot-product loss 1 - p_r, whatever is trained: its plateaus are those of the simplified model."""
        return {"dot_product": 1 - self.log_probabilities(output).gather(1, batch[:, -1:]).exp().mean()}

    def queries(self) -> slice:
        return slice(-1, None)

    def groups(self) -> Mapping[str, Group]:
        """Keys that stand 0, 1, ..., k before the query."""
        return {f"{i} back": Group(offsets=(i,)) for i in range(self.config.order + 1)}

    def references(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """The partial predictors f^N of A.4, for every set N of up to k - 1 tokens."""
        c = self.config
        return {
            tokens_named(n) if n else "nothing": lambda batch, n=n: self._reference(batch, n)  # type: ignore[misc]
            for size in range(c.order)
            for n in combinations(range(1, c.order + 1), size)
        }

    def _reference(self, batch: Tensor, matched: tuple[int, ...]) -> Tensor:
        c = self.config
        return response_reference(batch, c.order, c.order + c.responses, matched)

    def predictions(self) -> Sequence[Prediction]:
        """The plateaus of the simplified model, tokens matched from the last one on."""
        c = self.config
        level = theory.plateau_loss if c.loss == "dot-product" else theory.plateau_cross_entropy
        together = [(i,) for i in range(1, c.order)]
        return plateau_predictions(together, c.order, lambda j: level(c.order, c.responses, j))

    def stage_names(self) -> Sequence[str]:
        return ["responses attended", *(f"token {i} matched" for i in range(1, self.config.order))]

    def schedule(self) -> Schedule:
        return Schedule(log=15, even=80)


class OriginalConfig(SequenceConfig):
    """Section 2.2's model. `init_scale` is that of Q and K; `w_scale` that of the first layer."""

    w_scale: float = Field(0.01, ge=0, description="standard deviation of the first layer's scores w at the start")

    @model_validator(mode="after")
    def _fits(self) -> OriginalConfig:
        check_heads(self.order, self.heads, ())
        length, width = context_length(self.order), (self.n_heads + 1) * (self.order + self.responses)
        sequences = max(self.batch_size, self.eval_size)
        refuse_above("attention", BYTES * (4 * self.n_heads * length**2 + 6 * sequences * length * width), self.order)
        return self


class Original(OnSequences):
    """The disentangled two-layer attention-only model (2.2), Q and K trained in full."""

    id = "recall/original"
    title = "the two-layer disentangled attention-only model on sampled sequences"
    Config: ClassVar[type[Config]] = OriginalConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {"order": 3, "steps": 1500}, "paper": {"lr": 0.005}}

    def build_model(self) -> HookedRootModule:
        c = self.config
        scales = (c.w_scale, c.init_scale)
        return OriginalTransformer(c.order, c.responses, c.n_heads, scales, generator(self.seed, "init"))


class TransformerConfig(SequenceConfig):
    """A standard attention-only transformer; `init_scale` counts in TransformerLens' units."""

    d_model: int = Field(64, ge=2, description="width of the residual stream")
    positions: Literal["learned", "sinusoidal", "alibi", "none"] = Field("learned", description="positional encoding")
    init_scale: float = Field(1.0, gt=0, description="of the weights, 1: TransformerLens' own")
    lr: float = Field(0.001, gt=0, description="learning rate of Adam")

    @model_validator(mode="after")
    def _fits(self) -> TransformerConfig:
        check_heads(self.order, self.heads, ())
        length, sequences = context_length(self.order), max(self.batch_size, self.eval_size)
        refuse_above("attention", BYTES * 8 * self.n_heads * sequences * length**2, self.order)
        return self


class Standard(OnSequences):
    """Two layers of attention and nothing else, as people build them; does it learn in stages too?"""

    id = "recall/transformer"
    title = "a standard two-layer attention-only transformer on the same sequences"
    Config: ClassVar[type[Config]] = TransformerConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"order": 3, "steps": 500},
        "paper": {"steps": 5000},
    }
    probes: ClassVar[Sequence[str] | None] = None

    def build_model(self) -> HookedRootModule:
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

    def stage_names(self) -> Sequence[str]:
        """No theory names the stages of this model; `kl_to_references` says what they are."""
        return ()

    def log_probabilities(self, output: Tensor) -> Tensor:
        """Of the logits [n, l, token], at the last position."""
        return output[:, -1].log_softmax(-1)

    def _reference(self, batch: Tensor, matched: tuple[int, ...]) -> Tensor:
        return super()._reference(batch, matched)[:, None]  # [n, 1, token], as the scored position
