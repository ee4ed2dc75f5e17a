"""The theory as predictions: the loss of each strategy."""

from __future__ import annotations

from collections.abc import Mapping

from stagelens import Prediction

WHERE = {"uniform": "log k", "unigram": "Sec. 2, unigram strategy", "bigram": "Sec. 2, bigram strategy"}


def strategy_levels(losses: Mapping[str, float]) -> list[Prediction]:
    """Returns the loss of each strategy as a level, from its mean over many sequences."""
    return [Prediction(name, "level", loss, WHERE[name]) for name, loss in losses.items()]
