"""Sweep metrics: one number of a run, named by a short text. A sweep tabulates them and fits power laws to them.

| text | number |
|---|---|
| `loss`, `loss:final` | the last value of the series |
| `loss:min`, `loss:max`, `loss:best` | its smallest or largest value; `best` is the smallest of a loss or an error |
| `accuracy:stage2` | its value at the end of the run's second stage |
| `probe/reading[head=1,layer=0]` | one curve of a series; layers, heads and positions not given are averaged |
| `mean(probe/reading[layer=0])` | the mean over all that is not given |
| `plateau_length@0.1`, `plateau_length:accuracy@5%` | steps until the series crosses a threshold |
| `plateau_length` | as the task measures it, if it does; else until the metric is at 50% of its start |
| `transition1`, `transition2`, ... | the step at which a transition is steepest |
| `stages`, `plateaus`, `transitions` | how many |
| `event:NAME` | when an event of a flow first happened |

An exact name of a series is that series: `recall@10`, `recall@10:best`, `plateau_length:recall@10`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stagelens.base import UsageError, unknown
from stagelens.timelines import curve_name, first_crossing, one_curve

if TYPE_CHECKING:
    from stagelens.runs import Run
    from stagelens.timelines import Timeline

Floats = NDArray[np.float64]

PLATEAU = "plateau_length"
THRESHOLD = "50%"  # of the first value of a series: the default end of a plateau
COUNTS = {"stages": None, "plateaus": "plateau", "transitions": "transition"}
MOMENTS = ("final", "best", "min", "max", "stageN")
PARTS = re.compile(r"(?P<name>[^:\[\]]+(\[.*?\]\s*\)?)?)\s*(:(?P<when>.+))?")
UNTIL = re.compile(rf"{PLATEAU}\s*(:(?P<name>.+?))?(@(?P<threshold>[^@\]]+))?")


@dataclass(frozen=True)
class Measured:
    """One number of a run. If it is `censored`, the run ended too early; the value is its last step, a lower bound.

    If there is no finite number, `reason` explains why.
    """

    value: float
    censored: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Measure:
    """A sweep metric: called with a run, it returns one number. `parse_measure` makes it from a text."""

    text: str
    series: str = ""  # the curve, such as `probe/reading[head=1]`; empty: the run's own metric
    kind: str = "final"  # final, best, min, max, stage, plateau_length, transition, event, or one of COUNTS
    number: int = 0  # of the stage or transition
    threshold: str = ""  # of a plateau's end; empty: the task's own
    event: str = ""

    @property
    def can_be_censored(self) -> bool:
        """True if a run may end before it."""
        return self.kind in (PLATEAU, "transition", "event", "stage")

    def among(self, timeline: Timeline) -> Measure:
        """Returns what the text means for a run with `timeline`: an exact name of a series is that series."""
        if self.text.strip() in timeline:
            return Measure(self.text, self.text.strip())
        longer = f"{self.series}@{self.threshold}"
        return replace(self, series=longer, threshold=THRESHOLD) if longer in timeline else self

    def __call__(self, run: Run) -> Measured:
        return self.among(run.timeline)._of(run)

    def _of(self, run: Run) -> Measured:
        if self.kind in COUNTS:
            kind = COUNTS[self.kind]
            return Measured(float(sum(kind in (None, stage.kind) for stage in run.stages())))
        end = float(run.timeline.steps[-1])
        if self.kind == "transition":
            times = [float(stage.at) for stage in run.stages().transitions]
            return Measured(times[self.number - 1]) if len(times) >= self.number else Measured(end, censored=True)
        if self.kind == "event":
            return self._event(run, end)
        if self.kind == "plateau_length" and not self.threshold and (own := _own_plateau(run, end)) is not None:
            return own
        steps, values = curve(run.timeline, self.series or run.manifest.metric)
        if self.kind == "plateau_length":
            return crossing(steps, values, self.threshold or THRESHOLD)
        if self.kind == "stage":
            ends = [stage.end for stage in run.stages()]
            if len(ends) < self.number:
                return Measured(nan, censored=True, reason=f"the run has {len(ends)} stages")
            return _value_at(float(ends[self.number - 1]), steps, values, self.series)
        return _number(_moment(self.kind, self.series, values), self.series)

    def _event(self, run: Run, end: float) -> Measured:
        happened = run.manifest.events
        if self.event in happened:
            return Measured(happened[self.event])
        check_event(self.event, run.experiment)
        return Measured(end, censored=True)


def parse_measure(text: str) -> Measure:
    """Returns the sweep metric that `text` names. A text that names none is an error before anything runs."""
    if until := UNTIL.fullmatch(text.strip()):
        return _until(text, (until["name"] or "").strip(), until["threshold"] or "")
    found = PARTS.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"measure {text!r}: expected a series, as loss:final, or plateau_length, transition1, stages")
    name, when = found["name"].strip(), (found["when"] or "").strip() or None
    curve_name(name)  # an error if its brackets are wrong
    if name in COUNTS and when is None:
        return Measure(text, kind=name)
    if name == "event" and when:
        return Measure(text, kind="event", event=when)
    if (numbered := re.fullmatch(r"transition([1-9]\d*)", name)) and when is None:
        return Measure(text, kind="transition", number=int(numbered[1]))
    if when and (numbered := re.fullmatch(r"stage([1-9]\d*)", when)):
        return Measure(text, series=name, kind="stage", number=int(numbered[1]))
    if when is not None and when not in MOMENTS[:-1]:
        raise unknown("moment", when, MOMENTS, f"in the measure {text!r}")
    return Measure(text, series=name, kind=when or "final")


def _until(text: str, series: str, threshold: str) -> Measure:
    """Returns the sweep metric of a plateau of `series`, which ends at `threshold`; empty: the run's own."""
    if series:
        curve_name(series)
    threshold = threshold or (THRESHOLD if series else "")
    _threshold(threshold or THRESHOLD, 1.0)
    return Measure(text, series=series, kind=PLATEAU, threshold=threshold)


def check_event(name: str, experiment: Any) -> None:
    """Raises an error if `experiment` has no event called `name`."""
    events: Any = getattr(experiment, "events", tuple)()
    if name not in (known := [event.name for event in events]):
        raise unknown("event", name, known, f"of {experiment.id}")


def check_series(timeline: Timeline, measure: Measure) -> None:
    """Raises an error unless the series of `measure` is one curve of numbers in `timeline`."""
    curve(timeline, measure.among(timeline).series)


def curve(timeline: Timeline, name: str) -> tuple[Floats, Floats]:
    """Returns (steps, values) of the one curve that `name` means, at the steps at which it was measured."""
    series, _, threshold = name.rpartition("@")
    if threshold and series in timeline and curve_name(name, timeline).series not in timeline:
        raise UsageError(f"measure {name!r}: only {PLATEAU} has a threshold, as {PLATEAU}:{name}")
    found = one_curve(timeline, name)
    if found.labels:
        raise UsageError(f"series {name!r} holds labels ({', '.join(found.labels)}); a measure needs numbers")
    steps, values = found.read(timeline)
    return steps.astype(np.float64), values


def _own_plateau(run: Run, end: float) -> Measured | None:
    """Returns the plateau length from an event or a probe of the run; None if it has neither."""
    if PLATEAU in run.manifest.events:
        return Measured(run.manifest.events[PLATEAU])
    for name in (PLATEAU, f"{PLATEAU}/steps"):
        if name in run.timeline:
            return Measured(float(curve(run.timeline, name)[1][-1]))
    events: Any = getattr(run.experiment, "events", tuple)()
    if PLATEAU in run.manifest.probes or any(event.name == PLATEAU for event in events):
        return Measured(end, censored=True)
    return None


def crossing(steps: Floats, values: Floats, threshold: str = THRESHOLD) -> Measured:
    """Returns the first step at which `values` [step] reach the threshold; censored if they never do."""
    level = _threshold(threshold, float(values[0]))
    if threshold.endswith("%") and values[0] == 0:
        return Measured(nan, reason=f"the series starts at 0, so {threshold} of its start is no threshold")
    found = first_crossing(steps, values, level)
    return Measured(float(steps[-1]), censored=True) if found is None else Measured(found)


def _value_at(step: float, steps: Floats, values: Floats, name: str) -> Measured:
    """Returns the value at `step`, interpolated between two measurements; nan outside of them."""
    if not steps[0] <= step <= steps[-1]:
        reason = f"{name} was measured from step {steps[0]:g} to {steps[-1]:g}; the stage ends at {step:g}"
        return Measured(nan, reason=reason)
    return _number(float(np.interp(step, steps, values)), name)


def _number(value: float, name: str) -> Measured:
    """Returns `value`, with a reason if it is not a finite number."""
    return Measured(value, reason="" if isfinite(value) else f"{name} is {value:g} there")


def _threshold(text: str, first: float) -> float:
    """Returns a threshold given as a number, or with % as a fraction of the `first` value."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise UsageError(f"threshold {text!r}: expected a number, or a part of the first value such as 50%") from None
    return number / 100 * first if text.endswith("%") else number


def _moment(kind: str, name: str, values: Floats) -> float:
    if kind == "best":
        kind = "min" if re.search(r"loss|error", name) else "max"
    return float({"final": values[-1], "min": values.min(), "max": values.max()}[kind])
