"""stagelens watches circuits form: probes, stages and claims for transformers in training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagelens.claims import Check, Claim
    from stagelens.comparing import Comparison, compare
    from stagelens.config import FlowConfig, TaskConfig
    from stagelens.ensemble import Ensemble, run_ensemble
    from stagelens.errors import StagelensError
    from stagelens.flow import Event, Flow
    from stagelens.hookspecs import hookimpl
    from stagelens.laws import Law, fit_law
    from stagelens.lazy import ClaimRef, ProbeRef, TaskRef
    from stagelens.models import fast
    from stagelens.prediction import Prediction
    from stagelens.probing import Probe, probe
    from stagelens.reading import Reading
    from stagelens.recorder import Recorder
    from stagelens.running import run
    from stagelens.runs import Run, load
    from stagelens.schedule import Schedule
    from stagelens.stages import Stage, detect_stages
    from stagelens.sweeping import Sweep, sweep
    from stagelens.task import Group, Phase, Task
    from stagelens.timeline import Timeline

# Where each public name lives. They are imported on first use: `import stagelens` itself brings in no torch.
_HOMES = {
    "Check": "claims",
    "Claim": "claims",
    "ClaimRef": "lazy",
    "Comparison": "comparing",
    "Ensemble": "ensemble",
    "Event": "flow",
    "Flow": "flow",
    "FlowConfig": "config",
    "Group": "task",
    "Law": "laws",
    "Phase": "task",
    "Prediction": "prediction",
    "Probe": "probing",
    "ProbeRef": "lazy",
    "Reading": "reading",
    "Recorder": "recorder",
    "Run": "runs",
    "Schedule": "schedule",
    "Stage": "stages",
    "StagelensError": "errors",
    "Sweep": "sweeping",
    "Task": "task",
    "TaskConfig": "config",
    "TaskRef": "lazy",
    "Timeline": "timeline",
    "compare": "comparing",
    "detect_stages": "stages",
    "fast": "models",
    "fit_law": "laws",
    "hookimpl": "hookspecs",
    "load": "runs",
    "probe": "probing",
    "run": "running",
    "run_ensemble": "ensemble",
    "sweep": "sweeping",
}

__all__ = [
    "Check",
    "Claim",
    "ClaimRef",
    "Comparison",
    "Ensemble",
    "Event",
    "Flow",
    "FlowConfig",
    "Group",
    "Law",
    "Phase",
    "Prediction",
    "Probe",
    "ProbeRef",
    "Reading",
    "Recorder",
    "Run",
    "Schedule",
    "Stage",
    "StagelensError",
    "Sweep",
    "Task",
    "TaskConfig",
    "TaskRef",
    "Timeline",
    "compare",
    "detect_stages",
    "fast",
    "fit_law",
    "hookimpl",
    "load",
    "probe",
    "run",
    "run_ensemble",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("stagelens")
    if name not in _HOMES:
        raise AttributeError(f"module 'stagelens' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"stagelens.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
