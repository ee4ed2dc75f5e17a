"""A recorder for a training loop of the user's own, which can write a run directory as it measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from stagelens.base import UsageError, make_folder, plain, safe_name
from stagelens.host import make_host
from stagelens.recording import Recorder as MemoryRecorder
from stagelens.runs import (
    FILE,
    Manifest,
    Run,
    Status,
    Store,
    new_manifest,
    read_measurements,
    runs_folder,
    this_process,
    versions,
)
from stagelens.timelines import Measurement, Reading
from stagelens.training.writer import Page, Writer, writing

if TYPE_CHECKING:
    from stagelens.host import Host

KIND = "loop"


class Recorder(MemoryRecorder):
    """Measures `model` with `probes` on one fixed `batch`, in one forward pass for all of them.

        recorder = sl.Recorder(model, batch=tokens)
        ...                                    # in the training loop:
        recorder.measure(step, loss=loss)
        ...
        recorder.timeline["attention_sparsity/effective_keys"]

    With `run` it also writes a run directory, which `stagelens show`, `stages`, `compare` and `report` can use:

        with sl.Recorder(model, batch=tokens, run="my-run") as recorder:
            ...                                # the training loop
        sl.load("my-run").stages()

    Args:
        model: Any PyTorch model; one without TransformerLens' hook points is watched (`sl.watch`).
        probes: Names, classes or objects. Default: all default probes that apply.
        batch: What the model is called on. It is copied, so a loop may change its own tensors in place.
        run: The name of the run to write. Every measurement is one transaction, so a killed process loses none, and the
            run can be read meanwhile. `finish()`, or the end of a `with` block, adds stages, figures and the report.
        runs: The runs directory. Default: `$STAGELENS_RUNS`, else `runs`.
        config: What to store with the run: a mapping, dataclass or namespace of settings.
        resume: Continue the run of this name, if there is one. A step that is measured again is replaced.
        stage_names: Names of the transitions, in order.
        options: `loss` (a function of model and batch), `forward` (calls the model on a batch and returns logits),
            `groups`, `directions`, `references`, `task`, `strict` (also stop probes that hang or leak memory).

    Parameters, gradients, hooks, train/eval mode and all random states are left as found. A probe that does not
    apply is in `skipped` with its reason, and so is a single reading (`probe/reading`) that a probe omits. A probe that
    fails is in `problems`, and the others are measured without it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        probes: Sequence[Any] | None = None,
        batch: Any = None,
        *,
        run: str | None = None,
        runs: str | Path | None = None,
        config: Any = None,
        resume: bool = False,
        stage_names: Sequence[str] = (),
        host: Host | None = None,
        **options: Any,
    ) -> None:
        if run is None and (resume or config is not None or stage_names):
            raise UsageError("config, resume and stage_names belong to a run; give its name with run=")
        host = host or make_host()
        super().__init__(model, probes, batch, host=host, **options)
        self._further = self._sink  # of the user
        self._opened: _Opened | None = None
        if run is not None:
            folder = run_folder(runs_folder(runs), run, resume)
            manifest = self._manifest(config, stage_names)
            if (folder / FILE).exists():
                self._continue(read_measurements(folder))
            self._opened = _Opened(folder, manifest, host)
            self._sink = self._write

    @property
    def run(self) -> Run | None:
        """The run that is written; None without `run=`, and after the end."""
        return self._opened.writer.run if self._opened is not None else None

    def finish(self, status: Status = "finished", error: str = "") -> Run | None:
        """Ends the run: stores its stages, draws figures and writes the report. Returns the run, or None."""
        opened, self._opened, self._sink = self._opened, None, self._further
        return None if opened is None else opened.end(status, error, self._page())

    def _page(self) -> Page | None:
        """Returns what shows the finished run."""
        return None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, KeyboardInterrupt):
            self.finish("interrupted")
        else:
            self.finish("failed", " ".join(f"{type(error).__name__}: {error}".split()))

    def _write(self, measurement: Measurement, readings: Sequence[Reading]) -> None:
        assert self._opened is not None
        self._opened.add(measurement, readings, self.skipped, self.problems)
        if self._further is not None:
            self._further(measurement, readings)

    def _continue(self, measurements: Sequence[Measurement]) -> None:
        """Takes over what a run measured before."""
        carried = {name: probe.state for name, probe in self.probes.items()}
        state = {"probes": carried, "skipped": self.skipped, "problems": self.problems}
        self.load_state(state, measurements)

    def _manifest(self, config: Any, stage_names: Sequence[str]) -> Manifest:
        device = next((p.device for p in self.context.model.parameters()), torch.device("cpu"))
        return new_manifest(
            task=KIND,
            plugin="",
            preset="",
            config=settings_of(config),
            seed=0,
            kind=KIND,
            steps=0,
            stage_names=[str(name) for name in stage_names],
            device=str(device),
            threads=torch.get_num_threads(),
            probes=list(self.probes),
            vectorized=0,
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            versions=versions(),
            **this_process(),
        )


class _Opened:
    """A run directory that is being written."""

    def __init__(self, folder: Path, manifest: Manifest, host: Host) -> None:
        self._locked = ExitStack()
        self.writer: Writer = self._locked.enter_context(writing(folder, manifest, host))
        self._recording: AbstractContextManager[Store] = self.writer.recording()
        self.store = self._recording.__enter__()
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
        names = [column.name for column in measurement.layout]
        if manifest.metric not in names:
            manifest.metric = "loss" if "loss" in names else next(iter(names), "loss")
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
    """Returns the directory of the run `name`, which may exist only with `resume`."""
    folder = runs / safe_name(name)
    if (folder / FILE).exists() and not resume:
        raise UsageError(f"run {name!r} exists in {runs}; give resume=True to continue it, or another name")
    make_folder(folder, "give another directory with runs=")
    if any(not path.name.startswith(".") for path in folder.iterdir()) and not (folder / FILE).exists():
        raise UsageError(f"{folder} holds other files and is not a run; give another name")
    return folder


def settings_of(config: Any) -> dict[str, Any]:
    """Returns settings as JSON can hold them: of a mapping, a dataclass, a pydantic model or a namespace."""
    if config is None:
        return {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    elif hasattr(config, "model_dump"):
        config = config.model_dump(mode="json")
    elif hasattr(config, "to_dict"):
        config = config.to_dict()
    elif not isinstance(config, Mapping) and hasattr(config, "__dict__"):
        config = vars(config)
    if not isinstance(config, Mapping):
        raise UsageError(f"config is a {type(config).__name__}; expected a mapping, a dataclass or a namespace")
    return {str(key): _json(value) for key, value in config.items()}


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_json(one) for one in value]
    found = plain(value)
    return found if isinstance(found, str | int | float | bool | None) else str(found)
