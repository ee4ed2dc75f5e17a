"""Configs of the four tasks: keys, defaults and the combinations that are refused."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from stagelens import FlowConfig, TaskConfig
from stagelens.experiments import Config
from stagelens_emergence.theory import ReducedModel, model_flow, paper_flow

Target = Literal["unit", "gaussian"]
REPEATED = 2  # number of tokens that cross-sample repetition asks for more often (3.1)
# Table 1. The paper does not state the initialization: PyTorch's own is our guess. The evaluation batch is ours.
TABLE_1 = {
    "d_model": 256,
    "d_head": 64,
    "mlp_factor": 4,
    "batch_size": 32,
    "lr": 1e-4,
    "init": "torch",
    "eval_size": 1024,
}


SOURCES = {  # of TABLE_1 and of the configs' defaults
    "Table 1": ("layers", "heads", "d_model", "d_head", "mlp_factor", "optimizer", "lr", "batch_size"),
    "a guess: the paper does not state it": ("init", "eval_size"),
}


def check_probability(p: float) -> None:
    """Raises ValueError if p is not a probability."""
    if not 0 <= p <= 1:
        raise ValueError(f"p={p:g} is not a probability; give a number from 0 to 1")


class SingleLocationConfig(Config):
    """The data of single-location regression (2.1), with or without repetition."""

    T: int = Field(256, description="tokens in a sequence")
    d: int = Field(64, description="dimension of a token")
    B: int = Field(1, description="how often the relevant token occurs in a sequence")
    p: float = Field(0.0, description="probability that the relevant token is the repeated one")

    @model_validator(mode="after")
    def _data(self) -> Self:
        for name, value, what in (("T", self.T, "tokens in a sequence"), ("d", self.d, "dimensions of a token")):
            if value < 2:
                raise ValueError(f"{what}: {name}={value} should be at least 2")
        if not 1 <= self.B <= self.T:
            raise ValueError(
                f"the relevant token occurs 1 to T={self.T} times in a sequence; B={self.B} is out of range"
            )
        check_probability(self.p)
        return self


class EmergenceToyConfig(SingleLocationConfig, TaskConfig):
    """Config of the toy model (Eq. 2). One step at learning rate lr corresponds to a time lr of the flow."""

    sampled: bool = Field(False, description="train on sampled sequences instead of the exact expected loss")
    init_scale: float = Field(0.0, ge=0, description="W starts with entries N(0, init_scale^2 / d)")
    target: Target = Field("unit", description="W*: columns of norm 1, or entries N(0, 1/d) without normalization")
    steps: int = Field(4000, description="training steps")
    batch_size: int = Field(32, description="sequences in a training batch; unused unless `sampled` is set")
    lr: float = Field(1.0, description="learning rate")
    eval_size: int = Field(16, description="sequences that the probes see; the loss does not depend on it")

    @model_validator(mode="after")
    def _consistent(self) -> EmergenceToyConfig:
        if self.train_size:
            raise ValueError("the toy model has no training set: it sees fresh sequences; give train_size=0")
        return self


class ReducedConfig(SingleLocationConfig, FlowConfig):
    """Config of the reduced flow. If `time` is not given, the flow runs for about five plateaus."""

    T: int = Field(512, description="tokens in a sequence")
    variables: Literal[0, 2, 3] = Field(0, description="2: Eqs. 13-14; 3: Eqs. 18-21; 0: 2 if p = 0, else 3")
    scores: Literal["joint", "each"] = Field(
        "joint", description="joint: Delta a follows its own gradient (Eqs. 14, 20); each: every score does (Eq. 2)"
    )
    w_init: float = Field(0.0, ge=-1000, le=1000, description="w at the start")
    until: Literal["time", "plateau"] = Field("time", description="plateau: the flow stops at the plateau's end")
    time: float = Field(1.0, description="end of the integration; default: five plateaus")
    points: int = Field(200, description="times at which the flow is recorded")

    @model_validator(mode="after")
    def _consistent(self) -> ReducedConfig:
        if self.variables == 2 and self.p > 0:
            raise ValueError(f"two variables cannot describe p={self.p:g}; give variables=3, or p=0")
        self.derive(time=lambda: self.problem.horizon())
        return self

    @property
    def problem(self) -> ReducedModel:
        """The reduced model with these settings."""
        make = model_flow if self.scores == "each" else paper_flow
        return make(self.T, self.d, self.B, self.p, variables=self.variables or None)


class EmergenceTransformerConfig(TaskConfig):
    """Sizes and optimizer of both transformers; B.3 varies `layers`, `heads` and `optimizer`."""

    layers: int = Field(2, ge=1, le=1000, description="layers, each attention and an MLP")
    heads: int = Field(4, ge=1, description="heads of a layer")
    d_model: int = Field(32, ge=2, multiple_of=2, description="width of the residual stream")
    d_head: int = Field(8, ge=1, description="width of a head's queries and keys")
    mlp_factor: int = Field(2, ge=1, description="width of the MLPs over d_model")
    norm: bool = Field(False, description="layer normalization")
    init: Literal["lens", "torch"] = Field(
        "lens", description="initial weights: TransformerLens' (0.64 / d_model), or those of PyTorch's linear layers"
    )
    optimizer: Literal["adam", "sgd"] = Field("adam", description="adam or sgd")
    eval_size: int = Field(128, description="sequences in the fixed evaluation batch that the probes see")


class RegressionConfig(SingleLocationConfig, EmergenceTransformerConfig):
    """Config of single-location regression: data (T, d, B, p) and the ablations of B.3 (position, feature)."""

    T: int = Field(32, description="tokens in a sequence")
    d: int = Field(8, description="dimension of a token, and of the target")
    position: Literal["random", "fixed"] = Field(
        "random", description="of the relevant token: drawn for every sequence, or the same in all"
    )
    feature: bool = Field(True, description="whether each token has a feature that marks the relevant one")
    steps: int = Field(800, description="training steps")
    batch_size: int = Field(32, description="sequences in a training batch")
    lr: float = Field(3e-3, description="learning rate")

    @model_validator(mode="after")
    def _solvable(self) -> RegressionConfig:
        if not self.feature and self.position == "random":
            raise ValueError(
                "feature=false with position=random leaves nothing to find the token by; give position=fixed"
            )
        return self


class KeyValueConfig(EmergenceTransformerConfig):
    """Config of key-value recall: data (pairs, tokens, B, p)."""

    pairs: int = Field(8, ge=1, description="N_pairs: keys with their values in a sequence")
    tokens: int = Field(16, description="N_tokens: size of the pool of keys and values")
    B: float | None = Field(
        None, gt=0, description="mean number of times that the query occurs in the context; none: exactly once"
    )
    p: float = Field(0.0, description="probability that the query is one of the two repeated tokens")
    d_model: int = Field(64, ge=2, multiple_of=2, description="width of the residual stream")
    d_head: int = Field(16, ge=1, description="width of a head's queries and keys")
    steps: int = Field(1050, description="training steps")
    batch_size: int = Field(96, description="sequences in a training batch")
    lr: float = Field(3e-3, description="learning rate")
    eval_size: int = Field(256, description="sequences in the fixed evaluation batch that the probes see")

    @model_validator(mode="after")
    def _fits(self) -> KeyValueConfig:
        check_probability(self.p)
        if self.tokens < REPEATED:
            raise ValueError(f"tokens={self.tokens} is too few; give {REPEATED} or more")
        if self.B is not None and self.pairs < self.B:
            raise ValueError(
                f"the query cannot occur B={self.B:g} times among pairs={self.pairs} keys; give B <= pairs"
            )
        most = self.tokens if self.B is None else self.tokens - 1
        if self.pairs > most:
            raise ValueError(
                f"pairs={self.pairs} different keys are too many for tokens={self.tokens}; give pairs <= {most}"
            )
        return self
