"""The configs of all tasks of this plugin, and the checks on their keys."""

from __future__ import annotations

from math import factorial
from typing import Literal

from pydantic import Field, model_validator

from stagelens import FlowConfig, TaskConfig
from stagelens.experiments import Config
from stagelens_recall.data import context_length
from stagelens_recall.losses import NODES
from stagelens_recall.theory import table_size

Loss = Literal["dot-product", "cross-entropy"]

FLOAT32, FLOAT64 = 4, 8  # bytes per number
MOST_BYTES = 2**30  # the largest memory that a task may need
SMALLEST, LARGEST = 1e-30, 1e3  # the range of a nonzero beta


def default_betas(heads: int) -> tuple[float, ...]:
    """Returns 0.1, 0.03, 0.009, ...: small and well separated."""
    return tuple(0.1 * 0.3**h for h in range(heads))


def check_heads(order: int, heads: int, betas: tuple[float, ...] = ()) -> None:
    """Raises ValueError if the number of heads or the betas do not fit the order."""
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
    if any(beta and not SMALLEST <= beta <= LARGEST for beta in betas):
        raise ValueError(f"betas {list(betas)}: give 0, or numbers from {SMALLEST:g} to {LARGEST:g}")


def check_memory(what: str, needed: int, order: int) -> None:
    """Raises ValueError if `what` needs more than `MOST_BYTES`; `needed` is in bytes."""
    if needed > MOST_BYTES:
        raise ValueError(
            f"order {order} has {factorial(order):,} permutations, for which {what} takes about "
            f"{needed / 2**30:.3g} GiB, more than {MOST_BYTES / 2**30:.3g} GiB; give a smaller order"
        )


class AssociativeRecallConfig(Config):
    """The keys that all tasks of this plugin share."""

    order: int = Field(4, ge=2, le=100, description="k: tokens in a permutation")
    responses: int = Field(4, ge=2, description="|R|: possible responses")


class SimplifiedHeads(AssociativeRecallConfig):
    """The heads of the simplified model, for training and for the flow."""

    heads: int = Field(0, ge=0, description="heads of the first layer; 0: k - 1, as many as must match")
    betas: tuple[float, ...] = Field(
        (), description="initial beta of each head, all >= 0; default: 0.1, 0.03, ...; equal heads learn together"
    )

    @model_validator(mode="after")
    def _heads_fit(self) -> SimplifiedHeads:
        check_heads(self.order, self.heads, self.betas)
        return self

    @property
    def n_heads(self) -> int:
        return self.heads or self.order - 1

    @property
    def first_betas(self) -> tuple[float, ...]:
        return self.betas or default_betas(self.n_heads)


class SimplifiedConfig(SimplifiedHeads, TaskConfig):
    """The simplified model. `batch_size` and `eval_size` have an effect only if `sampled` is set."""

    loss: Loss = Field("dot-product", description="1 - p_r or -log p_r, of the right response r")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD's momentum")
    init_scale: float = Field(0.0, ge=0, description="standard deviation of the heads' initial scores w")
    sampled: bool = Field(False, description="sample random maps instead of using the exact mean over all maps")
    lr: float = Field(0.5, gt=0, description="learning rate")
    steps: int = Field(1200, ge=1, description="training steps")

    @model_validator(mode="after")
    def _consistent(self) -> SimplifiedConfig:
        nodes = 2 * NODES if self.loss == "cross-entropy" else 0
        per_permutation = self.order**2 + 3 * self.order * self.n_heads + nodes
        check_memory("a training step", 4 * FLOAT32 * factorial(self.order) * per_permutation, self.order)
        if self.train_size and not self.sampled:
            raise ValueError("the exact loss has no training set; give train_size=0, or sampled=true")
        return self


class SequenceConfig(AssociativeRecallConfig, TaskConfig):
    """The keys of the models that train on sampled sequences."""

    heads: int = Field(0, ge=0, description="heads of the first layer; 0: k")
    loss: Loss = Field("cross-entropy", description="1 - p_r or -log p_r, of the right response r")
    init_scale: float = Field(0.02, gt=0, description="standard deviation of the second layer's initial Q and K")
    lr: float = Field(0.003, gt=0, description="learning rate of Adam")
    steps: int = Field(4000, ge=1, description="training steps")
    batch_size: int = Field(64, ge=1, description="sequences in a training batch")

    @model_validator(mode="after")
    def _fits(self) -> SequenceConfig:
        check_heads(self.order, self.heads)
        check_memory("attention", FLOAT32 * self.attention_size(), self.order)
        return self

    @property
    def n_heads(self) -> int:
        return self.heads or self.order

    def attention_size(self) -> int:
        """Returns how many numbers the model's attention holds at once."""
        raise NotImplementedError


class OriginalConfig(SequenceConfig):
    """Section 2.2's model. `init_scale` scales Q and K; `w_scale` scales the first layer."""

    w_scale: float = Field(0.01, ge=0, description="standard deviation of the first layer's initial scores w")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="Adam, or SGD with momentum as section 3 has it")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    lr: float = Field(0.003, gt=0, description="learning rate")

    def attention_size(self) -> int:
        length, width = context_length(self.order), (self.n_heads + 1) * (self.order + self.responses)
        sequences = max(self.batch_size, self.eval_size)
        return 4 * self.n_heads * length**2 + 6 * sequences * length * width


class RecallTransformerConfig(SequenceConfig):
    """A standard attention-only transformer. `init_scale` is in units of TransformerLens' initialization."""

    d_model: int = Field(64, ge=2, description="width of the residual stream")
    positions: Literal["learned", "sinusoidal", "alibi", "none"] = Field("learned", description="positional encoding")
    init_scale: float = Field(1.0, gt=0, description="scale of the initial weights; 1: TransformerLens' own")
    lr: float = Field(0.001, gt=0, description="learning rate of Adam")

    def attention_size(self) -> int:
        length, sequences = context_length(self.order), max(self.batch_size, self.eval_size)
        return 8 * self.n_heads * sequences * length**2


class RecallFlowConfig(SimplifiedHeads, FlowConfig):
    """`system` full: w and beta of every head; first-jump: alpha and beta of head 1 alone (Theorem 3.1c)."""

    system: Literal["full", "first-jump"] = Field("full", description="which equations are integrated")
    learned: int = Field(0, ge=0, description="number of heads that start learned: I_h of A.6 with h = learned + 1")
    learned_score: float = Field(
        40.0, gt=0, le=500, description="c: what a match of a learned head adds to a score (A.6)"
    )
    blind: bool = Field(False, description="mask the tokens of learned heads for the other heads")
    rate: float = Field(
        1.0, gt=0, le=1e6, description="factor on Xi in the first-jump system; Eq. 4 of the paper has 2"
    )
    time: float = Field(8000.0, gt=0, description="end of the integration")
    method: Literal["LSODA", "RK45", "RK23", "DOP853", "Radau", "BDF"] = Field(
        "DOP853", description="solve_ivp's method"
    )
    rtol: float = Field(1e-10, gt=0, description="relative tolerance")
    atol: float = Field(1e-12, gt=0, description="absolute tolerance")

    @model_validator(mode="after")
    def _consistent(self) -> RecallFlowConfig:
        if self.system == "full":
            check_memory("the table of matches", 2 * FLOAT64 * table_size(self.order, self.n_heads), self.order)
            if self.rate != 1:
                raise ValueError("rate is for the two equations of Theorem 3.1; give system=first-jump")
        elif self.learned:
            raise ValueError("learned heads are for the full system; give system=full")
        if self.learned >= self.n_heads:
            raise ValueError(f"learned={self.learned} of {self.n_heads} heads leaves none to learn; give fewer")
        return self
