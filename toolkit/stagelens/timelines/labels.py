"""One rule for all series of labels (phases, leading groups, nearest references): a label counts once it lasts.

Near a threshold a label flickers. A new one replaces the old one only if it lasts for `HOLD` measurements and until the
step has grown by `SPAN`, or to the end. The timeline itself contains the labels as they were measured.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from stagelens.timelines.timeline import Timeline

Floats = NDArray[np.float64]

PHASE = "head_specialization/phase"
HOLD = 3  # measurements for which a new label must last
SPAN = 0.05  # of the step at which it begins: schedules measure often where much happens


def settled(codes: ArrayLike, steps: ArrayLike | None = None, hold: int = HOLD, span: float = SPAN) -> Floats:
    """Returns `codes` [step] in which codes that do not last are replaced by the code before them. nan stays nan.

    If the first code does not last, it is replaced by the next one. Without `steps` only measurements count.
    """
    found = np.array(codes, dtype=np.float64)
    there = np.flatnonzero(np.isfinite(found))
    if not len(there):
        return found
    measured = found[there]
    when = np.zeros(len(there)) if steps is None else np.asarray(steps, dtype=np.float64)[there]
    starts = np.flatnonzero(np.diff(measured, prepend=measured[0] - 1))
    current, since = None, 0
    for start, end in pairwise([*starts.tolist(), len(measured)]):
        to_the_end = end == len(measured)
        lasts = end - start >= hold and (to_the_end or when[end] >= (1 + span) * when[start])
        if measured[start] != current and (lasts or to_the_end):
            if current is not None:
                measured[since:start] = current
            since, current = (start if current is not None else 0), measured[start]
    measured[since:] = current
    found[there] = measured
    return found


def label_spans(codes: ArrayLike, steps: NDArray[Any]) -> list[tuple[float, int, int]]:
    """Returns (code, first, last) of every label that lasts: indices of measurements; `last` is where the next begins.

    codes: [step]. What was not measured is passed over.
    """
    found = settled(codes, steps)
    there = np.flatnonzero(np.isfinite(found))
    if not len(there):
        return []
    starts = there[np.flatnonzero(np.diff(found[there], prepend=np.nan) != 0)]
    ends = [*starts[1:].tolist(), int(there[-1])]
    return [(float(found[start]), int(start), end) for start, end in zip(starts.tolist(), ends, strict=True)]


def changes(codes: ArrayLike, steps: ArrayLike | None = None) -> list[tuple[int, int, int]]:
    """Returns (index, before, after) of every change in `codes` [step] to a code that lasts."""
    found = settled(codes, steps)
    there = np.flatnonzero(np.isfinite(found))
    moved = np.flatnonzero(np.diff(found[there])) if len(there) else there
    return [(int(there[i + 1]), int(found[there[i]]), int(found[there[i + 1]])) for i in moved]


def phases_of(timeline: Timeline) -> list[dict[str, Any]]:
    """Returns the phases of head specialization that last, in order, per layer: `{phase, start, end, layer}`."""
    if PHASE not in timeline:
        return []
    column, values, steps = timeline.column(PHASE), timeline.series(PHASE), timeline.steps
    return [
        {"phase": column.label(code), "start": steps[start].item(), "end": steps[end].item(), "layer": layer}
        for index, layer in enumerate(column.coordinate("layer"))
        for code, start, end in label_spans(values[:, index], steps)
    ]
