"""Writes small runs of every kind into a directory: the old runs that later versions must open."""

from __future__ import annotations

import json
import os
import shutil
import signal
from multiprocessing import get_context
from pathlib import Path

import stagelens as sl
from kit.tiny import tiny_settings
from stagelens.base.documents import load_sealed, save_sealed
from stagelens.host.host import make_host

FOLDER = Path(__file__).with_name("old_runs")
TASK = "emergence/recall"
KEPT = (2, 6)  # the checkpoints of a finished run that are not deleted
KILLED_AT = 4
MANIFESTS = ("run.json", "sweep.json")
NEUTRAL = {"host": "machine", "process": 1}  # what a manifest says of the machine and the process that wrote it


def write_runs(folder: Path) -> None:
    """A training and its killed twin, one with training phases, a flow, two seeds as an ensemble, and a sweep."""
    options = {"runs": folder, "device": "cpu", "report": False}
    sl.run(TASK, settings=tiny_settings(TASK), name="training", **options | {"report": True})
    sl.run("rich/toy", settings=tiny_settings("rich/toy"), name="phases", **options)
    sl.run("recall/flow", settings=tiny_settings("recall/flow"), name="flow", **options | {"report": True})
    small = tiny_settings("linear-icl/separate")
    together = sl.run_ensemble("linear-icl/separate", seeds=2, settings=small, name="ensemble", **options)
    assert not together.alone, together.alone
    settings = [f"{key}={value}" for key, value in tiny_settings("emergence/flow").items() if key != "T"]
    sl.sweep("emergence/flow", ["T=16,32,64"], settings=settings, fit=["T"], workers=1, runs=folder, name="law")
    victim = get_context("spawn").Process(target=_run_and_die, args=(folder,))
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL, victim.exitcode
    _strip(folder)


class _Die:
    """Kills this process in the middle of the run, as a machine that is switched off does."""

    @sl.hookimpl
    def stagelens_reading_recorded(self, step: float) -> None:
        if step >= KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def _run_and_die(folder: Path) -> None:
    host = make_host()
    host.manager.register(_Die())
    sl.run(TASK, settings=tiny_settings(TASK), runs=folder, name="killed", device="cpu", host=host)


def _strip(folder: Path) -> None:
    """Takes out pages, figures and most checkpoints, and what manifests say of this machine."""
    for path in [*folder.rglob("*.html"), *folder.rglob("figures"), *folder.rglob("*.lock")]:
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in folder.glob("*/checkpoints/*.safetensors"):
        if int(path.stem) not in KEPT and path.parent.parent.name != "killed":
            path.unlink()
    for path in folder.glob("killed/checkpoints/*.safetensors"):
        if int(path.stem) != KEPT[0]:
            path.unlink()
    for path in (found for name in MANIFESTS for found in folder.rglob(name)):
        document = json.loads(json.dumps(load_sealed(path)).replace(str(folder), "runs"))
        save_sealed(path, document | {key: value for key, value in NEUTRAL.items() if key in document})
