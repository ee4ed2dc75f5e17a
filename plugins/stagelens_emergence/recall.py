"""Key-value recall learned by a transformer (3, C)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformer_lens import HookedRootModule

from stagelens import Schedule, Task
from stagelens.base import derive
from stagelens.experiments import Batches, Config
from stagelens_emergence.sequences import REPEATED, Examined, Recalled, sample_recall
from stagelens_emergence.transformers import TABLE_1, TransformerConfig, build, optimizer_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens import Run


class RecallConfig(TransformerConfig):
    """Data: pairs, tokens, B, p."""

    pairs: int = Field(8, ge=1, description="N_pairs: keys with their values in a sequence")
    tokens: int = Field(16, description="N_tokens: keys and values are drawn from them")
    B: float | None = Field(
        None, gt=0, description="times that the query stands in the context, on average; none: once in each"
    )
    p: float = Field(0.0, description="probability that the query is one of the two repeated tokens")
    d_model: int = Field(64, ge=2, multiple_of=2, description="width of the residual stream")
    d_head: int = Field(16, ge=1, description="width of a head's queries and keys")
    steps: int = Field(1050, description="training steps")
    batch_size: int = Field(96, description="sequences in a training batch")
    lr: float = Field(3e-3, description="learning rate")
    eval_size: int = Field(256, description="sequences in the fixed evaluation batch that the probes see")

    @model_validator(mode="after")
    def _fits(self) -> RecallConfig:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p={self.p:g} is not a probability; give a number from 0 to 1")
        if self.tokens < REPEATED:
            raise ValueError(f"tokens={self.tokens} is too few; give {REPEATED} or more")
        if self.B is not None and self.pairs < self.B:
            raise ValueError(
                f"the query cannot stand B={self.B:g} times among pairs={self.pairs} keys; give B <= pairs"
            )
        most = self.tokens if self.B is None else self.tokens - 1
        if self.pairs > most:
            raise ValueError(
                f"pairs={self.pairs} different keys are too many for tokens={self.tokens}; give pairs <= {most}"
            )
        return self


class Recall(Task):
    """A transformer is shown keys with their values and asked for the value of one of them.

    `loss` and `accuracy` are those of sequences without repetition, as in Figs. 4 and 5; the probe `key_value` has the
    ones of the training distribution.
    """

    id = "emergence/recall"
    title = "key-value recall: an induction head emerges, and repetition hurries it"
    Config: ClassVar[type[Config]] = RecallConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": TABLE_1 | {"pairs": 32, "tokens": 256, "layers": 4, "norm": True, "steps": 50_000},
    }
    probes: ClassVar[Sequence[str]] = ("attention_sparsity", "weight_norms", "key_value")

    def build_model(self) -> HookedRootModule:
        c = self.config
        model: HookedRootModule = build(c, 2 * c.pairs + 1, derive(self.seed, "init"), d_vocab=c.tokens)
        return model

    def sample(self, n: int, generator: torch.Generator) -> Examined:
        """n test sequences without repetition, and n of those that are trained on."""
        c = self.config
        test = sample_recall(n, c.pairs, c.tokens, generator)
        return Examined(*test, *sample_recall(n, c.pairs, c.tokens, generator, B=c.B, p=c.p))

    def batches(self, device: torch.device | str) -> Callable[[int], Recalled]:
        return Batches(_Trained(self.config, self.seed), device)

    def loss(self, model: HookedRootModule, batch: Examined | Recalled) -> Tensor:
        """The cross-entropy of the answer, read at the query."""
        return cross_entropy(self.answers(model, batch.tokens)[:, -1], batch.answer)

    def metrics(self, output: Tensor, batch: Examined | Recalled) -> dict[str, Tensor]:
        return {"accuracy": (output[:, -1].argmax(-1) == batch.answer).float().mean()}

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        return optimizer_of(self.config, model)

    def queries(self) -> slice:
        return slice(-1, None)

    def stage_names(self) -> Sequence[str]:
        return ["emergence"]

    def schedule(self) -> Schedule:
        return Schedule(log=5, even=50, refine=1)

    def figures(self, run: Run) -> Mapping[str, Figure]:
        from stagelens_emergence.transformer_figures import fig17

        return {"fig17": fig17(run)}


class _Trained(Recall):
    """The same task as it is trained: with B and p."""

    def sample(self, n: int, generator: torch.Generator) -> Recalled:  # type: ignore[override]
        c = self.config
        return sample_recall(n, c.pairs, c.tokens, generator, B=c.B, p=c.p)
