"""The order in which heads learn, the plateaus that follow from it, and the time of the first jump (A.4)."""

from __future__ import annotations

from collections.abc import Sequence

from stagelens import Prediction, Timeline
from stagelens.timelines import first_crossing
from stagelens_recall import theory

Heads = tuple[int, ...]  # heads, or the tokens that they match, counted from 1
PLATEAU, ESCAPE = "A.4, (1 - 1/(k-j)!)(1 - 1/|R|)", "Theorem 3.1, escape time"


def learning_order(betas: Sequence[float], order: int) -> list[Heads]:
    """Returns the heads in the order in which they learn: by falling beta, heads with equal beta together (A.4).

    A head with beta = 0 never learns. Once k - 1 tokens are matched, nothing is left to learn.
    """
    together: list[Heads] = []
    for value in sorted({b for b in betas if b > 0}, reverse=True):
        if sum(map(len, together)) < order - 1:
            together.append(tuple(h for h, b in enumerate(betas, start=1) if b == value))
    return together


def tokens_named(tokens: Sequence[int]) -> str:
    """Returns `token 1`, `tokens 1 and 2`, ...; tokens are counted from the end."""
    *most, last = map(str, tokens)
    return f"tokens {', '.join(most)} and {last}" if most else f"token {last}"


def stage_names(together: Sequence[Heads]) -> list[str]:
    """Returns the name of each stage, from the heads that learn in it."""
    return [f"{tokens_named(heads)} matched" for heads in together]


def partial_matches(together: Sequence[Heads]) -> dict[str, Heads]:
    """Returns the matched tokens before the first stage and after each stage, by name."""
    found: dict[str, Heads] = {"nothing": ()}
    matched: Heads = ()
    for heads in together:
        matched += heads
        found[tokens_named(sorted(matched))] = matched
    return found


def plateau_predictions(together: Sequence[Heads], order: int, responses: int, loss: str) -> list[Prediction]:
    """Returns one predicted level per plateau."""
    level = theory.plateau_loss if loss == "dot-product" else theory.plateau_cross_entropy
    return [
        Prediction(f"{name} matched", "level", level(order, responses, min(len(matched), order)), PLATEAU)
        for name, matched in partial_matches(together).items()
    ]


def escape_prediction(step: float, half: float) -> Prediction:
    """Returns the predicted step of the first jump, compared with the step at which the loss falls to `half`."""

    def measured(timeline: Timeline) -> float | None:
        steps, losses = timeline.scalar("loss")
        return first_crossing(steps, losses, half, rising=False) if losses[0] > half else None

    what = "step at which the loss is half-way from the first plateau to the second"
    return Prediction("first jump", "time", step, ESCAPE, measure=measured, compared_with=what)
