"""A recorder for a training loop of the user's own, which can write a run directory as it measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from stagelens.base import UsageError
from stagelens.experiments import Prediction
from stagelens.host import make_host
from stagelens.models import Watched
from stagelens.recording import Recorder as MemoryRecorder
from stagelens.runs import FILE, Run, Status, load_manifest, read_measurements, runs_folder
from stagelens.timelines import Measurement, Reading
from stagelens.training.open_run import OpenRun, check_theory, loop_manifest, run_folder
from stagelens.training.probe_states import ProbeStates
from stagelens.training.writer import Page

if TYPE_CHECKING:
    from stagelens.host import Host


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
        config: What to store with the run: a mapping, dataclass or namespace of settings. Its key `seed` is the run's
            seed: runs that differ in it alone are compared as seeds of one group. A run without it goes by its name.
        resume: Continue the run of this name, if there is one, with the same `config` or none. A step that is measured
            again is replaced.
        stage_names: Names of the transitions, in order.
        predictions: What theory expects, as `sl.Prediction`s. They are scored at the end, and drawn in the report.
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
        predictions: Sequence[Prediction] | None = None,
        host: Host | None = None,
        **options: Any,
    ) -> None:
        if run is None and (resume or config is not None or stage_names or predictions):
            raise UsageError("config, resume, stage_names and predictions belong to a run; give its name with run=")
        check_theory(stage_names, predictions or ())
        for name in ("loss", "forward"):
            if options.get(name) is not None and not callable(options[name]):
                kind = type(options[name]).__name__
                raise UsageError(f"{name} is a {kind}; expected a function of model and batch")
        host = host or make_host()
        super().__init__(model, probes, batch, host=host, **options)
        if not any(options.get(name) is not None for name in ("task", "loss", "forward")):  # they choose the inputs
            check_tokens(self.context.model, self.context.batch)
        self._further = self._sink  # of the user
        self._opened: OpenRun | None = None
        self._ended: str | None = None  # the name of the run, once it is closed
        if run is not None:
            device = next((parameter.device for parameter in self.context.model.parameters()), "cpu")
            manifest = loop_manifest(config, stage_names, list(self.probes), str(device))
            folder = run_folder(runs_folder(runs), run, resume)
            self._states = ProbeStates(folder)
            if (folder / FILE).exists():
                self._continue(read_measurements(folder))
                before = load_manifest(folder)
                if config is None:
                    manifest.config, manifest.seed = before.config, before.seed
                elif "seed" in before.config:  # of an earlier version, which did not take the seed out
                    manifest.config["seed"], manifest.seed = manifest.seed, before.seed
            self._opened = OpenRun(folder, manifest, host, predictions)
            self._sink = self._write

    @property
    def run(self) -> Run | None:
        """The run that is written; None without `run=`, and after the end."""
        return self._opened.writer.run if self._opened is not None else None

    def finish(self, status: Status = "finished", error: str = "") -> Run | None:
        """Ends the run: stores its stages, draws figures and writes the report. Returns the run, or None."""
        opened, self._opened, self._sink = self._opened, None, self._further
        if opened is None:
            return None
        self._ended = opened.writer.folder.name
        return opened.end(status, error, self._page())

    def measure(self, step: float, **scalars: float | torch.Tensor) -> list[Reading]:
        """Measures now, and writes the measurement if there is a run. `scalars` are recorded next to the readings.

        A step that was measured before is replaced, and an earlier one is put in its order.
        """
        if self._ended is not None:
            raise UsageError(
                f"run {self._ended!r} has ended, so step {step!r} cannot be written; measure before finish(), or make "
                "a recorder with resume=True"
            )
        return super().measure(step, **scalars)

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
        self._states.save(self.probes)
        self._opened.add(measurement, readings, self.skipped, self.problems)
        if self._further is not None:
            self._further(measurement, readings)

    def _continue(self, measurements: Sequence[Measurement]) -> None:
        """Takes over what a run measured before."""
        state = {"probes": self._states.load(self.probes), "skipped": self.skipped, "problems": self.problems}
        self.load_state(state, measurements)


def check_tokens(model: Any, tokens: Any) -> None:
    """Raises an error if tokens [batch, position] are not in the vocabulary of a TransformerLens model.

    The tokens of a watched model are checked when it is watched.
    """
    size = getattr(getattr(model, "cfg", None), "d_vocab", None)
    integers = isinstance(tokens, torch.Tensor) and not tokens.is_floating_point() and tokens.numel()
    if isinstance(model, Watched) or not isinstance(size, int) or not integers:
        return
    wrong = tokens[(tokens < 0) | (tokens >= size)]
    if len(wrong):
        raise UsageError(
            f"the batch has token {int(wrong[0])}, and the model's vocabulary has {size} tokens; "
            f"give tokens from 0 to {size - 1}"
        )
