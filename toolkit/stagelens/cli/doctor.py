"""The doctor: what this installation is made of, what is wrong with it, and how to mend it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement

from stagelens.base import StagelensError


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    ok: bool = True
    mend: str = ""


def examine(plugin_dirs: Sequence[str] = ()) -> list[Finding]:
    """Everything worth knowing, in the order in which it would be mended."""
    return [_python(), *_dependencies(), *_device(), *_plugins(plugin_dirs), _runs()]


def _python() -> Finding:
    return Finding("python", platform.python_version(), sys.version_info >= (3, 11), "install Python 3.11 or newer")


def _dependencies() -> list[Finding]:
    """Each required distribution against the range that ours asks for."""
    findings = [Finding("stagelens", importlib.metadata.version("stagelens"))]
    for text in importlib.metadata.requires("stagelens") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(requirement.name, "missing", False, f"pip install '{requirement}'"))
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        mend = f"pip install '{requirement}'"
        findings.append(Finding(requirement.name, f"{version} (asks for {requirement.specifier or 'any'})", fits, mend))
    return findings


def _device() -> list[Finding]:
    try:
        import torch

        from stagelens.base import resolve_device

        threads = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores"
        fits = torch.get_num_threads() <= (os.cpu_count() or 1)
        return [
            Finding("device", str(resolve_device("auto"))),
            Finding("threads", threads, fits, "set OMP_NUM_THREADS to the number of cores or fewer"),
        ]
    except (ImportError, OSError) as error:
        return [Finding("device", f"torch does not import: {error}", False, "reinstall torch")]


def _plugins(plugin_dirs: Sequence[str]) -> list[Finding]:
    from stagelens.host import make_host

    try:
        plugins = make_host(plugin_dirs).plugins
    except StagelensError as error:
        return [Finding("plugins", str(error), False, "give --plugin-dir a folder that exists")]
    findings = []
    for plugin in plugins:
        found = f"{plugin.version} {plugin.status} {plugin.error}".strip()
        findings.append(Finding(f"plugin {plugin.name}", found, plugin.status != "failed", f"mend {plugin.file}"))
    return findings


def _runs() -> Finding:
    from stagelens.runs import runs_folder

    folder = runs_folder()
    nearest = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    return Finding("runs folder", str(folder), writable, "give a writable folder with --runs or STAGELENS_RUNS")
