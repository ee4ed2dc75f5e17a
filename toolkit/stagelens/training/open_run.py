"""A run directory that is written one measurement at a time, without a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stagelens.base import UsageError, make_folder, safe_name
from stagelens.experiments import OwnLoop, Prediction
from stagelens.host import make_host
from stagelens.runs import (
    FILE,
    Manifest,
    Run,
    Status,
    Store,
    new_manifest,
    remove_unmeasured,
    runs_folder,
    this_process,
    versions,
)
from stagelens.timelines import Measurement, Reading
from stagelens.training.settings import settings_of
from stagelens.training.writer import Page, Writer, writing

if TYPE_CHECKING:
    from stagelens.host import Host
    from stagelens.timelines import Timeline

LOSSES = ("loss", "train_loss")  # series that the stages of a run are found in, if it has them


class OpenRun:
    """A run directory that is being written."""

    def __init__(
        self, folder: Path, manifest: Manifest, host: Host, predictions: Sequence[Prediction] | None = None
    ) -> None:
        """Opens the run, or continues it. Without `predictions` those of the continued run stay."""
        own = None if predictions is None else OwnLoop(predictions)
        self._locked = ExitStack()
        self.writer: Writer = self._locked.enter_context(writing(folder, manifest, host, experiment=own))
        self._recording: AbstractContextManager[Store] = self.writer.recording(own or self.writer.run.experiment)
        self.store = self._recording.__enter__()
        self.series: dict[str, None] = {}  # the names of all series, in order
        self._observed = bool(host.manager.hook.stagelens_reading_recorded.get_hookimpls())

    def add(
        self,
        measurement: Measurement,
        readings: Sequence[Reading],
        skipped: Mapping[str, str],
        problems: Mapping[str, str],
    ) -> None:
        """Writes one measurement, and the manifest if what it says about probes changed."""
        manifest = self.writer.manifest
        self.series |= {column.name: None for column in measurement.layout}
        manifest.metric = next((name for name in (*LOSSES, *self.series) if name in self.series), manifest.metric)
        self.store.add(measurement)
        manifest.step = measurement.step
        manifest.steps = max(manifest.steps, measurement.step)
        if (dict(skipped), dict(problems)) != (manifest.skipped, manifest.problems):
            manifest.skipped, manifest.problems = dict(skipped), dict(problems)
            manifest.save(self.writer.folder)
        if self._observed:
            self.writer.tell(measurement.step, readings)

    def end(self, status: Status, error: str, page: Page | None) -> Run:
        """Closes the run, and releases its lock."""
        with self._locked:
            self.writer.status, self.writer.error = status, error
            self._recording.__exit__(None, None, None)
            if page is not None and self.writer.manifest.timeline and len(self.writer.run.timeline.steps):
                self.writer.finish(page)
        return self.writer.run


def run_folder(runs: Path, name: str, resume: bool) -> Path:
    """Returns the directory of the run `name`, which may exist only with `resume`.

    A loop that failed before its first measurement left a run without measurements. A new run replaces it.
    """
    folder = runs / safe_name(name)
    if (folder / FILE).exists() and not resume:
        remove_unmeasured(folder, OwnLoop.id)
    if (folder / FILE).exists() and not resume:
        raise UsageError(f"run {name!r} exists in {runs}; give resume=True to continue it, or another name")
    make_folder(folder, "give another directory with runs=")
    if any(not path.name.startswith(".") for path in folder.iterdir()) and not (folder / FILE).exists():
        raise UsageError(f"{folder} holds other files and is not a run; give another name")
    return folder


def loop_manifest(config: Any, stage_names: Sequence[str], probes: Sequence[str], device: str = "cpu") -> Manifest:
    """Returns the manifest of a run that no task made. An integer `seed` of `config` becomes the run's seed."""
    settings = settings_of(config)
    seeded = type(settings.get("seed")) is int
    seed = settings.pop("seed") if seeded else 0
    return new_manifest(
        task=OwnLoop.id,
        plugin="",
        preset="",
        config=settings,
        seed=seed,
        seeded=seeded,
        kind=OwnLoop.id,
        steps=0,
        stage_names=[str(name) for name in stage_names],
        device=device,
        threads=torch.get_num_threads(),
        probes=list(probes),
        vectorized=0,
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        versions=versions(),
        **this_process(),
    )


def save_timeline(
    timeline: Timeline,
    name: str,
    *,
    runs: str | Path | None = None,
    config: Any = None,
    stage_names: Sequence[str] = (),
    predictions: Sequence[Prediction] = (),
    page: Page | None = None,
) -> Run:
    """Writes a timeline as the run `name`, with stages, and calls `page` with it. Returns the run."""
    if not len(timeline.steps):
        raise UsageError("the timeline has no measurements; measure before you save it")
    check_theory(stage_names, predictions)
    probes = dict.fromkeys(series.partition("/")[0] for series in timeline if "/" in series)
    manifest = loop_manifest(config, stage_names, list(probes))
    opened = OpenRun(run_folder(runs_folder(runs), name, resume=False), manifest, make_host(), predictions)
    try:
        for measurement in timeline.measurements:
            opened.add(measurement, readings_of(measurement), {}, {})
    except BaseException as error:
        opened.end("failed", " ".join(f"{type(error).__name__}: {error}".split()), None)
        raise
    return opened.end("finished", "", page)


def readings_of(measurement: Measurement) -> list[Reading]:
    """Returns the readings that were packed into a measurement."""
    found, start = [], 0
    for column in measurement.layout:
        values = measurement.values[start : start + column.size].reshape(column.shape)
        found.append(Reading(column.name, values, column.dims, dict(column.coords), column.labels))
        start += column.size
    return found


def check_theory(stage_names: Any, predictions: Any) -> None:
    """Raises an error if stage names are not a list of texts, or predictions not a list of `Prediction`s."""
    for name, given, kind in (("stage_names", stage_names, str), ("predictions", predictions, Prediction)):
        listed = isinstance(given, Sequence) and not isinstance(given, str)
        wrong = next((one for one in given if not isinstance(one, kind)), None) if listed else given
        if wrong is not None:
            raise UsageError(f"{name} has a {type(wrong).__name__}; expected a list of {kind.__name__}s")
