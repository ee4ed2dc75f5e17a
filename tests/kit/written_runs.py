"""Writes runs with given curves to disk, as if they had been trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stagelens import Reading
from stagelens.runs import Run
from stagelens.runs.manifest import Manifest
from stagelens.runs.store import Store
from stagelens.timelines.timeline import Measurement, Timeline, pack

STEPS = np.arange(0, 1001, 5)


def staircase(steps: Any, at: Sequence[float], levels: Sequence[float], width: float = 8.0) -> Any:
    """Returns a curve with a plateau at each of `levels`, and transitions around the times `at`."""
    curve = np.full(len(steps), float(levels[0]))
    for time, before, after in zip(at, levels, levels[1:], strict=False):
        curve += (after - before) / (1 + np.exp(-(np.asarray(steps) - time) / width))
    return curve


def measurements(steps: Any, series: dict[str, Any]) -> list[Measurement]:
    """`series` is {name: values [step]}, or {name: (values [step, ...], dims)}, with labels or coords."""
    made = []
    for index, step in enumerate(steps):
        readings = []
        for name, given in series.items():
            values, dims, labels = (*given, (), ())[:3] if isinstance(given, tuple) else (given, (), ())
            more = {"coords": labels} if isinstance(labels, dict) else {"labels": labels}
            readings.append(Reading(name, np.asarray(values)[index], dims, **more))
        made.append(pack(float(step), readings))
    return made


def timeline(steps: Any, series: dict[str, Any], **attributes: Any) -> Timeline:
    return Timeline(measurements(steps, series), attributes)


def write_run(
    runs: Path, name: str, series: dict[str, Any], steps: Any = STEPS, planned: float | None = None, **manifest: Any
) -> Run:
    """Writes a finished run of task `made/up` with the given series; `planned` is its planned last step."""
    folder = runs / name
    folder.mkdir(parents=True)
    known: dict[str, Any] = {
        "task": "made/up",
        "plugin": "made",
        "preset": "quick",
        "config": {"lr": 0.1},
        "seed": 0,
        "kind": "training",
        "steps": planned or (float(steps[-1]) if len(steps) else 1.0),
        "status": "finished",
        "versions": {"python": "3.11"},
    }
    Manifest(**known | manifest).save(folder)
    store = Store(folder)
    store.add(*measurements(steps, series))
    store.close()
    return Run(folder)
