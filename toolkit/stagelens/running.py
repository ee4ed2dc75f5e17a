"""Running: a task or flow from a name to a finished run on disk."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.config import as_settings, make_config
from stagelens.defects import defect_of
from stagelens.errors import EnvironmentFault, StagelensError, UsageError
from stagelens.experiment import Experiment
from stagelens.flow import Flow, integrate
from stagelens.holding import held
from stagelens.host import Host, make_host
from stagelens.limits import contained
from stagelens.manifest import DETECTOR, FILE, Manifest, load_manifest, this_process, versions
from stagelens.placing import Notify, choose_folder, replacing, taken_up
from stagelens.prediction import Prediction, Score, score, too_late
from stagelens.problems import noting
from stagelens.reading import Reading
from stagelens.runs import Run, runs_folder
from stagelens.store import Store, read_measurements
from stagelens.task import Task
from stagelens.timeline import Timeline

if TYPE_CHECKING:
    import torch

    from stagelens.training import Training

Progress = Callable[[float, float, float | None], None]  # (step, steps, loss or None)


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
    compile: bool = False,
    replace: bool = False,
    notify: Notify | None = None,
) -> Run:
    """Trains or integrates `task`, records its probes, and writes figures and a report.

        run = sl.run("markov", seed=1, settings={"steps": 500})

    `settings` are `key=value` strings or a mapping. With `resume`, a run of the same name (or, without a name, of the
    same task, config and seed) goes on where it stopped; where there is none, a new one starts. With `compile` the
    training step goes through `torch.compile`, which pays off in long runs; probes see the model as ever.

    A second run of a name is called `NAME-2`. With `replace` it takes the place of the first, which is kept as
    `NAME-replaced` until the new run is finished. `notify` is called before the training with one
    line about either, and with each warning, which `run.manifest.warnings` keeps.

    A plugin whose `figures()`, `predictions()` or `stage_names()` raises does not stop the run: see `run.problems`.
    """
    host = host or make_host()
    plan = plan_run(task, preset=preset, settings=settings, seed=seed, device=device, probes=probes, host=host)
    training = plan.training()
    if compile:
        if training is None:
            raise UsageError(f"{plan.experiment.id!r} is a flow, which has no training step; run it without compiling")
        training.compile()
    folder = plan.folder(runs, name, resume, replace, notify)  # all that the user can have mistaken is told by now
    plan.warn(notify)
    with replacing(folder, replace, notify), plan.writing(folder) as writer:
        with writer.recording(plan.experiment) as store:
            if training is None:
                writer.integrate(plan.experiment, store, progress)
            else:
                from stagelens.tracks import Track, train

                train(Track(training, writer, store), progress)
                writer.manifest.compile_seconds = training.compile_seconds
        if report:
            writer.keep_stages()
            if writer.manifest.status != "failed":
                writer.report()
    return writer.run


@dataclass(frozen=True)
class Plan:
    """A run before it starts: everything about it is known and checked, and nothing is on disk."""

    experiment: Experiment
    manifest: Manifest
    probes: Sequence[str] | None  # as given
    host: Host

    def training(self) -> Training | None:
        """The training of a task; None for a flow."""
        if not isinstance(self.experiment, Task):
            return None
        from stagelens.training import Training

        return Training(self.experiment, self.manifest.device)

    def folder(
        self,
        runs: str | Path | None,
        name: str | None,
        resume: bool,
        replace: bool = False,
        notify: Notify | None = None,
    ) -> Path:
        folder = choose_folder(runs_folder(runs), self.manifest, name, resume, replace, notify)
        if resume and (folder / FILE).exists() and (defect := defect_of(folder, load_manifest(folder))):
            raise UsageError(f"run {folder.name!r} cannot be resumed: {defect}; repeat it without --resume")
        return folder

    def warn(self, notify: Notify | None) -> None:
        """Calls `notify` with each warning that is known before the training."""
        if notify is not None:
            for warning in self.manifest.warnings:
                notify(warning)

    @contextmanager
    def writing(self, folder: Path) -> Iterator[Writer]:
        """The one writer of the run in `folder`, while it lives; observers hear of its start and end."""
        with held(folder):
            manifest = self.manifest
            if (folder / FILE).exists():
                manifest = taken_up(folder, manifest, self.probes)
            manifest.save(folder)
            writer = Writer(Run(folder, self.host), manifest, self.host)
            tell(self.host, "stagelens_run_started", run=writer.run)
            try:
                yield writer
            finally:
                writer.run = Run(folder, self.host)
                problems: dict[str, str] = {}
                with noting(problems, "stagelens_run_finished"):
                    tell(self.host, "stagelens_run_finished", run=writer.run)
                writer.note(problems)
                writer.run = Run(folder, self.host)


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
    """What `run` would do; the user's mistakes are told here."""
    plugin, kind = resolve_task(task, host)
    experiment = kind(make_config(kind.Config, kind.presets, preset, as_settings(settings)), seed)
    manifest = _manifest(experiment, plugin, preset, device)
    manifest.probes = probe_names(experiment, probes, host)
    with noting(manifest.plugin_problems, "predictions()", experiment, experiment.predictions):
        time = "time" if manifest.kind == "flow" else "steps"
        manifest.warnings = too_late(experiment.predicted, manifest.steps, time)
    return Plan(experiment, manifest, probes, host)


class Writer:
    """The one writer of a run: keeps its manifest true, whatever happens. `status` is what the run ends with."""

    def __init__(self, run: Run, manifest: Manifest, host: Host) -> None:
        self.run, self.manifest, self.host = run, manifest, host
        self.folder = run.folder
        self.status, self.error = "failed", ""

    @contextmanager
    def recording(self, experiment: Experiment) -> Iterator[Store]:
        """The open store. At the end, theory is compared with it; what broke the block off is written down."""
        started, before = time.monotonic(), self.manifest.seconds
        store = Store(self.folder)
        try:
            yield store
            if self.status != "failed" or isinstance(experiment, Flow):
                self._compare_with_theory(experiment)
        except KeyboardInterrupt:
            self.status = "interrupted"
        except StagelensError as fault:
            self.status = "interrupted" if isinstance(fault, EnvironmentFault) else "failed"
            self.error = str(fault)
            raise
        except BaseException as defect:
            notes = getattr(defect, "__notes__", ())
            self.status, self.error = "failed", " ".join([f"{type(defect).__name__}: {defect}", *notes])
            raise
        finally:
            self.manifest.status, self.manifest.error = self.status, self.error
            self.manifest.seconds = before + time.monotonic() - started
            with suppress(EnvironmentFault) if self.error else nullcontext():  # what went wrong first is what is told
                _close(store, self.manifest, self.folder)

    def _compare_with_theory(self, experiment: Experiment) -> None:
        """Scores the predictions; one that raises is a problem of the plugin, and the others are scored."""
        timeline, problems = Timeline(read_measurements(self.folder)), self.manifest.plugin_problems
        predictions: list[Prediction] = []
        with noting(problems, "predictions()", experiment, experiment.predictions):
            predictions = list(experiment.predicted)
        scores: list[Score] | None = None
        with noting({}, "all at once"):
            scores = score(predictions, timeline, self.manifest.events)
        if scores is None:
            sound = []
            for one in predictions:
                with noting(problems, f"prediction {one.name!r}", experiment, experiment.predictions):
                    score([one], timeline, self.manifest.events)
                    sound.append(one)
            scores = score(sound, timeline, self.manifest.events)
        self.manifest.predictions = [found.to_dict() for found in scores]

    def report(self) -> None:
        """Writes figures and report. What a plugin's code or the report raises is a problem of a run that is done."""
        from stagelens.report import write_report

        run = Run(self.folder, self.host)
        with noting(run.noted, "report"):
            write_report(run)
        self.note(run.noted)

    def note(self, problems: Mapping[str, str]) -> None:
        """Writes problems into the manifest."""
        if problems:
            self.manifest.plugin_problems |= problems
            self.manifest.save(self.folder)

    def keep_stages(self) -> None:
        """Writes the stages into the manifest, for whoever looks at the run without scipy."""
        self.manifest.stages, self.manifest.detector = Run(self.folder, self.host).found_stages(), DETECTOR
        self.manifest.save(self.folder)

    def integrate(self, flow: Any, store: Store, progress: Progress | None) -> None:
        report = throttled(progress, self.manifest.steps)
        trajectory = integrate(flow, lambda t: report(t, None))
        store.add(*trajectory.measurements)
        for measurement, readings in zip(trajectory.measurements, trajectory.readings, strict=True):
            self.manifest.step = measurement.step
            self.tell(measurement.step, readings)
        self.manifest.events = trajectory.events
        self.error = trajectory.error
        self.status = "failed" if trajectory.error else "finished"

    def tell(self, step: float, readings: Sequence[Reading]) -> None:
        tell(self.host, "stagelens_reading_recorded", run=self.run, step=step, readings=readings)


def tell(host: Host, hook: str, **about: Any) -> None:
    """Tells the plugins. One that raises or hangs stops the run, with a note of its name; what is on disk stays."""
    caller = getattr(host.manager.hook, hook)
    try:
        with contained():
            caller(**about)
    except Exception as error:
        ways = [error, error.__context__] if error.__context__ else [error]  # a limit's error has left the call behind
        codes = {frame.f_code for way in ways for frame, _ in traceback.walk_tb(way.__traceback__)}
        names = [impl.plugin_name for impl in caller.get_hookimpls() if impl.function.__code__ in codes]
        if names:
            error.add_note(f"(in {hook} of plugin {names[0]!r})")
        raise


def throttled(progress: Progress | None, steps: float) -> Callable[[float, torch.Tensor | None], None]:
    """The progress callback, at most ten times a second: reading a loss waits for the device."""
    last = 0.0

    def report(step: float, loss: torch.Tensor | None) -> None:
        nonlocal last
        now = time.monotonic()
        if progress is not None and (now - last > 0.1 or step == steps):
            last = now
            progress(step, steps, None if loss is None else loss.mean().item())

    return report


def resolve_task(task: str | type[Experiment], host: Host) -> tuple[str, type[Experiment]]:
    """The plugin and class that `task` means."""
    if isinstance(task, str):
        reference = host.task(task)
        return host.tasks.owners[reference.id], reference.load()
    if isinstance(task, type) and issubclass(task, Experiment):
        if task.id not in dict(host.tasks):
            host.load_class(task)
        return host.tasks.owners[task.id], task
    raise UsageError(f"task {task!r}: expected a task's id or a Task class")


def probe_names(experiment: Experiment, given: Sequence[str] | None, host: Host) -> list[str]:
    """The probes of a run: those given, else the task's own, else all that run by default. All of them exist."""
    if not isinstance(experiment, Task):
        return []
    names = given or experiment.probes or [name for name, ref in host.probes if ref.default]
    return [host.probes[name].name for name in names]


def _manifest(experiment: Experiment, plugin: str, preset: str, device: str) -> Manifest:
    config = experiment.config
    flow = isinstance(experiment, Flow)
    where, threads = ("cpu", 1) if flow else _hardware(device)
    phases = [] if flow else [{"phase": p.name, "steps": p.steps} for p in experiment.phases()]  # type: ignore[attr-defined]
    problems: dict[str, str] = {}
    stage_names: list[str] = []
    with noting(problems, "stage_names()", experiment, experiment.stage_names):
        stage_names = [str(name) for name in experiment.stage_names()]
    return Manifest(
        task=experiment.id,
        plugin=plugin,
        preset=preset,
        config=config.model_dump(mode="json"),
        seed=experiment.seed,
        kind="flow" if flow else "training",
        steps=config.time if flow else config.steps,
        metric=experiment.metric,
        stage_names=stage_names,
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
    """The device that a name means, and the threads that work on it."""
    import torch

    from stagelens.device import resolve_device

    return str(resolve_device(device)), torch.get_num_threads()


def _settings(experiment: Experiment, preset: str) -> dict[str, Any]:
    """The keys whose values are not the preset's."""
    plain = make_config(experiment.Config, experiment.presets, preset, []).model_dump(mode="json")
    return {key: value for key, value in experiment.config.model_dump(mode="json").items() if plain[key] != value}


@contextmanager
def graceful() -> Iterator[threading.Event]:
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


def _close(store: Store, manifest: Manifest, folder: Path) -> None:
    """Closes the store and saves the manifest, whichever of the two still can."""
    try:
        manifest.timeline = store.digest()
        store.close()
    finally:
        manifest.save(folder)
