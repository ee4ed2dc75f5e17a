"""Calls command lines in a prepared directory, in this process or in another, and judges how they end.

Every command line must end in time, with a documented exit code and no traceback. A mistake is one line on stderr, and
libraries print no warnings. With `--json`, stdout is one JSON document.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KIT = Path(__file__).parents[1]
STAGELENS = [sys.executable, "-c", "from stagelens.cli import main; main()"]
LIMIT = 20.0  # seconds that a call in this process may take
MEMORY = 2 * 2**30  # bytes that a call may take beyond what is in use
DOCUMENTED = {0, 1, 2, 3}  # 1: the command failed; 2: a usage error; 3: an environment error
INSTEAD = {"-h", "--help", "--version", "--show-completion"}  # they end the command line before its command
TABLED = {"doctor", "verify", "sweep"}  # what failed is in their tables, so that exit code 1 needs no line of its own


@dataclass(frozen=True)
class Ended:
    """How a call ended. `raised` is a traceback if there is one; `code` is None if the call had to be stopped."""

    code: int | None
    out: str
    err: str
    raised: str = ""
    seconds: float = 0.0


class TooLong(BaseException):
    """Raised if a call takes too long."""


def make_world(folder: Path) -> None:
    """A directory for command lines: runs, curves, grids, checkpoints, plugins, and unusual paths."""
    import torch
    from safetensors.torch import save_file

    from kit.sweep_plugin import Power
    from kit.tasks import run
    from kit.written_runs import staircase, write_run
    from stagelens.models import build_transformer

    runs = folder / "runs"
    run(Power, runs, name="flow")
    steps = range(0, 200, 4)
    series = {"loss": staircase(steps, [60, 130], [1, 0.5, 0.1]), "train_loss": [float("nan")] * 50}
    write_run(runs, "done", series, steps)
    write_run(runs, "cut", series, steps, status="interrupted", error="a reason")
    (runs / "cut" / "timeline.sqlite").write_bytes((runs / "cut" / "timeline.sqlite").read_bytes()[:5000])
    (folder / "curve.csv").write_text(
        "".join(f"{step},{value}\n" for step, value in zip(steps, series["loss"], strict=True))
    )
    (folder / "wide.csv").write_text("step,a,b\n" + "".join(f"{step},{step},1\n" for step in steps))
    (folder / "good.yaml").write_text("T: [10, 20]\n")
    (folder / "folder").mkdir()
    (folder / "file").write_text("text\n")
    (folder / "unreadable").write_text("text\n")
    (folder / "unreadable").chmod(0)
    (folder / "link-to-itself").symlink_to("link-to-itself")
    plugins = folder / "plugins"
    plugins.mkdir()
    for plugin in ("claims_plugin.py", "sweep_plugin.py"):
        shutil.copy(KIT / plugin, folder)
    (plugins / "raises.py").write_text("raise ZeroDivisionError('two lines\\nof text')\n")
    (plugins / "syntax.py").write_text("def (\n")
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 4, "n_ctx": 4, "d_vocab": 5}
    model = build_transformer(**sizes, seed=0)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "config.json").write_text(json.dumps(sizes))
    for step in (1, 2):
        save_file(dict(model.state_dict()), folder / "checkpoints" / f"{step}.safetensors")
    save_file({"tokens": torch.randint(5, (3, 4))}, folder / "tokens.safetensors")


def call(words: Sequence[str], limit: float = LIMIT) -> Ended:
    """Calls the command line in this process, which must be in the world's folder."""
    from stagelens.cli.main import main

    before, started = sys.argv, time.monotonic()
    sys.argv = ["stagelens", *words]
    code: int | None = None
    raised = ""
    with _streams() as streams, _as_outside(), _held(MEMORY):
        try:
            with stopped_after(limit):
                main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except TooLong:
            raised = f"stopped after {limit:g} s\n" + traceback.format_exc()
        except BaseException:
            raised = traceback.format_exc()
        finally:
            sys.argv = before
            sys.stdout.flush()
            sys.stderr.flush()
        out, err = (stream.decode("utf-8", "replace") for stream in streams())
    return Ended(code, out, err, raised, time.monotonic() - started)


def call_alone(words: Sequence[str], folder: Path, limit: float = 60.0) -> Ended:
    """Calls the command line in a process of its own."""
    started = time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*STAGELENS, *words],
            cwd=folder,
            capture_output=True,
            timeout=limit,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Ended(None, "", "", f"stopped after {limit:g} s")
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    raised = err if "Traceback (most recent call last)" in err or done.returncode < 0 else ""
    return Ended(done.returncode, out, err, raised, time.monotonic() - started)


def fault_of(words: Sequence[str], ended: Ended) -> str:
    """Returns one line about what is wrong with how a call ended; empty if nothing is."""
    if ended.raised:
        return "traceback: " + [x for x in ended.raised.splitlines() if x[:1].strip()][-1]
    if ended.code not in DOCUMENTED:
        return f"exit code {ended.code}"
    lines = (
        ended.err.splitlines() if "--debug" not in words else [x for x in ended.err.splitlines() if x[:5] == "error"]
    )
    errors = [line for line in lines if line.startswith("error: ")]
    strange = [line for line in lines if not line.startswith(("error: ", "warning: "))]
    if strange and "--debug" not in words:
        return f"on stderr: {strange[0][:200]}"
    if len(errors) > 1 or (ended.code == 0 and errors):
        return f"exit code {ended.code} with {len(errors)} errors: {errors[0][:200]}"
    if ended.code and not errors and not TABLED & set(words):
        return f"exit code {ended.code} without a word"
    if errors and len(errors[0].removeprefix("error: ").strip()) < 10:
        return f"an error that says nothing: {errors[0]!r}"
    if errors and len(errors[0]) > 3000:
        return f"an error of {len(errors[0])} characters: {errors[0][:200]}"
    if unprintable := [c for line in lines for c in line if not (c.isprintable() or c == "\ufffd")]:
        return f"unprintable {unprintable[0]!r} on stderr"
    if "--json" in words and ended.code == 0 and not INSTEAD.intersection(words):
        return _not_json(ended.out)
    return ""


def _not_json(text: str) -> str:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"stdout is not JSON: {error}: {text[:80]!r}"
    return ""


@contextlib.contextmanager
def _streams() -> Iterator[Any]:
    """Redirects stdout and stderr to files, also below Python; yields a function that reads them."""
    kept, before = [os.dup(1), os.dup(2)], (sys.stdout, sys.stderr)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = (out, err)
        try:
            for number, file in enumerate(files, start=1):
                os.dup2(file.fileno(), number)
            sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8", write_through=True)
            sys.stderr = io.TextIOWrapper(
                os.fdopen(2, "wb", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
            )

            def read() -> list[bytes]:
                return [os.pread(file.fileno(), 10**8, 0) for file in files]

            yield read
        finally:
            sys.stdout, sys.stderr = before
            for number, fd in enumerate(kept, start=1):
                os.dup2(fd, number)
                os.close(fd)


@contextlib.contextmanager
def _as_outside() -> Iterator[None]:
    """Warnings go to stderr, as they would outside a test."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = lambda message, category, *_: sys.stderr.write(f"{category.__name__}: {message}\n")
        yield


@contextlib.contextmanager
def _held(extra: int) -> Iterator[None]:
    """Limits this process to its present memory and `extra` more, so that a test cannot use up the machine's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
