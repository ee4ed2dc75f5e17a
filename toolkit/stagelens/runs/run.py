"""Runs: a directory each, opened to look at."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stagelens.base import (
    EnvironmentFault,
    StagelensError,
    UsageError,
    check_own,
    leads_into,
    load_sealed,
    noting,
    own,
    safe_name,
    unknown,
)
from stagelens.runs.manifest import DETECTOR, FILE, Manifest, load_manifest
from stagelens.runs.store import NotAsItEnded, read_measurements
from stagelens.timelines import Timeline

if TYPE_CHECKING:
    from transformer_lens import HookedRootModule

    from stagelens.experiments import Experiment
    from stagelens.host import Host
    from stagelens.stages import Stages

RUNS_ENVIRONMENT = "STAGELENS_RUNS"
LOCK = "run.lock"
SWEEPS, SWEEP_FILE, POINTS = "sweeps", "sweep.json", "points"  # of a sweep: its tables, and the runs of its grid points
PHASE = "head_specialization/phase"


def runs_folder(given: str | Path | None = None) -> Path:
    """The folder of runs: as given, else `$STAGELENS_RUNS`, else `runs`."""
    return Path(given or os.environ.get(RUNS_ENVIRONMENT) or "runs")


class Run:
    """One run: `manifest`, `timeline`, `stages`, `phases`, `predictions` and `model_at(step)`."""

    def __init__(self, folder: Path, host: Host | None = None) -> None:
        check_own(folder)
        self.folder = folder
        self.manifest: Manifest = load_manifest(folder)
        self._host = host
        self._stages: dict[tuple[str, str, float, float], Stages] = {}  # by metric and settings
        self.noted: dict[
            str, str
        ] = {}  # what the plugin's code raised while figures and report were made, see `noting`

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def status(self) -> str:
        """As in the manifest; a run that says `running` but has no living writer was interrupted."""
        if self.manifest.status == "running" and not is_being_written(self.folder):
            return "interrupted"
        return self.manifest.status

    @cached_property
    def timeline(self) -> Timeline:
        attributes = {"run": self.name, "task": self.manifest.task, "seed": self.manifest.seed}
        try:
            read = read_measurements(self.folder, self.manifest.timeline)
        except NotAsItEnded:
            if load_manifest(self.folder).timeline == self.manifest.timeline:
                raise
            read = read_measurements(self.folder)  # the run has gone on since it was opened
        return Timeline(read, attributes)

    @cached_property
    def experiment(self) -> Experiment:
        """The task or flow with this run's config and seed."""
        from stagelens.experiments import validate
        from stagelens.host import make_host

        host = self._host or make_host()
        task, plugin = self.manifest.task, self.manifest.plugin
        if task not in dict(host.tasks):
            raise UsageError(f"run {self.name!r} is of task {task!r}, {host.why_not(plugin)}")
        kind = host.task(self.manifest.task).load()
        made: Experiment = kind(validate(kind.Config, self.manifest.config), self.manifest.seed)
        return made

    @cached_property
    def known_experiment(self) -> Experiment | None:
        """As `experiment`; None if its plugin is not there: a run outlives its plugin."""
        with noting(self.noted, f"making {self.manifest.task}"), suppress(StagelensError):
            return self.experiment
        return None

    @property
    def problems(self) -> dict[str, str]:
        """What failed, one line each: probes, and other plugin code such as `figures()` and `predictions()`."""
        return self.manifest.problems | self.manifest.plugin_problems | self.noted

    def stages(
        self,
        metric: str | None = None,
        *,
        axis: Literal["auto", "linear", "log"] = "auto",
        min_drop: float = 0.01,
        significance: float = 3.0,
    ) -> Stages:
        """Plateaus and transitions of a curve (`loss`, `probe/reading[layer=1]`), by default of the task's own metric.

        Layers, heads and positions that `metric` does not pick are averaged. The settings are those of `detect_stages`.
        """
        key = (metric or self.manifest.metric, axis, min_drop, significance)
        if key not in self._stages:
            self._stages[key] = self._find_stages(*key)
        return self._stages[key]

    def _find_stages(
        self, metric: str, axis: Literal["auto", "linear", "log"], min_drop: float, significance: float
    ) -> Stages:
        from stagelens.stages import detect_stages
        from stagelens.timelines import one_curve

        curve = one_curve(self.timeline, metric)
        if curve.labels:
            raise UsageError(f"series {metric!r} holds labels ({', '.join(curve.labels)}); stages need numbers")
        found = detect_stages(*curve.read(self.timeline), axis=axis, min_drop=min_drop, significance=significance)
        names = self.manifest.stage_names if metric == self.manifest.metric else []
        predicted = [
            p.get("expected") for p in self.predictions if (p.get("kind"), p.get("series")) == ("level", metric)
        ]
        levels = [level for level in predicted if level is not None]
        if names and len(levels) == len(names) + 1:
            return found.named_by_level(names, levels)
        count = len(found.transitions)
        # A run on its way has the first of the stages that theory names; one with more of them than that, none.
        return found.named(names[:count]) if 0 < count <= len(names) else found

    @cached_property
    def phases(self) -> list[dict[str, Any]]:
        """The phases of head specialization in order, per layer: `{phase, start, end, layer}`."""
        if PHASE not in self.timeline:
            return []
        column, values, steps = self.timeline.column(PHASE), self.timeline.series(PHASE), self.timeline.steps
        found = []
        for index, layer in enumerate(column.coordinate("layer")):
            code = values[:, index]
            starts = np.flatnonzero(np.diff(code, prepend=np.nan) != 0)
            ends = np.append(starts[1:], len(code) - 1)
            for start, end in zip(starts, ends, strict=True):
                if not np.isnan(code[start]):
                    label = column.label(code[start])
                    found.append(
                        {
                            "phase": label,
                            "start": _plain(steps[start]),
                            "end": _plain(steps[end]),
                            "layer": layer,
                        }
                    )
        return found

    @property
    def final(self) -> dict[str, Any]:
        """The last value of every series; a series of one number as that number."""
        if not len(self.timeline.steps):
            return {}
        return {name: _last(self.timeline, name) for name in self.timeline}

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """What theory says beside what was measured, as scored when the run ended."""
        return self.manifest.predictions

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        from stagelens.runs.commands import command_of

        return command_of(self.manifest, self._host)

    @cached_property
    def warnings(self) -> list[str]:
        """What is wrong with the run's numbers as a whole, each with what to do about it."""
        from stagelens.runs.defects import defect_of

        return self.warnings_with(defect_of(self.folder, self.manifest))

    def warnings_with(self, defect: str) -> list[str]:
        """The run's warnings, where its `defect` (empty: none) is known."""
        again = f"{self.command} --probes {','.join(self.manifest.probes)}"
        return [*self.manifest.warnings, *([f"{defect}; repeat it: {again}"] if defect else [])]

    def summary(self) -> dict[str, Any]:
        """What `stagelens show --json` prints."""
        from stagelens.timelines import probe_events

        manifest = self.manifest
        return {
            "run": str(self.folder),
            "name": self.name,
            "task": manifest.task,
            "preset": manifest.preset,
            "config": manifest.config,
            "seed": manifest.seed,
            "status": self.status,
            "error": manifest.error,
            "steps": manifest.steps,
            "step": _plain(self.timeline.steps[-1]) if len(self.timeline.steps) else None,
            "seconds": manifest.seconds,
            "device": manifest.device,
            "final": self.final,
            "metric": manifest.metric,
            "stages": self._stages_if_any(),
            "phases": self.phases,
            "training_phases": manifest.phases,
            "events": manifest.events,
            "probe_events": probe_events(self.timeline),
            "predictions": self.predictions,
            "skipped": manifest.skipped,
            "problems": self.problems,
            "warnings": self.warnings,
        }

    def _stages_if_any(self) -> list[dict[str, Any]]:
        kept = self.manifest.stages
        if kept is not None and self.manifest.detector == DETECTOR and self.status == "finished":
            return kept  # finding them again would import half of scipy
        return self.found_stages()

    def found_stages(self) -> list[dict[str, Any]]:
        """The stages of the metric as plain values; none where there are too few points."""
        try:
            return self.stages().to_dicts()
        except StagelensError:  # too short, or without its metric: a run may be that, and still be shown
            return []

    @property
    def checkpoints(self) -> list[int]:
        """The steps whose weights are on disk."""
        from stagelens.runs import checkpoint

        return checkpoint.steps_in(self.folder)

    def model_at(self, step: int | None = None, device: str = "cpu") -> HookedRootModule:
        """The hooked model as it was at `step` (None: the last one).

        Between two checkpoints the training is replayed from the one before: batches depend on (seed, step) alone,
        so on the same machine and thread count this is the model that the run had.
        """
        import torch

        from stagelens.base import untouched_rng
        from stagelens.experiments import Task, Training
        from stagelens.runs import checkpoint

        task = self.experiment
        if not isinstance(task, Task):
            raise UsageError(f"run {self.name!r} is a flow ({self.manifest.task}); it has no model")
        known = self.checkpoints
        if not known:
            raise UsageError(f"run {self.name!r} has no checkpoint yet")
        wanted = known[-1] if step is None else step
        before = [saved for saved in known if saved <= wanted]
        last = max(known[-1], *map(int, self.timeline.steps[-1:]))
        if not before or wanted > last:
            raise UsageError(f"run {self.name!r} has no model at step {wanted}; it covers 0 to {last}")
        path = checkpoint.path_of(self.folder, before[-1])
        state = checkpoint.load(path, task.id, self.manifest.content)  # first: a config of another model may be huge
        training = Training(task, device)
        with checkpoint.fitting(path):
            training.load_state(state)
        with untouched_rng(), torch.enable_grad():
            for earlier in range(before[-1], wanted):
                training.advance(earlier)
        training.optimizer.zero_grad(set_to_none=True)
        model: HookedRootModule = training.model.eval()
        return model

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.manifest.task}, seed {self.manifest.seed}, {self.status}>"


def load(
    run: str | Path,
    runs: str | Path | None = None,
    host: Host | None = None,
    task: type[Experiment] | None = None,
) -> Run:
    """The run at a path, or of a name in the runs folder. `task` is its class, where no plugin brings it."""
    if task is not None:
        from stagelens.host import make_host

        host = host or make_host()
        host.load_class(task)
    path = Path(run)
    if (path / FILE).exists():
        return Run(path, host)
    folder = runs_folder(runs)
    if (folder / path / FILE).exists() and len(path.parts) == 1 and path.name not in (".", ".."):
        if not leads_into(folder / path, folder):
            raise UsageError(f"{folder / path} is a link that leads out of {folder}; give the path that it means")
        return Run(folder / path, host)
    if path.exists():
        raise UsageError(f"{run} is not a run: it has no {FILE}; `stagelens runs` lists the runs")
    raise unknown("run", str(run), [found.name for found in catalogue(folder)], f"runs are looked for in {folder}")


def catalogue(folder: str | Path | None = None, host: Host | None = None) -> list[Run]:
    """All runs in a folder, oldest first. What is not a readable run, or lies elsewhere, is passed over."""
    found = []
    for path in sorted(runs_folder(folder).glob(f"*/{FILE}")):
        if path.parent.is_symlink() and not leads_into(path.parent, runs_folder(folder)):
            continue
        try:
            found.append(Run(path.parent, host))
        except StagelensError:
            continue
    return sorted(found, key=lambda run: run.manifest.created)


def points_of(sweep: str | Path, runs: str | Path | None = None) -> list[Path]:
    """The finished runs of the sweep at a path, or of a name in the folder of sweeps; none where there is no such."""
    for folder in (Path(sweep), runs_folder(runs) / SWEEPS / Path(sweep).name):
        if not (folder / SWEEP_FILE).exists():
            continue
        path = own(folder, SWEEP_FILE)
        points = folder.parent.parent / POINTS
        try:
            rows = load_sealed(path)["table"]
            found = [points / safe_name(row["run"]) for row in rows if row["status"] == "finished"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            raise EnvironmentFault(f"{path} is not the table of a sweep ({error}); run the sweep again") from None
        if led := next((point for point in found if not leads_into(point, points)), None):
            raise UsageError(f"{led} is a link that leads out of {points}; put the run in its place")
        return found
    return []


def is_being_written(folder: Path) -> bool:
    """Whether a living process holds the run's lock."""
    from filelock import FileLock, Timeout

    lock = folder / LOCK
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a read-only folder: nobody can be writing
        return False


def _last(timeline: Timeline, name: str) -> Any:
    """The last measured value: a number, a label, or a nested list of them. nan becomes None."""
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


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
