"""Predictions of theory about a run, and how well they agree with what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stagelens.timelines import curve_name

if TYPE_CHECKING:
    from stagelens.stages import Stages
    from stagelens.timelines import Timeline

Floats = NDArray[np.float64]
Measure = Callable[["Timeline"], float | None]
Detect = Callable[[Any, Any], "Stages"]  # (steps, values) -> stages
Found = tuple[float | None, str, str]  # the measured number, what it is, and why it is missing

NOT_REACHED = "not reached"
NO_PLATEAU = "passed without a plateau"


@dataclass(frozen=True)
class Prediction:
    """One prediction about one series.

    kind `level`: `expected` is the value of a plateau of the series; by default it is compared with a plateau.
    kind `time`: `expected` is the step of an event; by default it is compared with a transition. Plateaus and
    transitions are matched one to one with the predictions of one series, so that none is used twice. A time after
    the last step, or a level far beyond the range of the series, counts as not reached.
    kind `curve`: `expected` is a function of the steps; it is compared at the measured steps within `window`.
    `series` may name one element, `PROBE/READING[layer=0,head=2]`; `place` selects it by coordinate: `{"head": 2}`.
    `event` replaces the default comparison of a time: it names the event of the flow that the time is compared with.
    `measure` replaces it too: it takes the timeline and returns the measured number, or None. `compared_with` then
    says in words what that number is.
    """

    name: str
    kind: Literal["level", "time", "curve"]
    expected: float | Callable[[Floats], Floats]
    reference: str  # the equation or figure it comes from
    series: str = "loss"
    window: tuple[float, float] | None = None
    measure: Measure | None = None
    place: Mapping[str, Any] = field(default_factory=dict)
    event: str = ""
    compared_with: str = ""

    def series_in(self, timeline: Timeline) -> str:
        """Returns the series of `timeline` that it is about, without the brackets that name one element of it."""
        return curve_name(self.series, timeline).series


@dataclass(frozen=True)
class Score:
    """A prediction and what was measured. `error` is relative; it is None if nothing was measured.

    `compared_with` says what `measured` is; `note` says why it is missing.
    """

    name: str
    kind: str
    series: str
    expected: float | None
    measured: float | None
    error: float | None
    reference: str
    compared_with: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score(
    predictions: Sequence[Prediction],
    timeline: Timeline,
    events: Mapping[str, float] | None = None,
    detect: Detect | None = None,
) -> list[Score]:
    """Returns each prediction with its measurement.

    `events` are the times of a flow's events, by name. `detect` finds the stages of a curve; default: `detect_stages`.
    """
    in_stages = [p for p in predictions if not (p.kind == "curve" or p.measure or p.event)]
    matched = iter(_matched(in_stages, timeline, detect))

    def scored(prediction: Prediction) -> Score:
        if prediction.kind == "curve":
            return _score_curve(prediction, timeline)
        if prediction.measure is not None:
            what = prediction.compared_with or f"measured on {prediction.series}"
            return _score_number(prediction, *_given(prediction.measure(timeline), what))
        if prediction.event:
            when = (events or {}).get(prediction.event)
            return _score_number(prediction, *_given(when, f"event {prediction.event!r}"))
        return _score_number(prediction, *next(matched))

    return [scored(prediction) for prediction in predictions]


def nearest_pairs(expected: Sequence[float], measured: Sequence[float]) -> list[int | None]:
    """Returns for each expected number the index of its measured one, or None. No measured number is used twice.

    A measured number can only belong to the nearest expected number. If several belong to one expected number, the
    nearest of them is used. So pairs keep their order, and an expected number that was not reached has no pair.
    """
    distances = np.abs(np.subtract.outer(np.asarray(expected, dtype=float), np.asarray(measured, dtype=float)))
    if not distances.size:
        return [None] * len(expected)
    owner = distances.argmin(axis=0)  # [measured]
    pairs: list[int | None] = []
    for i, row in enumerate(distances):
        own = np.flatnonzero(owner == i)
        pairs.append(int(own[row[own].argmin()]) if len(own) else None)
    return pairs


def too_late(predictions: Sequence[Prediction], end: float, key: str = "steps") -> list[str]:
    """Returns one warning if theory expects times after the end of the run. `key` is the config key of that end."""
    times = {p.name: float(p.expected) for p in predictions if p.kind == "time" and not callable(p.expected)}
    late = {name: when for name, when in times.items() if when > end}
    if not late:
        return []
    named = ", ".join(f"{name!r} at {when:.6g}" for name, when in late.items())
    needed = f"to see that, give {key} above {max(late.values()):.6g}"
    return [f"theory expects {named}, after the last {key.removesuffix('s')} ({key}={end:g}); {needed}"]


def _given(measured: float | None, what: str) -> Found:
    missing = measured is None or not np.isfinite(measured)
    return (None, what, NOT_REACHED) if missing else (measured, what, "")


def _score_number(prediction: Prediction, measured: float | None, compared_with: str, note: str) -> Score:
    assert not callable(prediction.expected)
    expected = float(prediction.expected)
    error = None if measured is None else abs(measured - expected) / (abs(expected) or 1.0)
    label = (prediction.name, prediction.kind, prediction.series)
    return Score(*label, expected, measured, error, prediction.reference, compared_with, note)


def _matched(predictions: Sequence[Prediction], timeline: Timeline, detect: Detect | None) -> list[Found]:
    """Returns the plateau of each level and the transition of each time, none of them used twice."""
    from stagelens.stages import detect_stages

    alike: dict[Any, list[int]] = {}  # predictions of one kind about one series
    for i, prediction in enumerate(predictions):
        alike.setdefault((prediction.kind, prediction.series, *prediction.place.items()), []).append(i)
    result: list[Found] = [(None, "", "")] * len(predictions)
    for (kind, series, *_), members in alike.items():
        if curve_name(series, timeline).series not in timeline:
            found: list[Found] = [(None, "", f"{series} was not recorded")] * len(members)
        else:
            steps, values = timeline.scalar(series, predictions[members[0]].place)
            stages = (detect or detect_stages)(steps, values)
            expected = [float(predictions[i].expected) for i in members]  # type: ignore[arg-type]
            found = _in_stages(expected, kind, series, stages, steps, values)
        for i, one in zip(members, found, strict=True):
            result[i] = one
    return result


def _in_stages(
    expected: Sequence[float], kind: str, series: str, stages: Stages, steps: Any, values: Floats
) -> list[Found]:
    levels = kind == "level"
    measured = [p.level for p in stages.plateaus] if levels else [t.at for t in stages.transitions]
    reached = [not _out_of_range(n, expected, values) if levels else n <= steps[-1] for n in expected]
    pairs = iter(nearest_pairs([n for n, there in zip(expected, reached, strict=True) if there], measured))
    found: list[Found] = []
    for number, there in zip(expected, reached, strict=True):
        if there and (pair := next(pairs)) is not None:
            found.append((measured[pair], f"{'plateau' if levels else 'transition'} {pair + 1} of {series}", ""))
        else:
            passed = levels and values.min() <= number <= values.max()
            found.append((None, "", NO_PLATEAU if passed else NOT_REACHED))
    return found


def _out_of_range(level: float, expected: Sequence[float], values: Floats) -> bool:
    """True if `level` lies beyond the range of `values` by more than half of the distance to the next expected level.

    The next one is the nearest on the side of the curve; if there is none, the nearest on the other side.
    """
    below, above = values.min() - level, level - values.max()
    others = [other for other in expected if other != level]
    inward = [other for other in others if (other > level) == (below > 0)]
    spacing = min((abs(other - level) for other in inward or others), default=np.inf)
    return bool(max(below, above) > spacing / 2)


def _score_curve(prediction: Prediction, timeline: Timeline) -> Score:
    """Scores the largest distance between curve and series in the window, relative to the curve's range there."""
    assert callable(prediction.expected)
    label = (prediction.name, "curve", prediction.series)
    if prediction.series_in(timeline) not in timeline:
        note = f"{prediction.series} was not recorded"
        return Score(*label, None, None, None, prediction.reference, note=note)
    steps, values = timeline.scalar(prediction.series, prediction.place)
    low, high = prediction.window or (-np.inf, np.inf)
    inside = (steps >= low) & (steps <= high)
    if not inside.any():
        return Score(*label, None, None, None, prediction.reference, note=NOT_REACHED)
    curve = np.asarray(prediction.expected(steps[inside].astype(np.float64)))
    worst = int(np.argmax(np.abs(curve - values[inside])))
    size = float(np.ptp(curve)) or float(np.max(np.abs(curve))) or 1.0
    distance = float(abs(curve[worst] - values[inside][worst]))
    pair = float(curve[worst]), float(values[inside][worst]), distance / size
    what = f"{prediction.series} at step {steps[inside][worst]:g}, where it is furthest from the curve"
    return Score(*label, *pair, prediction.reference, what)
