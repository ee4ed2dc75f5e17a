"""Finds runs and sweeps on disk: by path, by name, or all of a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stagelens.base import (
    EnvironmentFault,
    StagelensError,
    UsageError,
    leads_into,
    load_sealed,
    own,
    safe_name,
    unknown,
)
from stagelens.runs.manifest import FILE
from stagelens.runs.run import Run

if TYPE_CHECKING:
    from stagelens.experiments import Experiment
    from stagelens.host import Host

RUNS_ENVIRONMENT = "STAGELENS_RUNS"
RUNS = "runs"  # the default runs directory
POINTS = "points"  # in the runs directory: the grid points of all sweeps
SWEEPS = "sweeps"  # in the runs directory: a directory for each sweep
SWEEP_FILE = "sweep.json"  # in the directory of a sweep: its table


def runs_folder(given: str | Path | None = None) -> Path:
    """Returns the runs directory: the given one, else `$STAGELENS_RUNS`, else `runs`."""
    return Path(given or os.environ.get(RUNS_ENVIRONMENT) or RUNS)


def load(
    run: str | Path,
    runs: str | Path | None = None,
    host: Host | None = None,
    task: type[Experiment] | None = None,
) -> Run:
    """Opens the run at a path, or with a name in the runs directory. `task` is its class if no plugin registers it."""
    if task is not None:
        from stagelens.host import make_host

        host = host or make_host()
        host.load_class(task)
    path = Path(run)
    if (path / FILE).exists():
        return Run(path, host)
    folder = runs_folder(runs)
    if (folder / path / FILE).exists() and len(path.parts) == 1 and path.name not in (".", ".."):
        if not leads_into(folder / path, folder):
            raise UsageError(f"{folder / path} is a link that leads out of {folder}; give the path that it links to")
        return Run(folder / path, host)
    if path.exists():
        raise UsageError(f"{run} is not a run: it has no {FILE}; `stagelens runs` lists the runs")
    raise unknown("run", str(run), [found.name for found in catalogue(folder)], f"the runs directory is {folder}")


def catalogue(folder: str | Path | None = None, host: Host | None = None) -> list[Run]:
    """Returns all runs in a directory, oldest first, without those that cannot be read or are links to elsewhere."""
    found = []
    for path in sorted(runs_folder(folder).glob(f"*/{FILE}")):
        if path.parent.is_symlink() and not leads_into(path.parent, runs_folder(folder)):
            continue
        try:
            found.append(Run(path.parent, host))
        except StagelensError:
            continue
    return sorted(found, key=lambda run: run.manifest.created)


def points_of(sweep: str | Path, runs: str | Path | None = None) -> list[Path]:
    """Returns the finished runs of a sweep, given by its path or its name; an empty list if there is no such sweep."""
    for folder in (Path(sweep), runs_folder(runs) / SWEEPS / Path(sweep).name):
        if not (folder / SWEEP_FILE).exists():
            continue
        path = own(folder, SWEEP_FILE)
        points = folder.parent.parent / POINTS
        try:
            rows = load_sealed(path)["table"]
            found = [points / safe_name(row["run"]) for row in rows if row["status"] == "finished"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            raise EnvironmentFault(f"{path} is not the table of a sweep ({error}); run the sweep again") from None
        if led := next((point for point in found if not leads_into(point, points)), None):
            raise UsageError(f"{led} is a link that leads out of {points}; replace it by the run")
        return found
    return []
