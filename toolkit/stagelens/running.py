"""Running: a task or flow from a name to a finished run on disk."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from stagelens import checkpoint
from stagelens.batches import eval_batch
from stagelens.config import make_config
from stagelens.device import resolve_device
from stagelens.errors import EnvironmentFault, StagelensError, UsageError
from stagelens.experiment import Experiment
from stagelens.files import safe_name
from stagelens.flow import Diverged, Flow, integrate
from stagelens.host import Host, make_host
from stagelens.manifest import FILE, Manifest, load_manifest, this_process, versions
from stagelens.prediction import score
from stagelens.reading import Reading
from stagelens.recorder import Recorder
from stagelens.runs import LOCK, Run, catalogue, runs_folder
from stagelens.schedule import CHECKPOINTS
from stagelens.seeds import untouched_rng
from stagelens.store import Store, read_measurements
from stagelens.task import Task
from stagelens.timeline import Measurement, Timeline
from stagelens.training import SMALLER, Training

Progress = Callable[[float, float, float | None], None]  # (step, steps, loss or None)
CHECK_EVERY = 50  # steps between looks at whether the loss is still finite


def run(
    task: str | type[Experiment],
    *,
    preset: str = "quick",
    settings: Sequence[str] | Mapping[str, Any] = (),
    seed: int = 0,
    device: str = "auto",
    runs: str | Path | None = None,
    name: str | None = None,
    resume: bool = False,
    probes: Sequence[str] | None = None,
    host: Host | None = None,
    progress: Progress | None = None,
    report: bool = True,
) -> Run:
    """Trains or integrates `task`, records its probes, and writes figures and a report.

        run = sl.run("markov", seed=1, settings={"steps": 500})

    `settings` are `key=value` strings or a mapping. With `resume`, a run of the same name (or, without a name, of the
    same task, config and seed) goes on where it stopped; where there is none, a new one starts.
    """
    host = host or make_host()
    plugin, kind = _resolve(task, host)
    given = [f"{k}={_text(v)}" for k, v in settings.items()] if isinstance(settings, Mapping) else list(settings)
    config = make_config(kind.Config, kind.presets, preset, given)
    experiment = kind(config, seed)
    where = resolve_device(device) if isinstance(experiment, Task) else torch.device("cpu")
    manifest = _manifest(experiment, plugin, preset, where)
    manifest.probes = _probe_names(experiment, probes, host)
    training = Training(experiment, where) if isinstance(experiment, Task) else None
    folder = _folder(runs_folder(runs), manifest, name, resume)  # all that the user can have mistaken is told by now
    with _writer(folder):
        if (folder / FILE).exists():
            manifest = _taken_up(folder, manifest, probes)
        manifest.save(folder)
        opened = Run(folder, host)
        host.manager.hook.stagelens_run_started(run=opened)
        writer = _Writer(opened, manifest, host, progress)
        try:
            writer.execute(experiment, training)
        finally:
            opened = Run(folder, host)
            host.manager.hook.stagelens_run_finished(run=opened)
    if report and opened.manifest.status != "failed":
        from stagelens.report import write_report

        write_report(opened)
    return opened


class _Writer:
    """The one writer of a run: carries it from where it stands to its end, and keeps the manifest true."""

    def __init__(self, run: Run, manifest: Manifest, host: Host, progress: Progress | None) -> None:
        self.run, self.manifest, self.host = run, manifest, host
        self.folder = run.folder
        self.progress = progress

    def execute(self, experiment: Experiment, training: Training | None) -> None:
        started, before = time.monotonic(), self.manifest.seconds
        status, error = "failed", ""
        store = Store(self.folder)
        try:
            if isinstance(experiment, Flow):
                error = self._integrate(experiment, store)
                status = "failed" if error else "finished"
            else:
                assert training is not None
                status = self._train(training, store)
            self._compare_with_theory(experiment)
        except Diverged as divergence:
            error = str(divergence)
        except KeyboardInterrupt:
            status = "interrupted"
        except EnvironmentFault as fault:
            status, error = "interrupted", str(fault)
            raise
        except BaseException as defect:
            error = f"{type(defect).__name__}: {defect}"
            raise
        finally:
            self.manifest.status, self.manifest.error = status, error
            self.manifest.seconds = before + time.monotonic() - started
            with suppress(EnvironmentFault) if error else nullcontext():  # what went wrong first is what is told
                _close(store, self.manifest, self.folder)

    def _compare_with_theory(self, experiment: Experiment) -> None:
        timeline = Timeline(read_measurements(self.folder))
        self.manifest.predictions = [found.to_dict() for found in score(experiment.predictions(), timeline)]

    def _integrate(self, flow: Flow, store: Store) -> str:
        report = self._throttled()
        trajectory = integrate(flow, lambda t: report(t, None))
        store.add(*trajectory.measurements)
        for measurement, readings in zip(trajectory.measurements, trajectory.readings, strict=True):
            self.manifest.step = measurement.step
            self._tell(measurement.step, readings)
        self.manifest.events = trajectory.events
        return trajectory.error

    def _train(self, training: Training, store: Store) -> str:
        """Trains from the newest checkpoint, or from the start, to the end. Returns the status."""
        task, steps = training.task, int(self.manifest.steps)
        report = self._throttled()

        def keep(measurement: Measurement, _: Sequence[Reading]) -> None:
            if not math.isfinite(_loss_of(measurement)):
                raise Diverged(f"the evaluation loss became nan or infinite at step {measurement.step}; {SMALLER}")
            store.add(measurement)

        with untouched_rng(), _graceful() as stop:
            batch = eval_batch(task, training.device)
            recorder = Recorder(training.model, self.manifest.probes, batch, task=task, host=self.host, sink=keep)
            start = self._restore(training, recorder, store)
            losses = [(m.step, _loss_of(m)) for m in recorder.measurements]
            schedule = task.schedule()
            to_measure = schedule.next_after(int(losses[-1][0]), steps, losses) if losses else 0
            to_save = {*CHECKPOINTS.planned(steps)} - {start if losses else -1}
            for step in range(start, steps + 1):
                if step == to_measure:
                    training.check()
                    readings = recorder.measure(step, **training.scalars())
                    losses.append((step, _loss_of(recorder.measurements[-1])))
                    to_measure = schedule.next_after(step, steps, losses)
                    self._measured(recorder, step, readings)
                if step in to_save or stop.is_set():
                    training.check()
                    checkpoint.save(self.folder, step, task.id, _state(training, recorder))
                if step == steps:
                    break
                if stop.is_set():
                    return "interrupted"
                training.advance(step)
                if step % CHECK_EVERY == 0:
                    training.check()
                report(step + 1, training.loss)
        return "finished"

    def _restore(self, training: Training, recorder: Recorder, store: Store) -> int:
        """Puts the newest checkpoint back, with the measurements up to it. Returns the step to go on from."""
        found = checkpoint.latest(self.folder, training.task.id)
        if found is None:
            store.forget_after(-1)
            return 0
        step, state = found
        measurements = [m for m in read_measurements(self.folder) if m.step <= step]
        if not measurements:
            raise EnvironmentFault(f"{store.path} has lost what was measured up to step {step}; restore it from a copy")
        training.load_state(state)
        recorder.load_state(state["recorder"], measurements)
        store.forget_after(step)
        return step

    def _measured(self, recorder: Recorder, step: int, readings: Sequence[Reading]) -> None:
        manifest = self.manifest
        if (recorder.skipped, recorder.problems) != (manifest.skipped, manifest.problems):
            manifest.skipped, manifest.problems = dict(recorder.skipped), dict(recorder.problems)
            manifest.save(self.folder)
        manifest.step = step
        self._tell(step, readings)

    def _tell(self, step: float, readings: Sequence[Reading]) -> None:
        self.host.manager.hook.stagelens_reading_recorded(run=self.run, step=step, readings=readings)

    def _throttled(self) -> Callable[[float, torch.Tensor | None], None]:
        """The progress callback, at most ten times a second: reading a loss waits for the device."""
        last = 0.0

        def report(step: float, loss: torch.Tensor | None) -> None:
            nonlocal last
            now = time.monotonic()
            if self.progress is not None and (now - last > 0.1 or step == self.manifest.steps):
                last = now
                self.progress(step, self.manifest.steps, None if loss is None else loss.item())

        return report


def _resolve(task: str | type[Experiment], host: Host) -> tuple[str, type[Experiment]]:
    """The plugin and class that `task` means."""
    if isinstance(task, str):
        reference = host.task(task)
        return host.tasks.owners[reference.id], reference.load()
    if isinstance(task, type) and issubclass(task, Experiment):
        if task.id not in dict(host.tasks):
            host.load_class(task)
        return host.tasks.owners[task.id], task
    raise UsageError(f"task {task!r}: expected a task's id or a Task class")


def _probe_names(experiment: Experiment, given: Sequence[str] | None, host: Host) -> list[str]:
    """The probes of a run: those given, else the task's own, else all that run by default. All of them exist."""
    if not isinstance(experiment, Task):
        return []
    names = given or experiment.probes or [name for name, ref in host.probes if ref.default]
    return [host.probes[name].name for name in names]


def _manifest(experiment: Experiment, plugin: str, preset: str, device: torch.device) -> Manifest:
    config = experiment.config
    flow = isinstance(experiment, Flow)
    phases = [] if flow else [{"phase": p.name, "steps": p.steps} for p in experiment.phases()]  # type: ignore[attr-defined]
    return Manifest(
        task=experiment.id,
        plugin=plugin,
        preset=preset,
        config=config.model_dump(mode="json"),
        seed=experiment.seed,
        kind="flow" if flow else "training",
        steps=config.time if flow else config.steps,
        metric=experiment.metric,
        stage_names=list(experiment.stage_names()),
        device=str(device),
        threads=torch.get_num_threads(),
        phases=phases,
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        settings=_settings(experiment, preset),
        versions=versions(),
        **this_process(),
    )


def _settings(experiment: Experiment, preset: str) -> dict[str, Any]:
    """The keys whose values are not the preset's."""
    plain = make_config(experiment.Config, experiment.presets, preset, []).model_dump(mode="json")
    return {key: value for key, value in experiment.config.model_dump(mode="json").items() if plain[key] != value}


def _folder(runs: Path, manifest: Manifest, name: str | None, resume: bool) -> Path:
    """The run's folder: a new one, or with `resume` the one to go on with."""
    default = f"{manifest.task.replace('/', '-')}-{manifest.preset}-seed{manifest.seed}"
    stem = safe_name(default if name is None else name)
    folder = runs / stem
    if resume and name is None:
        same = [run for run in catalogue(runs) if _same(run.manifest, manifest)]
        if same:
            return same[-1].folder
    if (folder / FILE).exists() and not resume:
        if name:
            raise UsageError(f"run {name!r} exists in {runs}; add --resume to go on with it, or give another --name")
        number = 2
        while (runs / f"{stem}-{number}").exists():
            number += 1
        folder = runs / f"{stem}-{number}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = [file.name for file in folder.iterdir() if not file.name.startswith(".") and file.name != LOCK]
    except OSError as error:
        raise EnvironmentFault(
            f"cannot make {folder}: {error.strerror or error}; give another folder with --runs"
        ) from None
    if others and FILE not in others:
        raise UsageError(f"{folder} holds other files and is not a run; give another --name")
    return folder


def _same(one: Manifest, other: Manifest) -> bool:
    return (one.task, one.config, one.seed) == (other.task, other.config, other.seed)


def _taken_up(folder: Path, wanted: Manifest, probes: Sequence[str] | None) -> Manifest:
    """The manifest of a run that goes on; it must be the same task, config and seed, and have a whole timeline."""
    manifest = load_manifest(folder)
    read_measurements(folder)
    if not _same(manifest, wanted):
        raise UsageError(
            f"run {folder.name!r} is {manifest.task} with seed {manifest.seed} and "
            f"{_difference(manifest.config, wanted.config)}; resume it with its own settings, or give another --name"
        )
    if probes and wanted.probes != manifest.probes:
        raise UsageError(f"run {folder.name!r} has the probes {','.join(manifest.probes)}; resume it without --probes")
    manifest.status, manifest.error = "running", ""
    manifest.process, manifest.host = wanted.process, wanted.host
    manifest.versions, manifest.device, manifest.threads = wanted.versions, wanted.device, wanted.threads
    return manifest


def _difference(had: dict[str, Any], wanted: dict[str, Any]) -> str:
    changed = [f"{key}={had.get(key)!r} (given {wanted.get(key)!r})" for key in had if had.get(key) != wanted.get(key)]
    return ", ".join(changed) or "the same config"


@contextmanager
def _writer(folder: Path) -> Iterator[None]:
    """Holds the run's lock, which ends with the process that holds it."""
    lock = FileLock(folder / LOCK, timeout=1, poll_interval=0.01)  # a reader holds it for a moment to see who is there
    try:
        lock.acquire()
    except Timeout:
        try:
            holder = load_manifest(folder)
            who = f"process {holder.process} on {holder.host}"
        except StagelensError:
            who = "another process"
        raise UsageError(f"run {folder.name!r} is being written by {who}; wait for it or give another --name") from None
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write in {folder}: {error.strerror or error}; give another folder with --runs"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _graceful() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the yielded event, so that the step in hand is finished; a second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _state(training: Training, recorder: Recorder) -> dict[str, Any]:
    return training.state() | {"recorder": recorder.state()}


def _close(store: Store, manifest: Manifest, folder: Path) -> None:
    """Closes the store and saves the manifest, whichever of the two still can."""
    try:
        store.close()
    finally:
        manifest.save(folder)


def _loss_of(measurement: Measurement) -> float:
    start = 0
    for column in measurement.layout:
        if column.name == "loss":
            return float(measurement.values[start])
        start += column.size
    return 0.0


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
