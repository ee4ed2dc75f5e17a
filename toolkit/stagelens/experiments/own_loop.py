"""A training loop of the user's own, as an experiment: what theory expects of it is given with the run."""

from __future__ import annotations

from collections.abc import Sequence

from stagelens.experiments.experiment import Experiment
from stagelens.experiments.prediction import Prediction


class OwnLoop(Experiment):
    """What is known about a training that a recorder measured: predictions, and no task, config or model."""

    id = "loop"

    def __init__(self, predictions: Sequence[Prediction] = ()) -> None:
        super().__init__(None)
        self._given = tuple(predictions)

    def predictions(self) -> Sequence[Prediction]:
        return self._given
