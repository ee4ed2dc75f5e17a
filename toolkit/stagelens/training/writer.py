"""The writer: it keeps a run on disk complete and correct while the run is made, whatever happens."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.base import EnvironmentFault, StagelensError, noting
from stagelens.experiments import (
    Experiment,
    Flow,
    Prediction,
    Score,
    config_defaults,
    integrate,
    score,
    too_late,
)
from stagelens.host import Host
from stagelens.recording import armed, contained
from stagelens.runs import (
    DETECTOR,
    FILE,
    Manifest,
    Run,
    Status,
    Store,
    held,
    taken_up,
)
from stagelens.timelines import Reading

if TYPE_CHECKING:
    import torch


Progress = Callable[[float, float, float | None], None]  # (step, steps, loss or None)
Page = Callable[[Run], Any]  # shows a finished run, such as `write_report`


class Writer:
    """The one writer of an open run: it keeps the manifest on disk up to date. `status` is what the run ends with."""

    def __init__(self, run: Run, host: Host) -> None:
        self.run, self.host = run, host
        self.folder, self.manifest = run.folder, run.manifest
        self.status: Status = "failed"
        self.error = ""

    @contextmanager
    def recording(self, experiment: Experiment | None = None) -> Iterator[Store]:
        """Yields the open store. Then compares theory with the measurements, and saves how the block ended."""
        started, before = time.monotonic(), self.manifest.seconds
        store = Store(self.folder)
        try:
            yield store
            self.run.refresh()
            if experiment is not None and (self.status != "failed" or isinstance(experiment, Flow)):
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
            if self.error:
                self.run.refresh()
            self.manifest.status, self.manifest.error = self.status, self.error
            self.manifest.seconds = before + time.monotonic() - started
            with suppress(EnvironmentFault) if self.error else nullcontext():  # the first error is the one to report
                _close(store, self.manifest, self.folder)

    def _compare_with_theory(self, experiment: Experiment) -> None:
        """Scores the predictions. One that raises becomes a problem of the plugin, and the others are scored."""
        timeline, problems, events = self.run.timeline, self.manifest.plugin_problems, self.manifest.events
        predictions: list[Prediction] = []
        with noting(problems, "predictions()", experiment, experiment.predictions):
            predictions = list(experiment.predicted)
        scores: list[Score] | None = None
        with noting({}, "all at once"):
            scores = score(predictions, timeline, events, self.run.detect)
        if scores is None:
            given, predictions = predictions, []
            for one in given:
                with noting(problems, f"prediction {one.name!r}", experiment, experiment.predictions):
                    score([one], timeline, events, self.run.detect)
                    predictions.append(one)
            scores = score(predictions, timeline, events, self.run.detect)
        self.manifest.predictions = [found.to_dict() for found in scores]
        missed = [one for one, found in zip(predictions, scores, strict=True) if found.measured is None]
        self.manifest.warnings = late_times(missed, self.manifest)

    def finish(self, page: Page) -> None:
        """Stores the stages in the manifest, then calls `page` with the run. What `page` raises becomes a problem."""
        self.manifest.stages, self.manifest.detector = self.run.found_stages(), DETECTOR
        self.manifest.save(self.folder)
        if self.manifest.status != "failed":
            with noting(self.run.noted, "report"):
                page(self.run)
            self.note(self.run.noted)

    def note(self, problems: Mapping[str, str]) -> None:
        """Writes problems into the manifest."""
        if problems:
            self.manifest.plugin_problems |= problems
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
        """Calls the observers after a measurement; the run that they get has it in its timeline."""
        self.run.refresh()
        tell(self.host, "stagelens_reading_recorded", run=self.run, step=step, readings=readings)


@contextmanager
def writing(
    folder: Path, manifest: Manifest, host: Host, probes: Sequence[str] | None = None, experiment: Any = None
) -> Iterator[Writer]:
    """Opens the run in `folder`, and yields its one writer. Observers are called at the start and at the end.

    A run that is in `folder` already is resumed, if it has the task, config, seed and `probes` of `manifest`.
    """
    with held(folder):
        if (folder / FILE).exists():
            defaults = config_defaults(experiment.config) if isinstance(experiment, Experiment) else {}
            manifest = taken_up(folder, manifest, probes, defaults)
        manifest.save(folder)
        run = Run(folder, host, manifest)
        if experiment is not None:
            run.experiment = experiment
        writer = Writer(run, host)
        tell(host, "stagelens_run_started", run=run)
        try:
            yield writer
        finally:
            problems: dict[str, str] = {}
            with noting(problems, "stagelens_run_finished"):
                tell(host, "stagelens_run_finished", run=run)
            writer.note(problems)


def late_times(predictions: Sequence[Prediction], manifest: Manifest) -> list[str]:
    """One warning if theory expects times after the end of the run; else none."""
    return too_late(predictions, manifest.steps, "time" if manifest.kind == "flow" else "steps")


def tell(host: Host, hook: str, **about: Any) -> None:
    """Calls the plugin hook `hook`. A plugin that raises or hangs stops the run, and the error names the plugin."""
    caller = getattr(host.manager.hook, hook)
    try:
        with armed(), contained():
            caller(**about)
    except Exception as error:
        ways = [error, error.__context__] if error.__context__ else [error]  # a limit's error has left the call behind
        codes = {frame.f_code for way in ways for frame, _ in traceback.walk_tb(way.__traceback__)}
        names = [impl.plugin_name for impl in caller.get_hookimpls() if impl.function.__code__ in codes]
        if names:
            error.add_note(f"(in {hook} of plugin {names[0]!r})")
        raise


def throttled(progress: Progress | None, steps: float) -> Callable[[float, torch.Tensor | None], None]:
    """Returns `progress`, called at most ten times a second: reading a loss waits for the device."""
    last = 0.0

    def report(step: float, loss: torch.Tensor | None) -> None:
        nonlocal last
        now = time.monotonic()
        if progress is not None and (now - last > 0.1 or step == steps):
            last = now
            progress(step, steps, None if loss is None else loss.mean().item())

    return report


@contextmanager
def graceful() -> Iterator[threading.Event]:
    """Yields an event that SIGINT and SIGTERM set, so that the current step ends first; a second one stops at once."""
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
    """Closes the store and saves the manifest, even if one of the two fails."""
    try:
        manifest.timeline = store.digest()
        store.close()
    finally:
        manifest.save(folder)
