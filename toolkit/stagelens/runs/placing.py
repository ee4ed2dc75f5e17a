"""Chooses the directory of a run: a new one, or that of a run to resume or replace."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stagelens.base import EnvironmentFault, StagelensError, UsageError, leads_into, safe_name
from stagelens.runs.folders import catalogue
from stagelens.runs.lock import LOCK, held
from stagelens.runs.manifest import FILE, Manifest, load_manifest
from stagelens.runs.store import read_measurements

NONE: Mapping[str, Any] = MappingProxyType({})
REPLACED = ".replaced"  # the file in a run that was renamed, see `_mark`

Notify = Callable[[str], None]  # takes one line, before the training starts


def choose_folder(
    runs: Path,
    manifest: Manifest,
    name: str | None,
    resume: bool,
    replace: bool = False,
    notify: Notify | None = None,
    defaults: Mapping[str, Any] = NONE,
) -> Path:
    """Returns the run's directory: a new one, or that of the run to `resume` or to `replace`.

    `notify` is called with one line if the default name is taken. `defaults` are the values of config keys that a run
    of an earlier version may not have.
    """
    if resume and replace:
        raise UsageError("--replace starts a new run and --resume continues one; give one of them")
    notify = notify or (lambda text: None)  # noqa: ARG005
    default = f"{manifest.task.replace('/', '-')}-{manifest.preset}-seed{manifest.seed}"
    stem = safe_name(default if name is None else name)
    folder = runs / stem
    if resume and name is None:
        same = [run for run in catalogue(runs) if _same(run.manifest, manifest, defaults)]
        if same:
            return same[-1].folder
    if replace and folder.is_symlink():
        raise UsageError(f"{folder} is a link to {folder.resolve()}; give the name of that run to replace it")
    if (folder / FILE).exists() and not (resume or replace):
        if name:
            raise UsageError(
                f"run {name!r} exists in {runs}; add --resume to continue it, --replace to replace it, "
                "or give another --name"
            )
        folder = free_name(folder)
        notify(
            f"run {stem!r} exists in {runs}; this one is named {folder.name!r} "
            "(--replace replaces the first, --resume continues the newest of the same config)"
        )
    if not leads_into(folder, runs):
        raise UsageError(f"{folder} is a link that leads out of {runs}; give the directory it links to with --runs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = [file.name for file in folder.iterdir() if not file.name.startswith(".") and file.name != LOCK]
    except OSError as error:
        raise EnvironmentFault(
            f"cannot make {folder}: {error.strerror or error}; give another directory with --runs"
        ) from None
    if others and FILE not in others:
        raise UsageError(f"{folder} has other files and is not a run; give another --name")
    return folder


def free_name(folder: Path) -> Path:
    """Returns `folder` if it does not exist; else the first free one of `NAME-2`, `NAME-3` and so on."""
    free, number = folder, 2
    while os.path.lexists(free):
        free, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return free


@contextmanager
def replacing(folder: Path, wanted: bool, notify: Notify | None = None) -> Iterator[None]:
    """Renames the run in `folder` to `NAME-replaced` while the block writes a new run there.

    When the new run is finished, the old one is deleted, together with those of earlier, unfinished replacements of
    the same run. If the new run ends otherwise, `NAME-replaced` remains. If the manifest of the new run could not be
    written, the old run gets its name back.
    """
    if not (wanted and (folder / FILE).exists()):
        yield
        return
    earlier = _replaced_before(folder)
    aside = _set_aside(folder)
    if notify is not None:
        names = " and ".join(repr(kept.name) for kept in earlier)
        also = f", and so is {names} of an earlier replacement" if earlier else ""
        kept_as = f"it is renamed to {aside.name!r}, and removed when this command finishes the new run"
        notify(f"run {folder.name!r} is replaced; {kept_as}{also}")
    try:
        yield
    except BaseException:
        if not (folder / FILE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                aside.rename(folder)
                (folder / REPLACED).unlink()
        raise
    with suppress(StagelensError):
        if load_manifest(folder).status == "finished":
            for kept in [aside, *earlier]:
                _remove(kept)


def _replaced_before(folder: Path) -> list[Path]:
    """Returns the runs that earlier replacements of `folder` renamed and did not delete, unless they changed since."""
    found = []
    for mark in sorted(folder.parent.glob(f"{glob.escape(folder.name)}-replaced*/{REPLACED}")):
        with suppress(OSError, UnicodeDecodeError):
            if mark.is_file() and not mark.parent.is_symlink() and mark.read_text() == _mark(folder.name, mark.parent):
                found.append(mark.parent)
    return found


def _mark(name: str, aside: Path) -> str:
    """Returns the content of `REPLACED` in `aside`: the old name of the run, and the digest of its manifest."""
    return f"{name} {hashlib.sha256((aside / FILE).read_bytes()).hexdigest()}\n"


def _set_aside(folder: Path) -> Path:
    """Renames the run in `folder` and makes an empty directory there. A run that is being written is refused."""
    before = folder.stat().st_ino
    with held(folder):
        if folder.stat().st_ino != before or not (folder / FILE).exists():
            raise UsageError(f"run {folder.name!r} is being replaced by another process; wait for it")
        aside = free_name(folder.with_name(f"{folder.name}-replaced"))
        try:
            (folder / REPLACED).write_text(_mark(folder.name, folder))
            folder.rename(aside)
            folder.mkdir()
        except OSError as error:
            raise EnvironmentFault(f"cannot replace {folder}: {error.strerror or error}; give another --name") from None
    return aside


def _remove(folder: Path) -> None:
    """Deletes a run: its manifest first, so that an interruption leaves no partial run. A link is not deleted."""
    if folder.is_symlink():
        return
    with suppress(OSError):
        (folder / FILE).unlink()
        shutil.rmtree(folder)


def remove_unmeasured(folder: Path, kind: str) -> None:
    """Deletes the run in `folder` if it is of this `kind`, has no measurements, and no process writes it."""
    with suppress(StagelensError), held(folder):
        if load_manifest(folder).kind == kind and not read_measurements(folder):
            _remove(folder)


def _same(one: Manifest, other: Manifest, defaults: Mapping[str, Any]) -> bool:
    """True if the two are of one task, config and seed. A key that `one` lacks, because it is new, has its default."""
    return (one.task, {**defaults, **one.config}, one.seed) == (other.task, {**defaults, **other.config}, other.seed)


def taken_up(
    folder: Path, wanted: Manifest, probes: Sequence[str] | None, defaults: Mapping[str, Any] = NONE
) -> Manifest:
    """Returns the manifest of a run to resume. Raises an error unless task, config, seed and timeline are right."""
    manifest = load_manifest(folder)
    read_measurements(folder, manifest.timeline)
    if not _same(manifest, wanted, defaults):
        raise UsageError(
            f"run {folder.name!r} is {manifest.task} with seed {manifest.seed} and "
            f"{_difference(manifest.config, wanted.config)}; resume it with its own settings, or give another --name"
        )
    if probes and wanted.probes != manifest.probes:
        raise UsageError(f"run {folder.name!r} has the probes {','.join(manifest.probes)}; resume it without --probes")
    manifest.status, manifest.error, manifest.timeline = "running", "", ""
    manifest.plugin_problems = wanted.plugin_problems
    if manifest.vectorized is None:  # of an earlier version; defective ones are not resumed
        manifest.vectorized = 0
    manifest.process, manifest.host = wanted.process, wanted.host
    manifest.versions, manifest.device, manifest.threads = wanted.versions, wanted.device, wanted.threads
    return manifest


def _difference(had: dict[str, Any], wanted: dict[str, Any]) -> str:
    changed = [
        f"{key}={had[key]!r} (given {wanted.get(key)!r})" if key in had else f"no {key} (given {wanted[key]!r})"
        for key in {**had, **wanted}
        if had.get(key) != wanted.get(key)
    ]
    return ", ".join(changed) or "the same config"
