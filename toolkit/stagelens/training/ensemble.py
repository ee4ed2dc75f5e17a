"""Ensembles: the seeds of one config trained together.

Every member stays an ordinary training: it has its own model (whose parameters are views of the stack), data, readings,
checkpoints and run directory. Only the step is shared: one vectorized loss, one backward pass, one elementwise update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagelens.base import UsageError, noting, untouched_rng
from stagelens.experiments import Experiment, Training
from stagelens.host import Host, make_host
from stagelens.runs import FILE, VECTORIZED, Notify, Run, checkpoint, replacing
from stagelens.training.loop import Track, carry
from stagelens.training.plan import Plan, plan_run
from stagelens.training.running import run
from stagelens.training.stackable import why_not
from stagelens.training.stacked_recorder import StackedRecorder
from stagelens.training.stacking import Stacked
from stagelens.training.writer import Progress, graceful


@dataclass(frozen=True)
class Ensemble(Sequence[Run]):
    """The runs of an ensemble, one for each seed. If they were run one by one, `alone` gives the reason."""

    runs: tuple[Run, ...]
    alone: str = ""
    page: Path | None = None  # that compares them
    noted: Mapping[str, str] = field(default_factory=dict)  # why there is no page, if it could not be made

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: Any) -> Any:
        return self.runs[index]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)


def run_ensemble(
    task: str | type[Experiment],
    *,
    seeds: int | Sequence[int] = 6,
    preset: str = "quick",
    settings: Sequence[str] | Mapping[str, Any] = (),
    device: str = "auto",
    runs: str | Path | None = None,
    name: str | None = None,
    names: Sequence[str] | None = None,
    resume: bool = False,
    probes: Sequence[str] | None = None,
    host: Host | None = None,
    progress: Progress | None = None,
    replace: bool = False,
    notify: Notify | None = None,
    ensemble: bool = True,
    page: Callable[[Sequence[Run]], Path] | None = None,
) -> Ensemble:
    """Runs `task` with several seeds, vectorized if possible; `sl.run_ensemble` explains the arguments.

    `page` writes one HTML page that compares the runs, and returns its path.
    """
    host = host or make_host()
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise UsageError(f"seeds {seeds!r}: expected at least one, each once")
    shared: dict[str, Any] = {"preset": preset, "settings": settings, "device": device, "probes": probes, "host": host}
    plans = [plan_run(task, seed=seed, **shared) for seed in numbers]
    called: Sequence[str | None] = names or [f"{name}-seed{seed}" if name else None for seed in numbers]
    trainings = [plan.training() for plan in plans]
    alone = "" if len(plans) > 1 else "there is one seed"
    alone = alone if ensemble else "that was asked for"
    if not alone:
        alone = "a flow has no model to stack" if trainings[0] is None else why_not([t for t in trainings if t])
    if alone:
        shared |= {"runs": runs, "resume": resume, "progress": progress}
        shared |= {"replace": replace, "notify": notify}
        done = [run(task, seed=seed, name=one, **shared) for seed, one in zip(numbers, called, strict=True)]
    else:
        folders = [plan.folder(runs, one, resume, replace, notify) for plan, one in zip(plans, called, strict=True)]
        with ExitStack() as replaced:
            for folder in folders:
                replaced.enter_context(replacing(folder, replace, notify))
            if notify is not None:
                for warning in dict.fromkeys(line for plan in plans for line in plan.manifest.warnings):
                    notify(warning)
            done = _train_together(plans, [t for t in trainings if t], folders, host, progress)
    written, noted = None, dict[str, str]()
    whole = [one for one in done if one.manifest.status != "failed" and len(one.timeline.steps)]
    if page is not None and whole:
        with noting(noted, "report"):
            written = page(whole)
    return Ensemble(tuple(done), alone, written, noted)


def _train_together(
    plans: Sequence[Plan], trainings: Sequence[Training], folders: Sequence[Path], host: Host, progress: Progress | None
) -> list[Run]:
    """Trains the unfinished runs together, from the newest step that all of them have. Returns all runs."""
    done = {folder: Run(folder, host) for folder in folders if (folder / FILE).exists()}
    planned = zip(plans, trainings, folders, strict=True)
    left = [(plan, training, folder) for plan, training, folder in planned if not _finished(done.get(folder))]
    with ExitStack() as opened:
        writers = [opened.enter_context(plan.writing(folder)) for plan, _, folder in left]
        for writer in writers:
            writer.manifest.vectorized = VECTORIZED
            writer.manifest.save(writer.folder)
        with ExitStack() as recording:
            stores = [
                recording.enter_context(writer.recording(plan.experiment))
                for writer, (plan, _, _) in zip(writers, left, strict=True)
            ]
            tracks = [
                Track(training, writer, store)
                for (_, training, _), writer, store in zip(left, writers, stores, strict=True)
            ]
            if tracks:
                _carry_stacked(tracks, progress)
    done |= {writer.folder: writer.run for writer in writers}
    return [done[folder] for folder in folders]


def _carry_stacked(tracks: Sequence[Track], progress: Progress | None) -> None:
    with untouched_rng(), graceful() as stop:
        common = _common_step(tracks)
        starts = {track.restore(common) for track in tracks}
        assert len(starts) == 1, f"the seeds start at different steps: {sorted(starts)}"
        (start,) = starts
        stacked = Stacked([track.training for track in tracks])
        recorder = StackedRecorder(stacked, [track.recorder for track in tracks])

        def look(step: int, due: Sequence[Track]) -> None:
            observed = recorder.observe(step, [tracks.index(track) for track in due])
            for track, seen in zip(due, observed or [], strict=False):
                track.observed = seen

        try:
            carry(tracks, stacked, start, stop, progress, stacked.settle, look)
        except KeyboardInterrupt:  # the second one: as a run's own writer takes it
            for track in tracks:
                track.writer.status = "interrupted"


def _common_step(tracks: Sequence[Track]) -> int:
    """Returns the newest step whose checkpoint every track can load; -1 if there is none."""
    saved = set.intersection(*(set(checkpoint.steps_in(track.writer.folder)) for track in tracks))
    return next((step for step in sorted(saved, reverse=True) if all(t.can_restore(step) for t in tracks)), -1)


def _finished(run: Run | None) -> bool:
    return run is not None and run.status == "finished"
