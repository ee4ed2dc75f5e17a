"""What a task and a flow have in common: an id, a config with presets, and what theory says about it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from stagelens.experiments.config import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens.experiments.prediction import Prediction
    from stagelens.runs import Run


class Experiment(ABC):
    """Something that can be run under an id. `Task` trains a model, `Flow` integrates differential equations."""

    id: ClassVar[str]
    title: ClassVar[str] = ""
    Config: ClassVar[type[Config]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {}}
    metric: ClassVar[str] = "loss"  # the series whose stages a run reports

    def __init__(self, config: Any, seed: int = 0) -> None:
        self.config = config
        self.seed = seed

    def predictions(self) -> Sequence[Prediction]:
        """What theory says about this run: levels, curves and times."""
        return ()

    @cached_property
    def predicted(self) -> Sequence[Prediction]:
        """`predictions()`, computed once: some integrate a flow."""
        return self.predictions()

    def stage_names(self) -> Sequence[str]:
        """Names of the transitions of `metric`, in the order theory expects them.

        Where `predictions` has the levels between them, one more than names, a transition is named by where it leads.
        """
        return ()

    def features(self) -> Mapping[str, float]:
        """Named combinations of the config that theory expects laws in: `sweep --fit NAME` takes them beside keys."""
        return {}

    def figures(self, run: Run) -> Mapping[str, Figure]:  # noqa: ARG002
        """Further figures of a finished run, by file name, beside those that every run gets."""
        return {}
