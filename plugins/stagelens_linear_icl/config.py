"""Configs of the three tasks: the regression problem, and how it is trained or integrated."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from stagelens import FlowConfig, TaskConfig
from stagelens.experiments import Config, Floats

Spectrum = tuple[float, ...] | tuple[tuple[float, ...], ...] | str
SPECTRA = "give D eigenvalues (0.4,0.3,0.2,0.1), a power law (power:1), or a matrix ([[2,1],[1,2]])"
MAX_EXPONENT = 20  # largest absolute exponent of a power-law spectrum
MAX_ENTRY = 1e6  # largest absolute entry of a covariance

# The setting of Figs. 2 and 8: rank R > 1 with a power-law spectrum. Each user adds lr and steps.
EIGHT: dict[str, Any] = {"D": 8, "H": 9, "spectrum": "power:1"}
# The setting of Fig. 9: two pairs of equal eigenvalues.
REPEATED: dict[str, Any] = {"spectrum": [0.35, 0.35, 0.15, 0.15]}


def published(init: float, D: int, H: int, R: int = 1, N: int = 31) -> dict[str, float]:
    """Returns `w_init`, `value_init` and `lr` that train as the authors' code does with entries of size `init`.

    Source: github.com/yedizhang/linattn-icl, which the paper cites. Its README has lr = 0.02. Its network sums over the
    context, but Eq. 2 has the mean over N tokens. With the mean, weights N^(1/3) times as large and a rate N^(2/3)
    times as large give the same training. The version of that README (commit c72d400) draws every entry of k and q
    with the standard deviation `init`, and has v = `init`. Here v is normal with that standard deviation, as in Eq. 20,
    which is a guess. A later version divides by the root of a matrix's size; with it, two or three of the four drops of
    Fig. 1 happen within the published number of steps.
    """
    entry = init * N ** (1 / 3)
    return {"w_init": entry * (H * R * D) ** 0.5, "value_init": (R * D) ** -0.5, "lr": 0.02 * N ** (2 / 3)}


# Fig. 1 by the authors' README: `--head 5 --init 1e-2 --epoch 10001`, and P = 5,000, the default of their config.py.
# Their data.py centers x and whitens w. The caption has H = 4, and no P, w_init, lr or number of steps.
PAPER: dict[str, Any] = {"H": 5, "P": 5000, "whiten": True, "steps": 10_000} | published(0.01, D=4, H=5)
# Figs. 2 and 8 by the same README: `--head 9 --in_dim 8 --init 5e-3 --trainset_size 80000`. It has 20,001 epochs; an
# earlier version has 50,001 for R = 1, and with 20,001 about half of that rank's drops happen. Eigenvalues are the
# caption's, proportional to 1/d; the code has them proportional to d.
PAPER_EIGHT: dict[str, Any] = EIGHT | {"P": 80_000, "whiten": True, "steps": 50_000} | published(0.005, D=8, H=9)


PUBLISHED = {  # the sources of PAPER that all tasks share
    "caption of Fig. 1": ("D", "N", "spectrum"),
    "README of the authors' code; the caption has 4": ("H",),
    "README and net.py of the authors' code (commit c72d400), converted from a sum over the context": ("w_init",),
    "a guess: normal as in Eq. 20; that net.py has a constant of this size": ("value_init",),
}
TRAINED = PUBLISHED | {
    "README of the authors' code, the rate converted from a sum over the context": ("steps", "lr"),
    "config.py of the authors' code": ("P",),
    "data.py of the authors' code": ("whiten",),
}


class ProblemConfig(Config):
    """The regression problem and the attention layer of sections 2.1 and 2.2."""

    D: int = Field(4, ge=1, description="dimension of x")
    N: int = Field(31, ge=1, description="length of the context; the largest one if lengths vary")
    H: int = Field(4, ge=1, description="number of heads")
    R: int = Field(1, ge=1, description="rank of keys and queries")
    spectrum: Spectrum = Field((0.4, 0.3, 0.2, 0.1), description="eigenvalues of Lambda, power:exponent, or Lambda")
    eigenvectors: int = Field(0, ge=0, description="seed of Lambda's eigenvectors")
    w_init: float = Field(0.1, gt=0, le=1000, description="size of the initial weights (Eq. 20)")
    value_init: float = Field(1.0, gt=0, le=1000, description="size of the initial values v, in units of Eq. 20's")
    loss: Literal["query", "next-token"] = Field(
        "query", description="predicted: y_q, or every y but the first (Eq. 9)"
    )

    @field_validator("spectrum", mode="before")
    @classmethod
    def _spectrum(cls, given: Any) -> Any:
        if isinstance(given, str):
            return _power_law(given)
        values = np.array(given, dtype=object)
        if values.ndim not in (1, 2) or not all(isinstance(v, int | float) for v in values.flat) or not values.size:
            raise ValueError(SPECTRA)
        numbers = values.astype(float)
        if numbers.ndim == 1 and not (numbers > 0).all():
            raise ValueError(f"the eigenvalues of a covariance are positive; {SPECTRA}")
        if not (np.abs(numbers) <= MAX_ENTRY).all():
            raise ValueError(f"the covariance should be of size 1, and at most {MAX_ENTRY:g}; {SPECTRA}")
        if numbers.ndim == 2:
            _check_matrix(numbers)
        return given

    @model_validator(mode="after")
    def _sizes(self) -> ProblemConfig:
        if not isinstance(self.spectrum, str) and len(self.spectrum) != self.D:
            what = "eigenvalues" if isinstance(self.spectrum[0], float) else "rows"
            raise ValueError(f"spectrum has {len(self.spectrum)} {what} and D is {self.D}; make them agree")
        if self.R > self.D:
            raise ValueError(f"rank R={self.R} is larger than D={self.D}; give R of at most D")
        return self

    @property
    def every(self) -> bool:
        """True if the loss is over every token but the first (Eq. 9), False if it is over the last token alone."""
        return self.loss == "next-token"


def _power_law(text: str) -> str:
    name, _, exponent = text.partition(":")
    try:
        steep = float(exponent)
    except ValueError:
        steep = np.nan
    if name != "power" or not abs(steep) <= MAX_EXPONENT:
        raise ValueError(f"{SPECTRA}; the exponent of a power law lies between -{MAX_EXPONENT} and {MAX_EXPONENT}")
    return text


def _check_matrix(matrix: Floats) -> None:
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a covariance is square, and this matrix is {matrix.shape[0]} by {matrix.shape[1]}")
    if not np.allclose(matrix, matrix.T):
        raise ValueError("a covariance is symmetric, and this matrix is not; give (A + A^T) / 2")
    if (least := np.linalg.eigvalsh(matrix)[0]) <= 0:
        raise ValueError(f"a covariance has positive eigenvalues, and the least of this matrix is {least:.3g}")


class TrainedProblemConfig(TaskConfig, ProblemConfig):
    """A problem that is trained on P sequences. `train_size` is the toolkit's name for P."""

    P: int = Field(0, ge=0, description="sequences in the training set")
    whiten: bool = Field(False, description="center x and whiten w over the training set, as the authors' code does")

    @model_validator(mode="before")
    @classmethod
    def _one_size(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "train_size" in values and values["train_size"] != values.get("P", 0):
            raise ValueError("the size of the training set is called P here; give P instead of train_size")
        return values | {"train_size": values.get("P", 0)}


class SeparateConfig(TrainedProblemConfig):
    """Eq. 2 under full-batch descent. P = 0 means the population: infinitely many sequences."""

    steps: int = Field(8000, ge=1, description="steps of full-batch descent")
    lr: float = Field(0.5, gt=0, description="learning rate; one step is 2 lr of the flow's time")
    eval_size: int = Field(64, description="sequences that the probes see; the loss is exact: of the population")


class SequencesConfig(TrainedProblemConfig):
    """Attention over raw sequences. P = 0 means fresh ones at every step; batch_size >= P means full batches."""

    steps: int = Field(3000, ge=1, description="training steps")
    batch_size: int = Field(2000, ge=1, description="sequences in a training batch")
    P: int = Field(2000, ge=0, description="sequences in the training set; 0: fresh ones at every step")
    lr: float = Field(0.4, gt=0, description="learning rate")
    attention: Literal["linear", "softmax"] = Field("linear", description="scores as they are, or their softmax")
    blocks: Literal["trained", "zero"] = Field("trained", description="the blocks that Eq. 2 leaves out")


class ProblemFlowConfig(FlowConfig, ProblemConfig):
    """A problem whose gradient flow is integrated, on the population loss."""
