"""The store: runs that several tests read. Each is trained once in a test session, by the process that asks first.

The folder belongs to the session. `conftest.py` creates it and removes it at the end. Every test process, and every
process that a test starts, gets its path from the environment. Runs of registered tasks come from the project's `Lab`.
The name of a run depends on everything that its numbers depend on, and each run is locked while it is trained.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import stagelens as sl
from stagelens.base import UsageError
from stagelens.claims import Lab
from stagelens.host import Host, make_host

ENVIRONMENT = "STAGELENS_TEST_STORE"
# A call of `sl.run` with another option, such as `compile`, is not served from the store.
STORABLE = {"preset", "settings", "seed", "probes", "runs", "name", "report", "host", "progress", "notify", "device"}


@cache
def host() -> Host:
    """The installed plugins. Tests that add plugins of their own make a host of their own."""
    return make_host()


@cache
def lab() -> Lab:
    return Lab(host(), folder())


def folder() -> Path:
    return Path(os.environ[ENVIRONMENT])


def once(name: str, make: Callable[[Path], Any]) -> Path:
    """The folder `name` of the store. The first caller fills it with `make(folder)`; others wait for that."""
    made = folder() / name
    made.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{made}.lock"):
        if not made.exists():
            try:
                make(made)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    return made


def stored_run(train: Callable[..., sl.Run]) -> Callable[..., sl.Run]:
    """Replaces `sl.run`: trains no registered task twice in a session, and draws the figures of a run once.

    It copies the store's run to the folder of the new run. The first time, the real `sl.run` resumes the copy. This
    trains nothing, but writes summary, problems, figures and report, which are copied with the run later.
    """

    @wraps(train)
    def run(task: Any, **options: Any) -> sl.Run:
        asked = {name for name, value in options.items() if value}
        if not isinstance(task, str) or asked - STORABLE or _plugins(options.get("host") or host()) != _plugins(host()):
            return train(task, **options)
        try:
            trained, target = found(task, **options)
        except UsageError:  # the real call reports it
            return train(task, **options)
        if target.exists() or not options.get("report", True):
            place(trained, target)
            return train(task, **options | {"resume": True})

        def report(to: Path) -> None:
            place(trained, to)
            train(task, **options | {"resume": True, "runs": to.parent, "name": to.name})

        place(once(f"reported/{trained.name}/{target.name}", report), target)
        return sl.load(target, host=options.get("host"))

    return run


def serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `sl.run` and `stagelens run` take registered tasks from the store, until `monkeypatch` is undone."""
    import stagelens.api

    run = stored_run(sl.run)  # a lazy name: it is found in `api` now, not after `api.run` has been replaced
    for module in (sl, stagelens.api):
        monkeypatch.setattr(module, "run", run)


def _plugins(of: Host) -> set[str]:
    return {name for name, _ in of.manager.list_name_plugin()}


def found(
    task: str,
    *,
    preset: str = "quick",
    settings: Any = (),
    seed: int = 0,
    probes: Any = None,
    runs: Any = None,
    name: str | None = None,
    **_: Any,
) -> tuple[Path, Path]:
    """Returns the folder of the store's run with these arguments, and the folder to which `sl.run` would write it."""
    given = dict(one.split("=", 1) for one in settings) if not isinstance(settings, dict) else settings
    done = lab().run(task, given, seed, preset=preset, probes=probes)
    kind = done.manifest.task.replace("/", "-")
    target = Path(runs or os.environ.get("STAGELENS_RUNS", "runs")) / (name or f"{kind}-{preset}-seed{seed}")
    return done.folder, target


def place(folder: Path, target: Path) -> None:
    """Copies the run in `folder` to `target`, if that is free."""
    if not target.exists():
        shutil.copytree(folder, target)


def reuse() -> None:
    """Makes `sl.run` of this process reuse the store, until the process ends; a notebook's kernel calls it."""
    import stagelens.api

    train = getattr(stagelens.api.run, "__wrapped__", stagelens.api.run)  # it may be called twice in a process
    stagelens.api.run = sl.run = stored_run(train)
