"""The theory as predictions."""

from __future__ import annotations

from stagelens import Prediction


def predictions_of() -> list[Prediction]:
    """Returns the level of the held-out loss once the model has learned addition."""
    return [Prediction("understood", "level", 0.0, "every answer is certain")]
