"""A run: one directory, opened for reading."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stagelens.base import StagelensError, UsageError, check_own, noting
from stagelens.runs.manifest import Manifest, load_manifest
from stagelens.runs.store import NotAsItEnded, read_measurements
from stagelens.timelines import Timeline

if TYPE_CHECKING:
    from stagelens.experiments import Experiment, Prediction, StageSettings
    from stagelens.host import Host
    from stagelens.models import HookedRootModule
    from stagelens.stages import JointStages, Stages

ALL = "all"  # instead of a series: the whole model
AxisName = Literal["auto", "linear", "log"]  # of `detect_stages`


class Run:
    """One run: `manifest`, `timeline`, `stages`, `phases`, `predictions` and `model_at(step)`."""

    def __init__(self, folder: Path, host: Host | None = None, manifest: Manifest | None = None) -> None:
        """Opens the run in `folder`. `manifest` is the one that its writer holds; None: it is read from the folder."""
        check_own(folder)
        self.folder = folder
        self.manifest: Manifest = manifest or load_manifest(folder)
        self._host = host
        self._detected: dict[tuple[Any, ...], Stages] = {}  # by the curve and the settings
        self._joint: dict[tuple[Any, ...], JointStages] = {}
        self.noted: dict[str, str] = {}  # errors of plugin code while figures and report were made, see `noting`

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
        """All measurements. They are read at the first use; `refresh` reads them again."""
        attributes = {"run": self.name, "task": self.manifest.task, "seed": self.seed}
        try:
            read = read_measurements(self.folder, self.manifest.timeline)
        except NotAsItEnded:
            if load_manifest(self.folder).timeline == self.manifest.timeline:
                raise
            read = read_measurements(self.folder)  # the run was resumed since it was opened
        return Timeline(read, attributes)

    def refresh(self) -> None:
        """Discards the cached timeline and phases, because the run's writer has added measurements."""
        for name in ("timeline", "phases"):
            self.__dict__.pop(name, None)

    @cached_property
    def experiment(self) -> Any:
        """The `Task` or `Flow` with this run's config and seed; `OwnLoop` if a recorder wrote it in a user's loop."""
        from stagelens.experiments import OwnLoop, validate
        from stagelens.host import make_host

        if self.manifest.kind == OwnLoop.id:
            return OwnLoop(self._stored_predictions())
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
            found: Experiment = self.experiment
            return found
        return None

    @property
    def problems(self) -> dict[str, str]:
        """What failed, one line each: probes, and other plugin code such as `figures()` and `predictions()`."""
        return self.manifest.problems | self.manifest.plugin_problems | self.noted

    @cached_property
    def stage_settings(self) -> StageSettings:
        """How this run's stages are detected, and what its task expects of them."""
        from stagelens.experiments import StageSettings, stage_settings

        with suppress(UsageError):
            return stage_settings(self.manifest.stage_settings)
        return StageSettings()  # settings of another version, or of an untrusted manifest

    def stages(
        self,
        metric: str | None = None,
        *,
        axis: AxisName | None = None,
        min_drop: float | None = None,
        significance: float | None = None,
    ) -> Stages:
        """Returns the stages of a curve (`loss`, `probe/reading[layer=1]`), by default of the task's metric.

        Layers, heads and positions that `metric` does not select are averaged. `all` means the whole model, see
        `joint_stages`. Options: see `detect_stages`; default: the settings of the task.
        """
        from stagelens.timelines import nearest_reference, one_curve

        if metric == ALL and ALL not in self.timeline:
            return self.joint_stages(axis=axis, min_drop=min_drop, significance=significance)
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
        if not names and (nearest := nearest_reference(self.timeline)) is not None:
            return found.named(nearest.transition_names(self.timeline.steps, found.transitions))
        count = len(found.transitions)
        # An unfinished run has the first of the named stages. If there are more stages than names, none is named.
        return found.named(names[:count]) if 0 < count <= len(names) else found

    def joint_stages(
        self, *, axis: AxisName | None = None, min_drop: float | None = None, significance: float | None = None
    ) -> JointStages:
        """Returns the stages of the whole model, found from all readings together; they are found once."""
        from stagelens.stages import joint_stages
        from stagelens.timelines import nearest_reference

        settings = self._settings(axis, min_drop, significance)
        key = (len(self.timeline.steps), *settings.values())
        if key not in self._joint:
            found, nearest = joint_stages(self.timeline, **settings), nearest_reference(self.timeline)
            if nearest is not None:
                found = found.named(nearest.transition_names(self.timeline.steps, found.transitions))
            self._joint[key] = found
        return self._joint[key]

    def detect(
        self,
        steps: Any,
        values: Any,
        *,
        axis: AxisName | None = None,
        min_drop: float | None = None,
        significance: float | None = None,
    ) -> Stages:
        """Returns `detect_stages` with the task's settings as defaults; the stages of each curve are found once."""
        from stagelens.stages import detect_stages

        steps, values = np.asarray(steps), np.asarray(values)
        settings = self._settings(axis, min_drop, significance)
        key = (steps.tobytes(), values.tobytes(), *settings.values())
        if key not in self._detected:
            self._detected[key] = detect_stages(steps, values, **settings)
        return self._detected[key]

    def _settings(self, axis: AxisName | None, min_drop: float | None, significance: float | None) -> dict[str, Any]:
        """Returns the arguments of the detector: the given ones, else those of the task."""
        own = self.stage_settings
        return {
            "axis": own.axis if axis is None else axis,
            "min_drop": own.min_drop if min_drop is None else min_drop,
            "significance": own.strength if significance is None else significance,
        }

    @cached_property
    def phases(self) -> list[dict[str, Any]]:
        """The phases of head specialization that last, in order, per layer: `{phase, start, end, layer}`."""
        from stagelens.timelines import phases_of

        return phases_of(self.timeline)

    @property
    def final(self) -> dict[str, Any]:
        """The last value of every series; a series of one number as that number."""
        from stagelens.runs.summary import last_of

        return {name: last_of(self.timeline, name) for name in self.timeline}

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """What theory predicts and what was measured, as scored when the run ended."""
        return self.manifest.predictions

    def _stored_predictions(self) -> list[Prediction]:
        """Returns the levels and times in the manifest, as predictions of what is one number per step."""
        from stagelens.experiments import Prediction

        found = [
            Prediction(p["name"], p["kind"], p["expected"], p["reference"], p["series"])
            for p in self.predictions
            if p.get("kind") in ("level", "time") and p.get("expected") is not None and p.get("series")
        ]
        return [prediction for prediction in found if self._has_number(prediction.series)]

    def _has_number(self, series: str) -> bool:
        """True if `series` is one number per step: a series, or an element such as `probe/reading[head=0]`."""
        with suppress(StagelensError):
            self.timeline.scalar(series)
            return True
        return False

    @property
    def seed(self) -> int | None:
        """The seed; None if a user's loop gave none."""
        return self.manifest.seed if self.manifest.seeded else None

    @property
    def unit(self) -> str:
        """`step`, or `time` of a flow."""
        return "time" if self.manifest.kind == "flow" else "step"

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        from stagelens.runs.commands import command_of

        return command_of(self.manifest, self._host)

    @cached_property
    def warnings(self) -> list[str]:
        """Warnings about all of the run's numbers, each with what to do."""
        from stagelens.runs.defects import defect_of

        return self.warnings_with(defect_of(self.folder, self.manifest))

    def warnings_with(self, defect: str) -> list[str]:
        """Returns the run's warnings, and one about its `defect` unless that is empty."""
        return [*self.manifest.warnings, *([f"{defect}; repeat it: {self.command}"] if defect else [])]

    def summary(self) -> dict[str, Any]:
        """What `stagelens show --json` prints."""
        from stagelens.runs.summary import summary_of

        return summary_of(self)

    @property
    def stage_differences(self) -> list[str]:
        """How the stages of the metric differ from what the task expects, one sentence each."""
        from stagelens.experiments import differences

        if not {"transitions", "levels"} & self.manifest.stage_settings.keys():
            return []
        with suppress(StagelensError):
            return differences(self.stage_settings, self.stages())
        return []

    @property
    def nearest(self) -> list[dict[str, Any]]:
        """The reference predictors that the model was nearest to, in order: `{reference, start, end}`."""
        from stagelens.timelines import nearest_spans

        return nearest_spans(self.timeline)

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

    def model_at(self, step: float | None = None, device: str = "cpu") -> HookedRootModule:
        """Returns the hooked model as it was at `step` (None: the last one).

        Between two checkpoints the training is replayed from the earlier one. Batches depend on (seed, step) alone,
        so on the same machine and thread count this is the model that the run had, bit for bit. A vectorized seed is
        replayed alone, so between checkpoints its model is the same up to rounding.
        """
        import torch

        from stagelens.base import untouched_rng
        from stagelens.experiments import Task, Training
        from stagelens.runs import checkpoint

        task = self.experiment
        if not isinstance(task, Task):
            if self.manifest.kind == "flow":
                raise UsageError(f"run {self.name!r} is a flow ({self.manifest.task}); it has no model")
            raise UsageError(
                f"run {self.name!r} is not of a task ({self.manifest.task}), so its model cannot be trained again; "
                "load a checkpoint that you saved, and give it to sl.watch(model, batch) for hooks"
            )
        known = self.checkpoints
        if not known:
            raise UsageError(f"run {self.name!r} has no checkpoint yet")
        try:
            wanted = known[-1] if step is None else int(step)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"step {step!r}: expected a training step, or None for the last one") from None
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
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"<Run {self.name}: {self.manifest.task}{seed}, {self.status}>"
