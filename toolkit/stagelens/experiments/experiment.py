"""The base of tasks and flows: an id, a config with presets, and the predictions of theory."""

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
    """What `stagelens run ID` runs. `Task` trains a model, `Flow` integrates differential equations."""

    id: ClassVar[str]
    title: ClassVar[str] = ""
    Config: ClassVar[type[Config]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {}}
    # Where the values of the preset `paper` are from: {"Table 1": ("d", "T"), "a guess": ("lr",)}.
    sources: ClassVar[Mapping[str, Sequence[str]]] = {}
    metric: ClassVar[str] = "loss"  # the series whose stages are reported
    unpredicted: ClassVar[str] = ""  # why there are no `predictions()`, in one sentence
    # How the stages of a run are detected, and what the task expects: axis, min_drop, strength, transitions, levels.
    stages: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: Any, seed: int = 0) -> None:
        self.config = config
        self.seed = seed

    def predictions(self) -> Sequence[Prediction]:
        """Returns what theory predicts about this run: levels, curves and times."""
        return ()

    @cached_property
    def predicted(self) -> Sequence[Prediction]:
        """`predictions()`, computed once, because some of them integrate a flow."""
        return self.predictions()

    def stage_names(self) -> Sequence[str]:
        """Returns the names of the transitions of `metric`, in the order that theory expects.

        If `predictions` has the levels between them, one more than names, a transition is named by the level after it.
        """
        return ()

    def features(self) -> Mapping[str, float]:
        """Returns named combinations of config keys in which theory expects power laws, for `sweep --fit NAME`."""
        return {}

    def figures(self, run: Run) -> Mapping[str, Figure]:  # noqa: ARG002
        """Returns figures of a finished run by file name, in addition to those that every run gets."""
        return {}
