"""Victims: processes that tests kill, or run with a failing disk or clock (see faults.c), with all imports done."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stagelens as sl
from kit.tasks import assert_same_weights, weights
from stagelens.base.processes import environment
from stagelens.runs import Run

KILL = -1  # in place of an errno
IMPORTED = (
    "stagelens.training.running",
    "stagelens.training.ensemble",
    "stagelens.report",
    "stagelens.figures",
    "stagelens.report.charts",
)
IMPORTED += (
    "stagelens.cli.main",
    "stagelens.stages",
    "stagelens.training.loop",
    "stagelens_markov.tasks",
    "plotly.offline",
)

# A run of a second or two with every kind of write: probes, phases, checkpoints, stages, theory, figures, report.
SETTINGS = ("d=6", "T=6", "batch_size=16", "eval_size=16", "steps=60")
WORDS = ("markov", "--probes", "attention_sparsity,weight_norms", *(w for s in SETTINGS for w in ("--set", s)))
NAMED = ("run", *WORDS, "--name", "r", "--resume", "--runs")  # and a folder


@dataclass(frozen=True)
class Plan:
    """Makes the n-th change of a file below `below` (0: none) fail with `error`, once or always, or be a SIGKILL."""

    below: Path
    n: int = 0
    error: int = KILL
    lasting: bool = False

    @property
    def trace(self) -> Path:
        """Returns the file in which a process records each of its changes."""
        return self.below.with_name(f"{self.below.name}.trace")

    def put(self) -> None:
        """Applies the plan to this process, from now on."""
        arguments = (str(self.below).encode(), ctypes.c_long(self.n), self.error, self.lasting)
        ctypes.CDLL(None).fault_plan(*arguments, str(self.trace).encode())

    def changes(self) -> list[str]:
        """Returns the changes so far, as `call path`, up to and including the n-th."""
        return self.trace.read_text().splitlines()


def command(
    words: Sequence[Any], out: Path, plan: Plan | None = None, prepare: Callable[[], None] | None = None
) -> None:
    """Runs the command line; its output goes to the files `out`.out and `out`.err."""
    from stagelens.cli import main

    for number, ending in ((1, ".out"), (2, ".err")):
        with out.with_suffix(ending).open("w") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["stagelens", *map(str, words)]
    if prepare:
        prepare()
    if plan:
        plan.put()
    main()


def train(
    runs: Path, plan: Plan | None = None, prepare: Callable[[], None] | None = None, steps: int | None = None
) -> None:
    """Makes the run of `NAMED` without its report and without the command line, or resumes it."""
    if prepare:
        prepare()
    if plan:
        plan.put()
    probes = WORDS[WORDS.index("--probes") + 1].split(",")
    settings = [*SETTINGS, *([] if steps is None else [f"steps={steps}"])]
    sl.run("markov", settings=settings, probes=probes, runs=runs, name="r", resume=True, report=False, device="cpu")


def said(out: Path) -> str:
    """Returns what a command wrote to stderr."""
    return out.with_suffix(".err").read_text()


def is_one_line(text: str) -> bool:
    return text.startswith("error: ") and text.count("\n") == 1 and len(text) > 20


@dataclass(frozen=True)
class Told:
    """Puts variables into the environment of this process."""

    variables: Mapping[str, str]

    def __call__(self) -> None:
        os.environ.update(self.variables)


@dataclass(frozen=True)
class KillAt:
    """Makes this process kill itself at the n-th call of a function, given as `module:Class.name`."""

    target: str
    n: int
    after: bool = False  # after the call, not before it

    def __call__(self) -> None:
        module, _, path = self.target.partition(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for step in owners:
            owner = getattr(owner, step)
        original, calls = getattr(owner, name), 0

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            this = calls == self.n  # a function may call itself
            if this and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **options)
            if this:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, counted)


class Victims:
    """A process that forks further processes, each of which calls a function. `library` is the compiled faults.c."""

    def __init__(self, library: Path, imported: Sequence[str] = IMPORTED) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._server = context.Process(target=_serve, args=(theirs, imported))
        with environment({"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}):
            self._server.start()
        theirs.close()

    def start(self, function: Callable[..., None], *arguments: Any) -> int:
        """Starts a victim; returns its process id."""
        return int(self._ask("start", function, *arguments))

    def wait(self, process: int, seconds: float = 120) -> int | None:
        """Returns the exit code of a victim (minus the signal that killed it); None if it has not ended in time."""
        return self._ask("wait", process, seconds)  # type: ignore[no-any-return]

    def call(self, function: Callable[..., None], *arguments: Any) -> int | None:
        return self.wait(self.start(function, *arguments))

    def close(self) -> None:
        self._pipe.close()
        self._server.join()

    def _ask(self, *order: Any) -> Any:
        self._pipe.send(order)
        return self._pipe.recv()


def _serve(pipe: Any, imported: Sequence[str]) -> None:
    import torch

    torch.set_num_threads(1)
    for name in imported:
        importlib.import_module(name)
    started: dict[int, Any] = {}
    while True:
        try:
            what, *order = pipe.recv()
        except EOFError:
            return
        if what == "start":
            function, *arguments = order
            process = get_context("fork").Process(target=function, args=arguments)
            process.start()
            started[process.pid or 0] = process
            pipe.send(process.pid)
        else:
            number, seconds = order
            started[number].join(seconds)
            code = started[number].exitcode
            if code is None:
                started[number].kill()
                started[number].join()
            pipe.send(code)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """faults.c as a library that can be loaded into a process."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the faults of a disk are made by a C library on Linux: there is no C compiler, or another system")
    made = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"], check=True)
    return made


@pytest.fixture(scope="session")
def victims(library):
    made = Victims(library)
    yield made
    made.close()


@contextmanager
def mounted(folder: Path, options: str) -> Any:
    """Mounts a small disk at `folder`, or skips the test with the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def difference(one: Run, other: Run, stopped: bool = False) -> str:
    """Returns how `one` differs from the undisturbed run `other`: steps, series, weights, stages, theory; or "".

    A run that was `stopped`, and not killed, also has a checkpoint of that step, with the weights of `other`.
    """
    if one.manifest.status != other.manifest.status:
        return f"status {one.manifest.status}, {other.manifest.status}"
    if one.timeline.steps.tolist() != other.timeline.steps.tolist() or list(one.timeline) != list(other.timeline):
        return f"steps or series: {len(one.timeline.steps)}, {len(other.timeline.steps)}"
    for name in one.timeline:
        if one.timeline.series(name).tobytes() != other.timeline.series(name).tobytes():
            return f"series {name}"
    more = set(one.checkpoints) - set(other.checkpoints)
    if set(other.checkpoints) - set(one.checkpoints) or (more and not stopped):
        return f"checkpoints {one.checkpoints}, {other.checkpoints}"
    for step in one.checkpoints:
        there = other.model_at(step).state_dict() if step in more else weights(other, step)
        try:
            assert_same_weights(weights(one, step), there)
        except AssertionError as error:
            return f"weights of step {step}: {error}"
    found = other.found_stages()
    kept = [run.manifest.stages for run in (one, other) if run.manifest.stages is not None]  # next to a report
    if any(stages != found for stages in (one.found_stages(), *kept)):
        return "stages"
    return "" if one.manifest.predictions == other.manifest.predictions else "predictions"


def leavings(folder: Path) -> list[str]:
    """Returns the temporary files that a writer left behind."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*") if path.is_file())


def watch(folder: Path, reference: Path, stop: Path, out: Path) -> None:
    """Reads the run repeatedly until `stop` exists, and writes errors to `out`.

    Every measurement that it reads must be one of the run in `reference`, bit for bit.
    """
    import json
    import traceback

    from stagelens.runs import catalogue
    from stagelens.runs.store import read_measurements

    known = {m.step: (m.layout, m.values.tobytes()) for m in read_measurements(reference)}
    looks, errors = 0, []
    while not stop.exists():
        there = (folder / "run.json").exists()
        try:
            if not there:
                continue
            run = sl.load(folder)
            assert run.status in ("running", "interrupted", "finished"), run.status
            for m in read_measurements(folder):
                assert known[m.step] == (m.layout, m.values.tobytes()), m.step
            assert np.all(np.diff(run.timeline.steps) > 0)
            json.dumps(run.summary())
            assert [found.name for found in catalogue(folder.parent)] == [folder.name]
            looks += 1
        except BaseException:
            errors.append(traceback.format_exc())
    out.write_text(json.dumps({"looks": looks, "errors": errors}))
