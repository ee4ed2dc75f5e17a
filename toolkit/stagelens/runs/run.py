"""A run: one directory, opened for reading."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stagelens.base import StagelensError, UsageError, check_own, noting
from stagelens.runs.manifest import DETECTOR, Manifest, load_manifest
from stagelens.runs.store import NotAsItEnded, read_measurements
from stagelens.timelines import Timeline

if TYPE_CHECKING:
    from transformer_lens import HookedRootModule

    from stagelens.experiments import Experiment
    from stagelens.host import Host
    from stagelens.stages import Stages

PHASE = "head_specialization/phase"
AxisName = Literal["auto", "linear", "log"]  # of `detect_stages`


class Run:
    """One run: `manifest`, `timeline`, `stages`, `phases`, `predictions` and `model_at(step)`."""

    def __init__(self, folder: Path, host: Host | None = None, manifest: Manifest | None = None) -> None:
        """Opens the run in `folder`. `manifest` is the one that its writer holds; None: it is read from the folder."""
        check_own(folder)
        self.folder = folder
        self.manifest: Manifest = manifest or load_manifest(folder)
        self._host = host
        self._detected: dict[tuple[bytes, bytes, AxisName, float, float], Stages] = {}  # by the curve and the settings
        self.noted: dict[str, str] = {}  # what plugin code raised while figures and report were made, see `noting`

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def status(self) -> str:
        """The status in the manifest. A run that is `running` but has no living writer was interrupted."""
        from stagelens.runs.lock import is_being_written

        if self.manifest.status == "running" and not is_being_written(self.folder):
            return "interrupted"
        return self.manifest.status

    @cached_property
    def timeline(self) -> Timeline:
        """All measurements, as read when this was first used; `refresh` reads them again."""
        attributes = {"run": self.name, "task": self.manifest.task, "seed": self.manifest.seed}
        try:
            read = read_measurements(self.folder, self.manifest.timeline)
        except NotAsItEnded:
            if load_manifest(self.folder).timeline == self.manifest.timeline:
                raise
            read = read_measurements(self.folder)  # the run was resumed since it was opened
        return Timeline(read, attributes)

    def refresh(self) -> None:
        """Forgets the timeline and what follows from it, because the run's writer has added measurements."""
        for name in ("timeline", "phases"):
            self.__dict__.pop(name, None)

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
        """Returns `experiment`; None if its plugin is not installed any more."""
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
        axis: AxisName = "auto",
        min_drop: float = 0.01,
        significance: float = 3.0,
    ) -> Stages:
        """Plateaus and transitions of a curve (`loss`, `probe/reading[layer=1]`), by default of the task's own metric.

        Layers, heads and positions that `metric` does not pick are averaged. The settings are those of `detect_stages`.
        """
        from stagelens.timelines import one_curve

        metric = metric or self.manifest.metric
        curve = one_curve(self.timeline, metric)
        if curve.labels:
            raise UsageError(f"series {metric!r} holds labels ({', '.join(curve.labels)}); stages need numbers")
        found = self.detect(*curve.read(self.timeline), axis=axis, min_drop=min_drop, significance=significance)
        names = self.manifest.stage_names if metric == self.manifest.metric else []
        predicted = [
            p.get("expected") for p in self.predictions if (p.get("kind"), p.get("series")) == ("level", metric)
        ]
        levels = [level for level in predicted if level is not None]
        if names and len(levels) == len(names) + 1:
            return found.named_by_level(names, levels)
        count = len(found.transitions)
        # An unfinished run has the first of the named stages. If there are more stages than names, none is named.
        return found.named(names[:count]) if 0 < count <= len(names) else found

    def detect(
        self, steps: Any, values: Any, *, axis: AxisName = "auto", min_drop: float = 0.01, significance: float = 3.0
    ) -> Stages:
        """Returns `detect_stages` with the same arguments; the stages of each curve are found once."""
        from stagelens.stages import detect_stages

        steps, values = np.asarray(steps), np.asarray(values)
        key = (steps.tobytes(), values.tobytes(), axis, min_drop, significance)
        if key not in self._detected:
            self._detected[key] = detect_stages(steps, values, axis=axis, min_drop=min_drop, significance=significance)
        return self._detected[key]

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
                    phase = {"phase": column.label(code[start]), "start": steps[start].item(), "end": steps[end].item()}
                    found.append(phase | {"layer": layer})
        return found

    @property
    def final(self) -> dict[str, Any]:
        """The last value of every series; a series of one number as that number."""
        if not len(self.timeline.steps):
            return {}
        return {name: _last(self.timeline, name) for name in self.timeline}

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """What theory predicts and what was measured, as scored when the run ended."""
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
        """Returns the run's warnings, and one about its `defect` unless that is empty."""
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
            "step": self.timeline.steps[-1].item() if len(self.timeline.steps) else None,
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
        stored = self.manifest.stages
        if stored is not None and self.manifest.detector == DETECTOR and self.status == "finished":
            return stored  # finding them again would import half of scipy
        return self.found_stages()

    def found_stages(self) -> list[dict[str, Any]]:
        """Returns the stages of the metric as plain values; none if the run is too short or lacks its metric."""
        try:
            return self.stages().to_dicts()
        except StagelensError:
            return []

    @property
    def checkpoints(self) -> list[int]:
        """The steps whose weights are on disk."""
        from stagelens.runs import checkpoint

        return checkpoint.steps_in(self.folder)

    def model_at(self, step: int | None = None, device: str = "cpu") -> HookedRootModule:
        """Returns the hooked model as it was at `step` (None: the last one).

        Between two checkpoints the training is replayed from the earlier one. Batches depend on (seed, step) alone,
        so on the same machine and thread count this is the model that the run had, bit for bit.
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
        # The checkpoint is checked before the model is built: the config of another model may be huge.
        state = checkpoint.load(path, task.id, self.manifest.content)
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


def _last(timeline: Timeline, name: str) -> Any:
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
