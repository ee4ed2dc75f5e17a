"""The trained tasks of the plugin: the simplified model, the original one, and a standard transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformer_lens import HookedRootModule

from stagelens import Group, Prediction, Schedule, Task, TaskConfig
from stagelens.config import Config
from stagelens.models import build_transformer
from stagelens.seeds import derive, generator
from stagelens_recall import theory
from stagelens_recall.data import (
    all_permutations,
    context_length,
    matching,
    queries_of,
    recall_reference,
    refuse_above,
    response_reference,
    sample_sequences,
)
from stagelens_recall.losses import NODES, answer_probability, loss_of, mean_cross_entropy, mean_dot_product
from stagelens_recall.model import OriginalTransformer, SimplifiedTransformer

Loss = Literal["dot-product", "cross-entropy"]
BYTES = 4  # of a number


class SimplifiedConfig(TaskConfig):
    """The simplified model. `batch_size` and `eval_size` count only where `sampled` is set."""

    order: int = Field(4, ge=2, description="k: tokens in a permutation")
    responses: int = Field(4, ge=2, description="|R|: possible responses")
    heads: int = Field(0, ge=0, description="heads of the first layer; 0: k - 1, as many as must match")
    betas: tuple[float, ...] = Field(
        (), description="beta_h at the start, all >= 0; none: 0.1, 0.03, ...; heads with equal ones learn together"
    )
    loss: Loss = Field("dot-product", description="1 - p_r or -log p_r, of the right response r")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD's momentum")
    init_scale: float = Field(0.0, ge=0, description="standard deviation of the heads' scores w at the start")
    sampled: bool = Field(False, description="draw random maps instead of taking the exact mean over all of them")
    lr: float = Field(0.5, gt=0, description="learning rate")
    steps: int = Field(1200, ge=1, description="training steps")

    @model_validator(mode="after")
    def _consistent(self) -> SimplifiedConfig:
        check_heads(self.order, self.heads, self.betas)
        per_permutation = self.order**2 + 3 * self.order * self.n_heads + (2 * NODES if self.loss != "dot-product" else 0)
        refuse_above("a training step", 4 * BYTES * factorial(self.order) * per_permutation, self.order)
        if self.train_size and not self.sampled:
            raise ValueError("the exact loss has no training set; give train_size=0, or sampled=true")
        return self

    @property
    def n_heads(self) -> int:
        return self.heads or self.order - 1

    @property
    def first_betas(self) -> tuple[float, ...]:
        return self.betas or default_betas(self.n_heads)


def default_betas(heads: int) -> tuple[float, ...]:
    """0.1, 0.03, 0.009, ...: small and well apart."""
    return tuple(0.1 * 0.3**h for h in range(heads))


def check_heads(order: int, heads: int, betas: tuple[float, ...]) -> None:
    """Raises ValueError where the number of heads or of betas does not fit."""
    if heads > order:
        raise ValueError(f"heads={heads}, but there are {order} tokens to match; give heads from 1 to {order}")
    expected = heads or order - 1
    if betas and len(betas) != expected:
        raise ValueError(
            f"{len(betas)} betas are given for {expected} heads (order {order}); give one for each head, "
            f"for example betas={','.join(f'{b:.3g}' for b in default_betas(expected))}"
        )
    if any(beta < 0 for beta in betas):
        raise ValueError(f"betas {list(betas)}: beta counts by its square; give numbers from 0 up")


def learning_order(betas: Sequence[float], order: int) -> list[tuple[int, ...]]:
    """The heads (from 1) in the order in which they learn: by falling beta, equal ones together (A.4).

    A head with beta = 0 never learns, and once k - 1 tokens are matched nothing is left to learn.
    """
    together: list[tuple[int, ...]] = []
    for value in sorted({b for b in betas if b > 0}, reverse=True):
        if sum(map(len, together)) < order - 1:
            together.append(tuple(h for h, b in enumerate(betas, start=1) if b == value))
    return together


def tokens_named(tokens: Sequence[int]) -> str:
    """`token 1`, `tokens 1 and 2`, ...; counted from the end."""
    *most, last = map(str, tokens)
    return f"tokens {', '.join(most)} and {last}" if most else f"token {last}"


@dataclass(frozen=True)
class WindowKeys(Group):
    """Keys of a window of `window` tokens; none in a layer whose keys are something else."""

    window: int = 0

    def mask(self, n_query: int, n_key: int, device: torch.device | str = "cpu") -> Tensor:
        mask = super().mask(n_query, n_key, device)
        return mask if n_key == self.window else mask & False


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
        """The tokens of the window, counted from its end."""
        order = self.config.order
        return {f"token {i}": WindowKeys(positions=(order - i,), window=order) for i in range(1, order + 1)}

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
        return [*levels, Prediction("first jump", "time", end, "Theorem 3.1, escape time")]

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


def partial_matches(together: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """What is matched after each stage, by name: nothing, the first heads' tokens, and so on to all."""
    found: dict[str, tuple[int, ...]] = {"nothing": ()}
    matched: tuple[int, ...] = ()
    for heads in together:
        matched += heads
        found[tokens_named(sorted(matched))] = matched
    return found


def plateau_predictions(
    together: Sequence[tuple[int, ...]], order: int, level: Callable[[int], float]
) -> list[Prediction]:
    """A level for each number of tokens that is matched on the way; `level` gives it."""
    return [
        Prediction(f"{name} matched", "level", level(min(len(matched), order)), "A.4, (1 - 1/(k-j)!)(1 - 1/|R|)")
        for name, matched in partial_matches(together).items()
    ]


class SequenceConfig(TaskConfig):
    """What the models on sampled sequences have in common."""

    order: int = Field(4, ge=2, description="k: tokens in a permutation")
    responses: int = Field(4, ge=2, description="|R|: possible responses")
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
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {"order": 3, "steps": 1500}, "paper": {}}

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
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {"order": 3, "steps": 3000}, "paper": {"steps": 30000}}
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

    def log_probabilities(self, output: Tensor) -> Tensor:
        """Of the logits [n, l, token], at the last position."""
        return output[:, -1].log_softmax(-1)

    def _reference(self, batch: Tensor, matched: tuple[int, ...]) -> Tensor:
        return super()._reference(batch, matched)[:, None]  # [n, 1, token], as the scored position
