"""Events: what the probes saw happen, and when, on the same axis as the stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.timelines.crossings import first_crossing
from stagelens.timelines.curves import average
from stagelens.timelines.reading import is_companion
from stagelens.timelines.timeline import Column, Timeline

Floats = NDArray[np.float64]

HOLD = 3  # measurements that a new label must last to count
LEAST_RISE = 0.2  # of the larger end: what rises less is not worth an event
MOST_PLACES = 8  # a series of more elements is averaged over layers, heads and positions


def probe_events(timeline: Timeline) -> list[dict[str, Any]]:
    """What happened in the series of `timeline`, each as `{step, what, series}`, sorted by step.

    A series of labels (a head's leading group, a layer's phase) gives an event when its label changes and the new one
    lasts. A series of numbers that ends well above its start gives the time of its half rise.
    """
    found = []
    for name in timeline:
        if is_companion(name, timeline):
            continue
        column, values = timeline.column(name), timeline.series(name)
        happened = _label_changes if column.labels else _half_rises
        for step, what in happened(column, timeline.steps, values):
            found.append({"step": step, "what": what, "series": name})
    return sorted(found, key=lambda event: (event["step"], event["series"]))


def changes(codes: Floats, hold: int = HOLD) -> list[tuple[int, int, int]]:
    """(index, before, after) of every change in `codes` [step] to a code that lasts `hold` measurements or to the end.

    nan is passed over; shorter visits count as part of what was before.
    """
    there = np.flatnonzero(np.isfinite(codes))
    found: list[tuple[int, int, int]] = []
    if not len(there):
        return found
    measured = codes[there].astype(int)
    starts = np.flatnonzero(np.diff(measured, prepend=measured[0] - 1))
    lengths = np.diff(np.append(starts, len(measured)))
    current = None
    for start, length in zip(starts, lengths, strict=True):
        code = int(measured[start])
        if code == current or (length < hold and start + length < len(measured)):
            continue
        if current is not None:
            found.append((int(there[start]), current, code))
        current = code
    return found


def half_rise(steps: NDArray[Any], values: Floats) -> float | None:
    """Returns the step from which on `values` [step] stay above half of their rise; None if they do not clearly rise.

    They clearly rise if the median of the last three values exceeds that of the first three by half of the whole
    range, and by a fifth of the larger of the two.
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


def _label_changes(column: Column, steps: NDArray[Any], values: Floats) -> Iterator[tuple[float, str]]:
    flat = values.reshape(len(values), -1)
    for index, place in enumerate(places(column)):
        for at, before, after in changes(flat[:, index]):
            yield steps[at].item(), f"{place}: {column.label(before)} → {column.label(after)}".removeprefix(": ")


def _half_rises(column: Column, steps: NDArray[Any], values: Floats) -> Iterator[tuple[float, str]]:
    rule = ""
    if column.size > MOST_PLACES:
        column, values, rule = average(column, values)
    flat = values.reshape(len(values), -1)
    for index, place in enumerate(places(column)):
        at = half_rise(steps, flat[:, index])
        if at is not None:
            yield at, ": ".join(part for part in (place, rule, "half of its rise") if part)


def places(column: Column) -> list[str]:
    """A label for each number of a series, in order: `layer 0 head 2`; dims of size one are left out."""
    wide = [(dim, size) for dim, size in zip(column.dims, column.shape, strict=True) if size > 1]
    labels = [column.coordinate(dim) for dim, _ in wide]
    return [
        " ".join(_place(dim, labels[i][at]) for i, ((dim, _), at) in enumerate(zip(wide, index, strict=True)))
        for index in np.ndindex(*(size for _, size in wide))
    ]


def _place(dim: str, label: Any) -> str:
    return label if isinstance(label, str) else f"{dim} {label}"
