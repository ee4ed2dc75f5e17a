"""What the model knows: the reference predictor that it is nearest to, at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stagelens.timelines.labels import label_spans, settled
from stagelens.timelines.reading import COMPANIONS
from stagelens.timelines.timeline import Timeline

Floats = NDArray[np.float64]

KL = "kl_to_references/kl"
SEPARATED = 2.0  # standard errors by which the nearest reference must be nearer than any other


class HasSpan(Protocol):
    """A transition: from `start` to `end`, in steps."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


@dataclass(frozen=True)
class Nearest:
    """`codes` [step] are indices of `references`; nan if two are equally near, or nothing was measured."""

    references: tuple[str, ...]
    codes: Floats

    def name(self, code: float) -> str:
        return self.references[int(code)] if np.isfinite(code) else "no single reference"

    def transition_names(self, steps: NDArray[Any], transitions: Sequence[HasSpan]) -> list[str]:
        """Returns `predicts as NAME` for each transition after which another reference is nearest than before it.

        The name is "" if the nearest reference is the same on both sides, or if there is none afterwards.
        """
        ends = [*(one.start for one in transitions[1:]), float(steps[-1])] if len(transitions) else []
        after = [self._usual((steps >= one.end) & (steps <= end)) for one, end in zip(transitions, ends, strict=True)]
        before = [self._usual(steps <= one.start) for one in transitions[:1]] + after[:-1]
        return [
            "" if np.isnan(now) or now == then else f"predicts as {self.name(now)}"
            for then, now in zip(before, after, strict=True)
        ]

    def _usual(self, where: NDArray[np.bool_]) -> float:
        """Returns the most common code of the steps; nan if there is none."""
        codes = self.codes[where & np.isfinite(self.codes)]
        return float(np.bincount(codes.astype(int)).argmax()) if len(codes) else float("nan")


def nearest_codes(kl: Floats, error: Floats | None = None) -> Floats:
    """Returns the index [step] of the smallest of `kl` [step, reference].

    nan if another one is within two standard errors of their difference. `error` [step, reference]: that of each; None
    if it was not measured, then the smallest counts.
    """
    known = np.where(np.isfinite(kl), kl, np.inf)
    best, rows = known.argmin(axis=1), np.arange(len(kl))
    codes = np.where(np.isfinite(known[rows, best]), best, np.nan).astype(np.float64)
    if error is None or kl.shape[1] < 2:
        return codes
    with np.errstate(invalid="ignore"):
        margin = SEPARATED * np.hypot(error, error[rows, best][:, None])
        close = known - known[rows, best][:, None] < np.nan_to_num(margin)
    close[rows, best] = False
    codes[close.any(axis=1)] = np.nan
    return codes


def nearest_reference(timeline: Timeline) -> Nearest | None:
    """Returns the nearest reference at each step, if it lasts; None if the task has fewer than two references."""
    if KL not in timeline or timeline.column(KL).dims != ("reference",) or timeline.column(KL).size < 2:
        return None
    error = KL + COMPANIONS[0]
    errors = timeline.series(error) if error in timeline else None
    codes = nearest_codes(timeline.series(KL), errors)
    names = tuple(str(name) for name in timeline.column(KL).coordinate("reference"))
    return Nearest(names, settled(codes, timeline.steps))


def nearest_spans(timeline: Timeline) -> list[dict[str, Any]]:
    """Returns the references that the model was nearest to, in order: `{reference, start, end}`."""
    found, steps = nearest_reference(timeline), timeline.steps
    if found is None:
        return []
    return [
        {"reference": found.name(code), "start": steps[start].item(), "end": steps[end].item()}
        for code, start, end in label_spans(found.codes, steps)
    ]
