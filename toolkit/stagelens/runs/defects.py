"""Finds runs whose numbers are wrong because of a bug in an earlier version of stagelens.

Revision 1 of vectorized training gave fused optimizers gradients in the wrong memory layout, and only the first member
of an ensemble entered a later training phase. Its manifests do not record that a run was trained together with others.
Such runs are recognized by their manifests: one process wrote them at the same time. This needs no torch and no plugin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from stagelens.base import StagelensError, digest, own
from stagelens.runs.manifest import FILE, Manifest, load_manifest

TOGETHER = "it was trained together with other seeds by an earlier version of stagelens, which"
UPDATES = f"{TOGETHER} may have updated the weights wrongly (fused Adam or AdamW): its numbers cannot be trusted"
PHASES = f"{TOGETHER} measured the parameters of the first training phase in all phases: {{}} is wrong"
BY_PHASE = ("gradient", "curvature")  # probes that read the parameters of the current training phase
LARGEST = 10**8  # bytes of a checkpoint's header
INSTANT = 0.5  # seconds: the members of an ensemble are created within this time

Runs = dict[str, Manifest]  # by the name of the run's directory


def defects_in(folder: Path) -> dict[str, str]:
    """Returns the runs in `folder` with wrong numbers: the name of the directory, and what is wrong."""
    old: Runs = {}
    for path in folder.glob(f"*/{FILE}"):
        with suppress(StagelensError):
            manifest = load_manifest(path.parent)
            if manifest.vectorized is None and manifest.kind == "training" and _created(manifest):
                old[path.parent.name] = manifest
    found: dict[str, str] = {}
    for ensemble in _ensembles(old):
        fused = any(_fused(folder / name) for name in ensemble)
        for name in list(ensemble)[0 if fused else 1 :]:  # the first member entered every training phase
            if reason := UPDATES if fused else _wrong_phase(ensemble[name]):
                found[name] = reason
    return found


def defect_of(folder: Path, manifest: Manifest) -> str:
    """Returns what is wrong with the numbers of the run in `folder`; an empty text if nothing is known."""
    if manifest.vectorized is not None or manifest.kind != "training":
        return ""
    return defects_in(folder.resolve().parent).get(folder.resolve().name, "")


def _ensembles(runs: Runs) -> Iterator[Runs]:
    """Yields the runs that were trained together: of one task and config, by one process, at the same time."""
    groups: dict[Any, Runs] = {}
    for name, manifest in sorted(runs.items(), key=lambda item: _created(item[1])):
        key = (manifest.task, digest(manifest.config), manifest.process, manifest.host)
        group = groups.setdefault(key, {})
        if group and not _overlap(next(iter(group.values())), manifest):
            yield from _several(group)
            group = groups[key] = {}
        group[name] = manifest
    for group in groups.values():
        yield from _several(group)


def _several(group: Runs) -> Iterator[Runs]:
    if len({manifest.seed for manifest in group.values()}) > 1:
        yield group


def _overlap(first: Manifest, other: Manifest) -> bool:
    """Returns True if `other` was created before `first` ended. A killed process did not store when it ended."""
    return _created(other) - _created(first) < (first.seconds or INSTANT)


def _created(manifest: Manifest) -> float:
    """Returns when the run was created, in seconds; 0 if that is unknown."""
    try:
        return datetime.fromisoformat(manifest.created).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _wrong_phase(manifest: Manifest) -> str:
    measured = [name for name in BY_PHASE if name in manifest.probes]
    return PHASES.format(" and ".join(measured)) if len(manifest.phases) > 1 and measured else ""


def _fused(folder: Path) -> bool:
    """Returns True if the optimizer in the run's checkpoints is fused, or if there is no checkpoint."""
    try:
        paths = sorted(own(folder, "checkpoints").glob("[0-9]*.safetensors"), reverse=True)
    except StagelensError:
        return True
    for path in paths:
        with suppress(StagelensError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            with own(folder, "checkpoints", path.name).open("rb") as file:
                header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), LARGEST)))
            optimizer = dict(json.loads(header["__metadata__"]["trees"])["optimizer"]["$dict"])
            return any(dict(group["$dict"]).get("fused") is True for group in optimizer["param_groups"])
    return True
