"""Events in the readings of probes: changes of a label, and rises, each at its step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.timelines.crossings import first_crossing
from stagelens.timelines.curves import SeriesCurve, element_names, lines_of
from stagelens.timelines.labels import HOLD, changes
from stagelens.timelines.nearest import KL, nearest_reference
from stagelens.timelines.reading import is_companion
from stagelens.timelines.timeline import Timeline

Floats = NDArray[np.float64]

LEAST_RISE = 0.2  # as a fraction of the larger of first and last value: a smaller rise is not an event
MOST_LINES = 8  # a series of more numbers per step is averaged over layers, heads and positions


def probe_events(timeline: Timeline) -> list[dict[str, Any]]:
    """Returns what happened in the series of `timeline`, each event as `{step, what, series, curve}`, sorted by step.

    `curve` is the name of the element that the event is about, `series[layer=0,head=2]`; of a mean, the series.

    A series of labels (a head's leading group, a layer's phase) has an event when its label changes and the new one
    lasts. A series of numbers that ends well above its start has one when it reaches half of its rise. KL divergences
    have one when another reference becomes the nearest.
    """
    found = []
    for name in timeline:
        if is_companion(name, timeline):
            continue
        happened = _label_changes if timeline.column(name).labels else _half_rises
        found += [_event(name, *one) for one in happened(timeline, name)]
    found += [_event(KL, *one) for one in _nearest_changes(timeline)]
    return sorted(found, key=lambda event: (event["step"], event["series"]))


def _event(series: str, step: float, what: str, curve: str) -> dict[str, Any]:
    return {"step": step, "what": what, "series": series, "curve": curve}


def half_rise(steps: NDArray[Any], values: Floats) -> float | None:
    """Returns the step from which on `values` [step] stay above half of their rise; None if they do not clearly rise.

    `first` and `last` are the medians of the first and of the last three values. The values clearly rise if
    `last - first` is at least half of their whole range, and at least a fifth of the larger of the two.
    """
    there = np.isfinite(values)  # a run that diverges ends in infinities
    steps, values = steps[there], values[there]
    if len(values) < 2 * HOLD:
        return None
    first, last = float(np.median(values[:HOLD])), float(np.median(values[-HOLD:]))
    rise = last - first
    if rise <= 0 or rise < 0.5 * np.ptp(values) or rise < LEAST_RISE * max(abs(first), abs(last)):
        return None
    return first_crossing(steps, values, first + rise / 2, rising=True, lasting=True)


def _label_changes(timeline: Timeline, name: str) -> Iterator[tuple[float, str, str]]:
    lines = lines_of(timeline, name)
    for label, curve, codes in zip(lines.labels, element_names(lines.column), lines.values.T, strict=True):
        for at, before, after in changes(codes, timeline.steps):
            change = f"{lines.column.label(before)} → {lines.column.label(after)}"
            yield timeline.steps[at].item(), f"{label}: {change}".removeprefix(": "), curve


def _nearest_changes(timeline: Timeline) -> Iterator[tuple[float, str, str]]:
    """Yields when another reference predictor becomes the nearest one."""
    nearest = nearest_reference(timeline)
    if nearest is not None:
        for at, before, after in changes(nearest.codes):
            what, place = (
                f"nearest: {nearest.name(before)} → {nearest.name(after)}",
                (("reference", nearest.name(after)),),
            )
            yield timeline.steps[at].item(), what, SeriesCurve(KL, place if np.isfinite(after) else ()).name


def _half_rises(timeline: Timeline, name: str) -> Iterator[tuple[float, str, str]]:
    lines = lines_of(timeline, name, MOST_LINES)
    for label, curve, values in zip(lines.labels, element_names(lines.column), lines.values.T, strict=True):
        at = half_rise(timeline.steps, values)
        if at is not None:
            yield at, ": ".join(part for part in (label, lines.rule, "half of its rise") if part), curve
