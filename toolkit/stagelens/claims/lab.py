"""The lab trains the runs that claims need, once, and caches them.

The directory of a run is named after everything that its numbers depend on. These are the task, its config, the seed,
the probes, the device and the versions of the libraries. The source of the toolkit, of the probes and of the task's
package counts too. So a cached run is reused until one of these changes, and claims that need the same run share it.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stagelens.base import StagelensError, content_name, make_folder
from stagelens.claims.claim import largest_budget

if TYPE_CHECKING:
    from stagelens.experiments import Experiment
    from stagelens.host import Host
    from stagelens.runs import Run

V = TypeVar("V")
FIRST_SEED = 10  # claims judge on the seeds 10, 11, 12, ...; the seeds below are for finding settings
CACHE_ENVIRONMENT = "STAGELENS_CACHE"
# Modules and directories of a package on which the numbers of a run do not depend. All others enter the cache key, new
# ones too. A test runs every task without a report, and fails if that imports one of these.
NO_PART_IN_RUNS = frozenset({"claims", "figures", "report", "testing", "cli"})  # also `text_claims`
# The rooms of the toolkit that only use finished runs. In a plugin, a run may depend on a file of such a name.
NO_PART_IN_RUNS_HERE = NO_PART_IN_RUNS | {"api", "comparing", "integrations", "sweeps"}
# Those that only show verdicts.
NO_PART_IN_VERDICTS = frozenset({"figures", "report", "testing", "cli", "api", "integrations"})

Watch = Callable[[str, float, float], None]  # (what is run, step, steps)


def cache_folder(given: str | Path | None = None) -> Path:
    """Returns the cache directory: as given, else `$STAGELENS_CACHE`, else the user's cache on this system."""
    if chosen := given or os.environ.get(CACHE_ENVIRONMENT):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "stagelens" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "stagelens"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stagelens"


@dataclass(frozen=True)
class Lab:
    """Gives a claim its runs.

    `seeds` are the seeds to use. `budget` names the preset of the runs; if a task has no preset of that name, the one
    of the next smaller budget is used.
    """

    host: Host
    cache: Path
    budget: str = "quick"
    seeds: tuple[int, ...] = tuple(range(FIRST_SEED, FIRST_SEED + 3))
    watch: Watch | None = None
    _opened: dict[Path, Run] = field(default_factory=dict)

    def run(
        self,
        task: str | type[Experiment],
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
        *,
        preset: str | None = None,
        probes: Sequence[str] | None = None,
    ) -> Run:
        """Returns the finished run of `task` with these settings: cached, resumed, or trained now."""
        from filelock import FileLock

        from stagelens.runs import load
        from stagelens.training import run

        preset = preset or self._preset(task)
        folder = self.cache / "runs" / self._name(task, settings or {}, seed, preset, probes)
        if folder in self._opened:
            return self._opened[folder]
        make_folder(folder.parent, "give another --cache")
        with FileLock(folder.with_name(f".{folder.name}.lock")):  # another process that needs this run waits here
            if not (folder / "run.json").exists() or load(folder).status != "finished":
                done = run(
                    task,
                    preset=preset,
                    settings=settings or {},
                    seed=seed,
                    runs=folder.parent,
                    name=folder.name,
                    resume=True,
                    probes=probes,
                    host=self.host,
                    progress=self._progress(task, seed),
                )
                if done.manifest.status == "interrupted":
                    raise KeyboardInterrupt
                if done.manifest.status != "finished":
                    raise StagelensError(f"the run {folder.name!r} failed: {done.manifest.error}")
        self._opened[folder] = load(folder, host=self.host)
        return self._opened[folder]

    def each_seed(
        self,
        task: str | type[Experiment],
        settings: Mapping[str, Any] | None = None,
        *,
        preset: str | None = None,
        probes: Sequence[str] | None = None,
    ) -> dict[int, Run]:
        """Returns the same run for each of `seeds`."""
        return {seed: self.run(task, settings, seed, preset=preset, probes=probes) for seed in self.seeds}

    def with_seeds(self, count: int) -> Lab:
        """Returns this lab, with the same cache, for a claim that needs `count` seeds."""
        return replace(self, seeds=tuple(range(FIRST_SEED, FIRST_SEED + count)))

    def of_budget(self, values: Mapping[str, V]) -> V:
        """Returns the value of the lab's budget; if `values` has none, that of the next smaller budget.

        steps = lab.of_budget({"quick": 400, "long": 20_000})
        """
        found = largest_budget(self.budget, values)
        if found is None:
            raise StagelensError(f"no value for budget {self.budget!r} or a smaller one: there are {', '.join(values)}")
        return values[found]

    def _preset(self, task: str | type[Experiment]) -> str:
        kind = self.host.task(task).load() if isinstance(task, str) else task
        return largest_budget(self.budget, kind.presets) or self.budget

    def _progress(self, task: str | type[Experiment], seed: int) -> Callable[[float, float, float | None], None] | None:
        watch = self.watch
        if watch is None:
            return None
        label = f"{task if isinstance(task, str) else task.id} seed {seed}"
        return lambda step, steps, loss: watch(label, step, steps)  # noqa: ARG005

    def _name(
        self,
        task: str | type[Experiment],
        settings: Mapping[str, Any],
        seed: int,
        preset: str,
        probes: Sequence[str] | None,
    ) -> str:
        """Returns the name of the directory: a readable part, then a digest of what the numbers depend on."""
        from stagelens.base import resolve_device
        from stagelens.experiments import as_settings, make_config
        from stagelens.runs import versions

        kind = self.host.task(task).load() if isinstance(task, str) else task
        used = self.host.probe_names(probes, getattr(kind, "probes", None))
        makers = [kind, *(self.host.probes[name].load() for name in used)]
        depends_on = {
            "task": kind.id,
            "config": make_config(kind.Config, kind.presets, preset, as_settings(settings)).model_dump(mode="json"),
            "seed": seed,
            "probes": sorted(used),
            "device": str(resolve_device("auto")),
            "versions": versions(),
            "source": sorted({digest_of(find_source("stagelens")), *map(digest_of_class, makers)}),
        }
        return content_name(kind.id, f"{preset}-seed{seed}", depends_on)


def digest_of_class(kind: type[Any]) -> str:
    """Returns a digest of the source of `kind`; of a class without source, as in a notebook, this process' id."""
    try:
        return digest_of(source_of(kind))
    except OSError:
        return f"process {os.getpid()}"


def source_of(kind: type[Any]) -> Path:
    """Returns the directory of the package that defines `kind`, or its file if it is not in a package."""
    package = kind.__module__.partition(".")[0]
    if "." in kind.__module__ or package == getattr(sys.modules[kind.__module__], "__package__", None):
        with suppress(StagelensError):  # a directory of tests is no package with a source of its own
            return find_source(package)
    return Path(inspect.getfile(kind))


@cache
def find_source(package: str) -> Path:
    """Returns the directory of an importable package. The package is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise StagelensError(f"package {package!r} has no source to tell whether it changed")
    return Path(spec.origin).parent


@cache
def digest_of(source: Path) -> str:
    """Returns a digest of the Python source that decides a run's numbers: a file, or the `run_files` of a package."""
    digest = hashlib.sha256()
    for file in run_files(source):
        name = file.relative_to(source).as_posix() if source.is_dir() else file.name
        digest.update(f"{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def verdict_digest(claim: type[Any], host: Host) -> str:
    """Returns a digest of what the verdict of a claim depends on: the code of the claim and of what it uses.

    The code of a class without source, as in a notebook, is this process' id.
    """
    from stagelens.base import digest
    from stagelens.runs import versions

    makers = [claim, *(host.probes[name].load() for name in host.probe_names(None, None))]
    sources, code = {find_source("stagelens")}, {}
    for maker in makers:
        try:
            sources.add(source_of(maker))
        except OSError:
            code[maker.__qualname__] = f"process {os.getpid()}"
    for source in sources:
        for file in source.glob("**/*.py") if source.is_dir() else [source]:
            path = file.relative_to(source.parent)
            if path.with_suffix("").parts[1:2] not in [(name,) for name in NO_PART_IN_VERDICTS]:
                code[path.as_posix()] = file.read_text(encoding="utf-8")
    return digest({"code": code, "versions": versions()})


def run_files(source: Path) -> list[Path]:
    """Returns the Python files that the numbers of a run may depend on: `source`, or those of the package in it."""
    if not source.is_dir():
        return [source]
    here = source == find_source("stagelens")
    aside = NO_PART_IN_RUNS_HERE if here else NO_PART_IN_RUNS

    def counts(file: Path) -> bool:
        top = file.relative_to(source).with_suffix("").parts[0]
        return top not in aside and (here or top.rpartition("_")[2] not in aside)

    return sorted(filter(counts, source.glob("**/*.py")))
