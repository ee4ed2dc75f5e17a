"""The configs of all tasks of this plugin, with their bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from stagelens import FlowConfig, TaskConfig
from stagelens.experiments import Config
from stagelens_rich import theory
from stagelens_rich.data.corpus import PYTHON, WIKITEXT
from stagelens_rich.theory import Setting, Tokens

W_STAR_END = 0.7  # w* lies below: the closed form needs 4 w*^4 < 1
SHORTEST = 5  # tokens in a sequence
SMALLEST = 1e-35  # least sigma_init: the parameters grow from sigma_init^2
LONG_ENOUGH = 3.0  # length of a flow in units of T_III, so that the convergence is recorded
RATES = {"adam": 5e-4, "gd": 0.1}  # default learning rate of each optimizer (B.3)


class MixtureConfig(Config):
    """The mixed target of Eq. 2 and the scale of the initialization."""

    L: int = Field(40, description="tokens in a sequence")
    alpha_star: float = Field(1.0, description="weight of the 4-gram against the induction head")
    w_star: float = Field(0.49, description="w*: the target attends by w*^2 x_L x_(s-1)")
    sigma_init: float = Field(0.01, description="initial value of every parameter (Eq. 4)")

    @field_validator("L")
    @classmethod
    def _long(cls, L: int) -> int:
        if L < SHORTEST:
            raise ValueError(
                f"a 4-gram and an induction head together need at least {SHORTEST} tokens; give L >= {SHORTEST}"
            )
        return L

    @field_validator("alpha_star", "sigma_init")
    @classmethod
    def _above_zero(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("it should be above 0: give for example 1 for alpha_star, 0.01 for sigma_init")
        if value < SMALLEST:
            raise ValueError(f"its square is beyond what can be computed: give at least {SMALLEST:g}")
        return value

    @field_validator("w_star")
    @classmethod
    def _inside(cls, w_star: float) -> float:
        if not 0 < w_star < W_STAR_END:
            raise ValueError(f"the closed form of the loss needs 4 w*^4 < 1; give 0 < w_star < {W_STAR_END}")
        return w_star

    @model_validator(mode="after")
    def _small(self) -> MixtureConfig:
        least = min(self.w_star, self.setting.h_star, self.setting.g_star)
        if self.sigma_init >= least:
            raise ValueError(
                f"sigma_init={self.sigma_init:g} does not lie below what is to be learned (w*, 1/(1+alpha*) and "
                f"alpha*/(1+alpha*)); give sigma_init < {least:.3g}"
            )
        return self

    @property
    def setting(self) -> Setting:
        """What the closed forms depend on."""
        tokens: Tokens = getattr(self, "tokens", "gaussian")
        return Setting(self.L, self.alpha_star, self.w_star, self.sigma_init, tokens)


class RichFlowConfig(MixtureConfig, FlowConfig):
    """`system` four: p, w_V1, w_KQ, w_V2 as in C.3; five: w_Q and w_K apart; first-layer: p(1,1) alone (C.2)."""

    tokens: Tokens = Field("gaussian", description="tokens of the closed form: gaussian (Eq. 10) or boolean")
    system: Literal["four", "five", "first-layer"] = Field("four", description="which parameters move")
    imbalance: float = Field(
        0.0, gt=-1, le=1000, description="with system=five, w_Q starts at (1 + imbalance) sigma_init"
    )
    time: float = Field(0.0, description="end of the integration; unless given, 3 times the T_III that theory expects")
    points: int = Field(800, description="times at which the flow is recorded")
    rtol: float = Field(1e-10, description="relative tolerance")
    atol: float = Field(1e-40, description="absolute tolerance; far below any sigma_init, so that rtol decides")

    @model_validator(mode="after")
    def _end(self) -> RichFlowConfig:
        self.derive(time=self._long_enough)
        return self

    @property
    def pair(self) -> int:
        """How often the gradient with respect to w_Q w_K reaches each of the two, in units of w."""
        return theory.PAIR if self.system == "four" else 1

    def _long_enough(self) -> float:
        if self.system == "first-layer":
            return 1000 * (self.L - 2) / (self.setting.g_star * self.sigma_init)
        return LONG_ENOUGH * theory.expected_T_III(self.setting, self.pair)


class RichToyConfig(MixtureConfig, TaskConfig):
    """`steps` counts both stages: `first_steps` for the first layer, the others for the second."""

    tokens: Tokens = Field("gaussian", description="gaussian, or boolean: +1 and -1 (Fig. 3)")
    steps: int = Field(3300, description="training steps of both stages")
    batch_size: int = Field(250, description="sequences in a training batch")
    lr: float = Field(1.5, description="learning rate of Stage II")
    eval_size: int = Field(2000, description="sequences in the fixed evaluation batch")
    first_steps: int = Field(500, ge=0, description="steps of Stage I; 0: the first layer starts learned")
    first_lr: float = Field(
        3000.0, gt=0, description="learning rate of Stage I, whose gradient is of order sigma_init/L"
    )

    @model_validator(mode="after")
    def _two_stages(self) -> RichToyConfig:
        if self.first_steps >= self.steps:
            raise ValueError(
                f"first_steps={self.first_steps} of steps={self.steps} leave none for the second layer; "
                f"give steps > {self.first_steps}, or first_steps=0"
            )
        return self

    @property
    def score(self) -> float:
        """The factor of x_L x_(s-1) in the target's attention scores."""
        return self.w_star**2


class HighDimConfig(MixtureConfig, TaskConfig):
    """Tokens of D dimensions (B.3). `exact` trains on the closed forms, else on fresh sequences at every step."""

    L: int = Field(40, description="tokens in a sequence")
    w_star: float = Field(0.49, description="the target attends by (w*/D) x_L . x_(s-1)")
    D: int = Field(100, ge=1, description="dimensions of a token")
    weights: Literal["matrix", "vector"] = Field(
        "matrix", description="W_Q and W_K: D by D matrices, or vectors of D numbers that multiply a token's entries"
    )
    optimizer: Literal["adam", "gd"] = Field("adam", description="Adam, or plain gradient descent")
    exact: bool = Field(True, description="the population loss in closed form; false: sampled sequences")
    steps: int = Field(2500, description="training steps")
    batch_size: int = Field(1000, description="sequences in a training batch, if they are sampled")
    lr: float = Field(0.0, description="learning rate; unless given, 5e-4 for Adam and 0.1 for gradient descent")
    eval_size: int = Field(100, description="sequences in the fixed evaluation batch")

    @model_validator(mode="after")
    def _rate(self) -> HighDimConfig:
        self.derive(lr=lambda: RATES[self.optimizer])
        if self.exact and self.train_size:
            raise ValueError("the exact loss has no training set; give train_size=0, or exact=false")
        return self

    @property
    def score(self) -> float:
        """The factor of x_L . x_(s-1) in the target's attention scores: its matrix is w* I/D."""
        return float(self.w_star / self.D)


class TextConfig(TaskConfig):
    """B.1's names: context L, embedding D, width W of the feed-forward layers."""

    corpus: str = Field(
        PYTHON,
        min_length=1,
        description=f"a utf-8 text file, a folder of them, {WIKITEXT}, or {PYTHON}: its help texts",
    )
    vocab: int = Field(1000, ge=2, le=10**6, description="largest vocabulary, the unknown word included")
    L: int = Field(64, ge=2, description="tokens of context")
    D: int = Field(64, ge=2, description="size of the embedding")
    W: int = Field(256, ge=1, description="width of the feed-forward layers")
    sigma_init: float = Field(
        0.01, gt=0, description="standard deviation of all initial weights, and initial value of all p"
    )

    own_token: bool = Field(True, description="attention sees the query's own token; section 2 of the paper hides it")
    frozen: Literal["none", "dot-products", "positions"] = Field(
        "none", description="what is not trained: nothing, W_K and W_Q with their biases, or p"
    )

    @field_validator("corpus")
    @classmethod
    def _from_anywhere(cls, corpus: str) -> str:
        """Returns an absolute path, so that the run can be shown and resumed from another directory."""
        return corpus if corpus in (PYTHON, WIKITEXT) else str(Path(corpus).expanduser().absolute())

    @field_validator("train_size")
    @classmethod
    def _all_of_it(cls, train_size: int) -> int:
        if train_size:
            raise ValueError("the corpus is the training set; give train_size=0, and with corpus=PATH a shorter text")
        return train_size
