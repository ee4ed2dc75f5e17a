"""The theory of the regression variant as predictions."""

from __future__ import annotations

from stagelens import Prediction
from stagelens.experiments import Floats
from stagelens_markov import theory


def plateau_levels(scales: Floats, noise: float, learned: int) -> list[Prediction]:
    """Returns the losses at the fixed points with the 0, 1, ..., `learned` most important features learned."""
    losses = theory.plateau_losses(scales)[: learned + 1] + noise / 2
    return [Prediction(f"{j} learned", "level", float(loss), "fixed points of Eq. 5") for j, loss in enumerate(losses)]
