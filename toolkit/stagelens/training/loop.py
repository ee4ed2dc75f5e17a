"""The loop: trains one recorded training (a `Track`), or several vectorized ones, to the end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stagelens.base import EnvironmentFault, untouched_rng
from stagelens.experiments import CHECKPOINTS, SMALLER, Diverged, Trainer, Training, eval_batch
from stagelens.recording import Observed, Recorder
from stagelens.runs import Store, checkpoint, read_measurements
from stagelens.timelines import Measurement, Reading
from stagelens.training.writer import Progress, Writer, graceful, throttled

CHECK_EVERY = 50  # steps between two checks that the loss is finite


class Track:
    """One recorded training. It is measured and saved at the steps of its schedule."""

    def __init__(self, training: Training, writer: Writer, store: Store) -> None:
        self.training, self.writer, self.store = training, writer, store
        with untouched_rng():
            self.recorder = Recorder(
                training.model,
                writer.manifest.probes,
                eval_batch(training.task, training.device),
                task=training.task,
                host=writer.host,
                sink=self._keep,
                strict=True,
            )
        self.steps = int(writer.manifest.steps)
        self.schedule = training.task.schedule()
        self.losses: list[tuple[float, float]] = []
        self.to_measure: int | None = 0
        self.observed: Observed | None = None  # set by the vectorized recorder, at the step that is due
        self.to_save = {*CHECKPOINTS.planned(self.steps)}

    def can_restore(self, step: int) -> bool:
        """Returns True if the checkpoint of `step` can be read."""
        try:
            path = checkpoint.path_of(self.writer.folder, step)
            checkpoint.load(path, self.training.task.id, self.writer.manifest.content)
        except EnvironmentFault:
            return False
        return True

    def restore(self, most: int | None = None) -> int:
        """Restores the newest checkpoint (of at most step `most`) and the measurements up to it. Returns its step."""
        found = checkpoint.latest(self.writer.folder, self.training.task.id, most, self.writer.manifest.content)
        if found is None:
            self.store.forget_after(-1)
            return 0
        step, state = found
        measurements = [m for m in read_measurements(self.writer.folder) if m.step <= step]
        if not measurements:
            raise EnvironmentFault(
                f"{self.store.path} has lost what was measured up to step {step}; restore it from a copy"
            )
        with checkpoint.fitting(checkpoint.path_of(self.writer.folder, step)):
            self.training.load_state(state)
            self.recorder.load_state(state["recorder"], measurements)
        self.store.forget_after(step)
        self.losses = [(m.step, _loss_of(m)) for m in measurements]
        self.to_measure = self.schedule.next_after(int(self.losses[-1][0]), self.steps, self.losses)
        if self.to_measure is not None and self.to_measure <= step:
            raise EnvironmentFault(
                f"{self.store.path} has lost what was measured from step {self.to_measure} to {step}; "
                "restore it from a copy"
            )
        self.to_save -= {step}
        return step

    def due(self, step: int) -> bool:
        return step == self.to_measure or step in self.to_save

    def visit(self, step: int, save: bool) -> None:
        """Measures and saves what is due at `step`. `save` forces a checkpoint."""
        if step == self.to_measure:
            observed, self.observed = self.observed or self.recorder.observe(step), None
            readings = self.recorder.record(step, observed, self.training.scalars())
            self.losses.append((step, _loss_of(self.recorder.measurements[-1])))
            self.to_measure = self.schedule.next_after(step, self.steps, self.losses)
            self._measured(step, readings)
        if step in self.to_save or save:
            self.store.sync()
            state = self.training.state() | {"recorder": self.recorder.state()}
            checkpoint.save(self.writer.folder, step, self.training.task.id, state, self.writer.manifest.content)

    def _keep(self, measurement: Measurement, _: Sequence[Reading]) -> None:
        if not math.isfinite(_loss_of(measurement)):
            raise Diverged(f"the evaluation loss became nan or infinite at step {measurement.step}; {SMALLER}")
        self.store.add(measurement)

    def _measured(self, step: int, readings: Sequence[Reading]) -> None:
        recorder, manifest = self.recorder, self.writer.manifest
        if (recorder.skipped, recorder.problems) != (manifest.skipped, manifest.problems):
            manifest.skipped, manifest.problems = dict(recorder.skipped), dict(recorder.problems)
            manifest.save(self.writer.folder)
        manifest.step = step
        self.writer.tell(step, readings)


def train(track: Track, progress: Progress | None = None) -> None:
    """Trains from the newest checkpoint, or from the start, to the end."""
    with untouched_rng(), graceful() as stop:
        carry([track], track.training, track.restore(), stop, progress)


def carry(
    tracks: Sequence[Track],
    trainer: Trainer,
    start: int,
    stop: threading.Event,
    progress: Progress | None = None,
    settle: Callable[[bool], None] = lambda saving: None,  # noqa: ARG005
    look: Callable[[int, Sequence[Track]], None] = lambda step, due: None,  # noqa: ARG005
) -> None:
    """Trains the tracks from step `start` to the end, or until `stop` is set. Stores in each writer how it ended.

    A track whose loss diverges ends there, and the others continue. Before tracks are measured, `settle(saving)` copies
    what `trainer` stores elsewhere, such as stacked weights, back into them. Then `look(step, due)` may observe for the
    tracks that are measured at this step.
    """
    steps = tracks[0].steps
    report = throttled(progress, steps)
    alive = list(tracks)
    for step in range(start, steps + 1):
        stopping = stop.is_set()
        looking = [track for track in alive if stopping or track.due(step)]
        if looking or (step % CHECK_EVERY == 1 and step > start):
            settle(stopping or any(step in track.to_save for track in looking))
            for track in list(alive):
                with _ends_alone(track, alive):
                    track.training.check()
            looking = [track for track in looking if track in alive]
            trainer.enter_phase(step)  # a measurement at `step` sees the parameters that step `step` trains
            look(step, [track for track in looking if track.to_measure == step])
            for track in looking:
                with _ends_alone(track, alive):
                    track.visit(step, save=stopping)
        if step == steps or stopping or not alive:
            break
        trainer.advance(step)
        report(step + 1, trainer.loss)
    for track in alive:
        track.writer.status = "finished" if step == steps else "interrupted"


@contextmanager
def _ends_alone(track: Track, alive: list[Track]) -> Iterator[None]:
    """If the loss of the track diverges in the block, stops the track and stores the reason in its writer."""
    try:
        yield
    except Diverged as divergence:
        track.writer.error = str(divergence)
        alive.remove(track)


def _loss_of(measurement: Measurement) -> float:
    start = 0
    for column in measurement.layout:
        if column.name == "loss":
            return float(measurement.values[start])
        start += column.size
    return 0.0
