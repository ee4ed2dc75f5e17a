"""Predictions: what theory says about a run, and how far the run agrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from stagelens.stages import Stages
    from stagelens.timeline import Timeline

Floats = NDArray[np.float64]
Measure = Callable[["Timeline"], float | None]


@dataclass(frozen=True)
class Prediction:
    """One statement of theory about one series.

    kind `level`: `expected` is a value that the series rests at; by default it is compared with the nearest plateau.
    kind `time`: `expected` is the step of an event; by default it is compared with the nearest transition.
    kind `curve`: `expected` is a function of the steps; it is compared over `window`, where it was measured.
    `place` picks one number a step of a series with dims, by coordinate: `{"head": 2}`.
    `measure` replaces the default comparison: it takes the timeline and returns the measured number, or None.
    """

    name: str
    kind: Literal["level", "time", "curve"]
    expected: float | Callable[[Floats], Floats]
    reference: str  # the equation or figure it comes from
    series: str = "loss"
    window: tuple[float, float] | None = None
    measure: Measure | None = None
    place: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A prediction beside what was measured. `error` is relative; None: nothing was measured to compare with."""

    name: str
    kind: str
    series: str
    expected: float | None
    measured: float | None
    error: float | None
    reference: str

    def to_dict(self) -> dict[str, Any]:
        return {
            key: getattr(self, key) for key in ("name", "kind", "series", "expected", "measured", "error", "reference")
        }


def score(predictions: Sequence[Prediction], timeline: Timeline) -> list[Score]:
    """Each prediction beside its measurement."""
    found: dict[Any, Stages] = {}  # of the series that predictions are about, each found once
    return [_score(prediction, timeline, found) for prediction in predictions]


def _score(prediction: Prediction, timeline: Timeline, found: dict[Any, Stages]) -> Score:
    if prediction.kind == "curve":
        return _score_curve(prediction, timeline)
    assert not callable(prediction.expected)
    expected = float(prediction.expected)
    measured = prediction.measure(timeline) if prediction.measure else _nearest(prediction, timeline, found)
    error = None if measured is None else abs(measured - expected) / (abs(expected) or 1.0)
    return Score(prediction.name, prediction.kind, prediction.series, expected, measured, error, prediction.reference)


def _nearest(prediction: Prediction, timeline: Timeline, found: dict[Any, Stages]) -> float | None:
    """The level of the nearest plateau, or the step of the nearest transition."""
    from stagelens.stages import detect_stages

    if prediction.series not in timeline:
        return None
    key = (prediction.series, *(prediction.place or {}).items())
    if key not in found:
        found[key] = detect_stages(*timeline.scalar(prediction.series, prediction.place))
    stages = found[key]
    values = [p.level for p in stages.plateaus] if prediction.kind == "level" else [t.at for t in stages.transitions]
    return min(values, key=lambda value: abs(value - float(prediction.expected)), default=None)  # type: ignore[arg-type]


def _score_curve(prediction: Prediction, timeline: Timeline) -> Score:
    """The largest distance between curve and series over the window, relative to the curve's range there."""
    assert callable(prediction.expected)
    label = (prediction.name, "curve", prediction.series)
    if prediction.series not in timeline:
        return Score(*label, None, None, None, prediction.reference)
    steps, values = timeline.scalar(prediction.series, prediction.place)
    low, high = prediction.window or (-np.inf, np.inf)
    inside = (steps >= low) & (steps <= high)
    if not inside.any():
        return Score(*label, None, None, None, prediction.reference)
    curve = np.asarray(prediction.expected(steps[inside].astype(np.float64)))
    worst = int(np.argmax(np.abs(curve - values[inside])))
    size = float(np.ptp(curve)) or float(np.max(np.abs(curve))) or 1.0
    distance = float(abs(curve[worst] - values[inside][worst]))
    return Score(*label, float(curve[worst]), float(values[inside][worst]), distance / size, prediction.reference)
