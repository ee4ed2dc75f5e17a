"""One job of a sweep, and the function that runs it in any process."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stagelens.base import StagelensError

if TYPE_CHECKING:
    from stagelens.host import Host
    from stagelens.runs import Run


@dataclass(frozen=True)
class Job:
    """One config with the seeds to run. `names` are the directories of the runs in `folder`, one for each seed."""

    task: Any  # an id, or a class that can be imported
    preset: str
    settings: dict[str, str]
    seeds: tuple[int, ...]
    names: tuple[str, ...]
    folder: str
    device: str = "auto"
    probes: tuple[str, ...] | None = None
    plugin_dirs: tuple[str, ...] = ()
    threads: int = 1


@dataclass(frozen=True)
class Outcome:
    """The result of a job: `errors` by seed (one line each), and whether it was interrupted."""

    seconds: float = 0.0
    errors: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False
    archive: bytes = b""  # of the runs, if they are not in a shared directory


def perform(job: Job) -> Outcome:
    """Runs `job`: each of its seeds becomes a finished run, or an error of one line."""
    started = time.monotonic()
    try:
        errors = {run.manifest.seed: run.manifest.error for run in _runs(job) if run.manifest.status == "failed"}
        interrupted = False
    except KeyboardInterrupt:
        errors, interrupted = {}, True
    except StagelensError as error:
        errors, interrupted = dict.fromkeys(job.seeds, " ".join(str(error).split())), False
    except Exception as defect:
        reason = f"{type(defect).__name__}: {' '.join(str(defect).split())}"
        errors, interrupted = dict.fromkeys(job.seeds, reason), False
    return Outcome(time.monotonic() - started, errors, interrupted)


def _runs(job: Job) -> list[Run]:
    host = _host(job.plugin_dirs)
    if isinstance(job.task, str):
        host.task(job.task).load()
    hold_threads(job.threads)
    shared: dict[str, Any] = {
        "preset": job.preset,
        "settings": job.settings,
        "device": job.device,
        "runs": job.folder,
        "resume": True,
        "probes": job.probes,
        "host": host,
    }
    if len(job.seeds) > 1:
        from stagelens.training import run_ensemble

        runs = list(run_ensemble(job.task, seeds=job.seeds, names=job.names, **shared))
    else:
        from stagelens.training import run

        runs = [run(job.task, seed=job.seeds[0], name=job.names[0], **shared)]
    if any(run.manifest.status == "interrupted" for run in runs):
        raise KeyboardInterrupt
    return runs


def hold_threads(count: int) -> None:
    """Limits torch, if it is imported, to `count` threads. Two processes with two threads on two cores only wait."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)


@lru_cache(maxsize=8)
def _host(plugin_dirs: tuple[str, ...]) -> Host:
    """Returns the host of this process. Plugins are imported once for all of its jobs."""
    from stagelens.host import make_host

    return make_host(plugin_dirs)
