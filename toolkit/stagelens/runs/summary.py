"""The summary of a run: what `stagelens show --json` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagelens.runs.manifest import DETECTOR
from stagelens.timelines import Timeline, probe_events, what_formed

if TYPE_CHECKING:
    from stagelens.runs.run import Run


def summary_of(run: Run) -> dict[str, Any]:
    """Returns what is known about a run, as plain values."""
    manifest = run.manifest
    step = run.timeline.steps[-1].item() if len(run.timeline.steps) else None
    return {
        "run": str(run.folder),
        "name": run.name,
        "task": manifest.task,
        "preset": manifest.preset,
        "config": manifest.config,
        "seed": run.seed,
        "status": run.status,
        "error": manifest.error,
        "steps": max(manifest.steps, step or 0),  # the manifest of a user's loop has them when the loop ended
        "step": step,
        "seconds": manifest.seconds,
        "device": manifest.device,
        "final": run.final,
        "metric": manifest.metric,
        "stages": _stages_of(run),
        "stage_differences": run.stage_differences,
        "nearest": run.nearest,
        "phases": run.phases,
        "training_phases": manifest.phases,
        "events": manifest.events,
        "probe_events": probe_events(run.timeline),
        "formed": [one.to_dict() for one in what_formed(run.timeline, run.unit)],
        "predictions": run.predictions,
        "skipped": manifest.skipped,
        "problems": run.problems,
        "warnings": run.warnings,
    }


def _stages_of(run: Run) -> list[dict[str, Any]]:
    stored = run.manifest.stages
    if stored is not None and run.manifest.detector == DETECTOR and run.status == "finished":
        return stored  # finding them again would import half of scipy
    return run.found_stages()


def last_of(timeline: Timeline, name: str) -> Any:
    """Returns the last measured value: a number, a label, or a nested list of them. nan becomes None."""
    column, values = timeline.column(name), timeline.series(name)
    measured = ~np.isnan(values.reshape(len(values), -1)).all(axis=1)
    if not measured.any():
        return None
    last = values[np.flatnonzero(measured)[-1]]
    named = np.vectorize(
        lambda v: None if np.isnan(v) else column.label(v) if column.labels else float(v),
        otypes=[object],
    )
    result = named(last).tolist()
    while isinstance(result, list) and len(result) == 1:
        result = result[0]
    return result
