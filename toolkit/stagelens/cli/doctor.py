"""`stagelens doctor`: checks the installation and says how to fix what is wrong."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from stagelens.base import StagelensError
from stagelens.cli import output
from stagelens.cli.options import Json, State


def doctor(context: typer.Context, json: Json = False) -> None:
    """Check the installation; say how to fix it.

    It checks versions, device, plugins and the runs directory.

    Example: stagelens doctor
    """
    state: State = context.obj
    findings = examine(state.plugin_dirs)
    if json:
        output.print_json([vars(finding) for finding in findings])
    else:
        rows = [["ok" if f.ok else "WRONG", f.what, f.found, "" if f.ok else f.fix] for f in findings]
        output.print_table(["", "what", "found", "how to fix it"], rows)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: what was found, whether it is all right, and how to fix it if it is not."""

    what: str
    found: str
    ok: bool = True
    fix: str = ""


def examine(plugin_dirs: Sequence[str] = ()) -> list[Finding]:
    """Checks everything, in the order in which a user would fix it."""
    return [_python(), *_dependencies(), *_device(), *_plugins(plugin_dirs), _runs()]


def _python() -> Finding:
    return Finding("python", platform.python_version(), sys.version_info >= (3, 11), "install Python 3.11 or newer")


def _dependencies() -> list[Finding]:
    """Compares the version of each required distribution with the range that stagelens requires."""
    from packaging.requirements import Requirement

    findings = [Finding("stagelens", importlib.metadata.version("stagelens"))]
    for text in importlib.metadata.requires("stagelens") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        fix = f"pip install '{requirement}'"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(requirement.name, "missing", False, fix))
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        findings.append(Finding(requirement.name, f"{version} (needs {requirement.specifier or 'any'})", fits, fix))
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
        return [Finding("plugins", str(error), False, "give --plugin-dir a directory that exists")]
    findings = []
    for plugin in plugins:
        found = f"{plugin.version} {plugin.status} {plugin.error}".strip()
        findings.append(Finding(f"plugin {plugin.name}", found, plugin.status != "failed", f"fix {plugin.file}"))
    return findings


def _runs() -> Finding:
    from stagelens.runs import runs_folder

    folder = runs_folder()
    nearest = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    return Finding("runs folder", str(folder), writable, "give a writable directory with --runs or STAGELENS_RUNS")
