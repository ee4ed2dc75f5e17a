"""Which head learns when: betas, the order that follows from them, and the plateaus on the way (A.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import Field, model_validator

from stagelens import Prediction, Timeline
from stagelens.experiments import Config


class RecallConfig(Config):
    """What every task of this plugin has."""

    order: int = Field(4, ge=2, le=100, description="k: tokens in a permutation")
    responses: int = Field(4, ge=2, description="|R|: possible responses")


class SimplifiedHeads(RecallConfig):
    """The heads of the simplified model, trained or in the flow."""

    heads: int = Field(0, ge=0, description="heads of the first layer; 0: k - 1, as many as must match")
    betas: tuple[float, ...] = Field(
        (), description="beta_h at the start, all >= 0; none: 0.1, 0.03, ...; heads with equal ones learn together"
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


SMALLEST, LARGEST = 1e-30, 1e3  # of a beta that is not 0


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
    if any(beta and not SMALLEST <= beta <= LARGEST for beta in betas):
        raise ValueError(f"betas {list(betas)}: give 0, or numbers from {SMALLEST:g} to {LARGEST:g}")


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


def escape_prediction(step: float, half: float) -> Prediction:
    """The step of the first jump, compared with when the loss first falls to `half`, as the flow's event `escape`."""

    def measured(timeline: Timeline) -> float | None:
        steps, losses = timeline.scalar("loss")
        below = np.flatnonzero(losses <= half)
        if not len(below) or below[0] == 0:
            return None
        pair = slice(below[0] - 1, below[0] + 1)
        return float(np.interp(-half, -losses[pair], steps[pair]))

    what = "step at which the loss is half-way from the first plateau to the second"
    return Prediction("first jump", "time", step, "Theorem 3.1, escape time", measure=measured, compared_with=what)
