"""The plan: a run before it starts, with all user input checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.base import UsageError, noting
from stagelens.experiments import (
    Experiment,
    Flow,
    Task,
    as_settings,
    config_defaults,
    make_config,
    stage_settings,
)
from stagelens.host import Host
from stagelens.runs import (
    FILE,
    Manifest,
    Notify,
    choose_folder,
    defect_of,
    load_manifest,
    new_manifest,
    runs_folder,
    this_process,
    versions,
)
from stagelens.training.writer import Writer, late_times, writing

if TYPE_CHECKING:
    from stagelens.experiments import Training


@dataclass(frozen=True)
class Plan:
    """A run before it starts: everything about it is known and checked, and nothing is on disk yet."""

    experiment: Experiment
    manifest: Manifest
    probes: Sequence[str] | None  # as given
    host: Host

    def training(self) -> Training | None:
        """Returns the training of a task; None for a flow."""
        if not isinstance(self.experiment, Task):
            return None
        from stagelens.experiments import Training

        return Training(self.experiment, self.manifest.device)

    def folder(
        self,
        runs: str | Path | None,
        name: str | None,
        resume: bool,
        replace: bool = False,
        notify: Notify | None = None,
    ) -> Path:
        defaults = config_defaults(self.experiment.config)
        folder = choose_folder(runs_folder(runs), self.manifest, name, resume, replace, notify, defaults)
        if resume and (folder / FILE).exists() and (defect := defect_of(folder, load_manifest(folder))):
            raise UsageError(f"run {folder.name!r} cannot be resumed: {defect}; repeat it without --resume")
        return folder

    def warn(self, notify: Notify | None) -> None:
        """Calls `notify` with each warning that is known before the training."""
        if notify is not None:
            for warning in self.manifest.warnings:
                notify(warning)

    def writing(self, folder: Path) -> AbstractContextManager[Writer]:
        """Opens the run in `folder` to write it."""
        return writing(folder, self.manifest, self.host, self.probes, self.experiment)


def plan_run(
    task: str | type[Experiment],
    *,
    preset: str,
    settings: Sequence[str] | Mapping[str, Any],
    seed: int,
    device: str,
    probes: Sequence[str] | None,
    host: Host,
) -> Plan:
    """Returns what `run` will do. Mistakes of the user raise here."""
    plugin, kind = resolve_task(task, host)
    experiment = kind(make_config(kind.Config, kind.presets, preset, as_settings(settings)), seed)
    manifest = _manifest(experiment, plugin, preset, device)
    manifest.probes = probe_names(experiment, probes, host)
    with noting(manifest.plugin_problems, "predictions()", experiment, experiment.predictions):
        manifest.warnings = late_times(experiment.predicted, manifest)
    return Plan(experiment, manifest, probes, host)


def resolve_task(task: str | type[Experiment], host: Host) -> tuple[str, type[Experiment]]:
    """Returns the plugin and the class of `task`."""
    if isinstance(task, str):
        reference = host.task(task)
        return host.tasks.owners[reference.id], reference.load()
    if isinstance(task, type) and issubclass(task, Experiment):
        if task.id not in dict(host.tasks):
            host.load_class(task)
        return host.tasks.owners[task.id], task
    raise UsageError(f"task {task!r}: expected a task's id or a Task class")


def probe_names(experiment: Experiment, given: Sequence[str] | None, host: Host) -> list[str]:
    """Returns the probes of a run, as `Host.probe_names` chooses them; none for a flow."""
    return host.probe_names(given, experiment.probes) if isinstance(experiment, Task) else []


def _manifest(experiment: Experiment, plugin: str, preset: str, device: str) -> Manifest:
    config = experiment.config
    flow = isinstance(experiment, Flow)
    where, threads = ("cpu", 1) if flow else _hardware(device)
    phases = [] if flow else [{"phase": p.name, "steps": p.steps} for p in experiment.phases()]  # type: ignore[attr-defined]
    problems: dict[str, str] = {}
    given = stage_settings(experiment.stages, f"{experiment.id}.stages")
    stage_names: list[str] = []
    with noting(problems, "stage_names()", experiment, experiment.stage_names):
        stage_names = [str(name) for name in experiment.stage_names()]
    return new_manifest(
        task=experiment.id,
        plugin=plugin,
        preset=preset,
        config=config.model_dump(mode="json"),
        seed=experiment.seed,
        kind="flow" if flow else "training",
        steps=config.time if flow else config.steps,
        metric=experiment.metric,
        stage_names=stage_names,
        stage_settings=given.model_dump(mode="json", exclude_unset=True),
        plugin_problems=problems,
        device=where,
        threads=threads,
        phases=phases,
        vectorized=0,
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        settings=_settings(experiment, preset),
        versions=versions(),
        **this_process(),
    )


def _hardware(device: str) -> tuple[str, int]:
    """Returns the device of this name, and the number of threads to use."""
    import torch

    from stagelens.base import resolve_device

    return str(resolve_device(device)), torch.get_num_threads()


def _settings(experiment: Experiment, preset: str) -> dict[str, Any]:
    """Returns the config keys whose values differ from the preset."""
    plain = make_config(experiment.Config, experiment.presets, preset, []).model_dump(mode="json")
    return {key: value for key, value in experiment.config.model_dump(mode="json").items() if plain[key] != value}
