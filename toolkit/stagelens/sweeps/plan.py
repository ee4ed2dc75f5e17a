"""The plan of a sweep: its grid points, each a config and a seed, all validated before the first one runs.

The directory of a grid point is named after its content (task, config, seed). So a repeated sweep runs only what is
missing, and sweeps of the same task share grid points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stagelens.base import StagelensError, UsageError, content_name, unknown
from stagelens.experiments import Config, Experiment, Task, as_settings, make_config
from stagelens.host import Host, make_host
from stagelens.runs import (
    POINTS,
    defects_in,
    free_name,
    held,
    load_manifest,
    run_call,
    run_command,
    runs_folder,
)
from stagelens.sweeps.executors import Job
from stagelens.sweeps.grid import Grid, make_grid
from stagelens.training import resolve_task

ASIDE = {"defective": ".defective", "other": ".other"}  # by status: what a run that has to be repeated is renamed to
MOST_POINTS = 10_000  # a larger sweep needs `--yes`


@dataclass(frozen=True)
class Point:
    """A grid point: one config and seed of a sweep. `settings` are those of the grid, `name` is its directory."""

    settings: dict[str, str]
    config: Config
    seed: int
    name: str


@dataclass(frozen=True)
class SweepPlan:
    """A sweep before it starts: every grid point is known, and its config is valid."""

    task: str | type[Experiment]
    kind: type[Experiment]
    preset: str
    base: tuple[str, ...]  # settings of every grid point, as key=value
    grid: Grid
    seeds: tuple[int, ...]
    runs: Path
    device: str
    probes: tuple[str, ...] | None
    plugin_dirs: tuple[str, ...]
    host: Host
    ensemble: bool = True

    @cached_property
    def points(self) -> list[Point]:
        """Every config with every seed. A value that the grid has twice gives one grid point."""
        found: dict[str, Point] = {}
        for settings in self.grid:
            config = make_config(self.kind.Config, self.kind.presets, self.preset, self._given(settings))
            for seed in self.seeds:
                name = self._name(self.kind.id, config.model_dump(mode="json"), seed)
                found.setdefault(name, Point(settings, config, seed, name))
        return list(found.values())

    @property
    def folder(self) -> Path:
        """The directory of the grid points."""
        return self.runs / POINTS

    def status(self, point: Point) -> str:
        """Returns the status in the manifest of a grid point, or `missing` if it cannot be read.

        It is `defective` if the numbers are wrong, `other` if it is a run of another task, config or seed.
        """
        try:
            manifest = load_manifest(self.folder / point.name)
        except StagelensError:
            return "missing"
        if self._name(manifest.task, manifest.config, manifest.seed) != point.name:
            return "other"
        return "defective" if manifest.vectorized is None and point.name in self._defects else manifest.status

    @cached_property
    def _defects(self) -> dict[str, str]:
        return defects_in(self.folder)

    @property
    def warning(self) -> str:
        """Which grid points have wrong numbers, why, and what `execute` does about it; empty if none has."""
        statuses = {point.name: self.status(point) for point in self.points}
        lines = []
        for status, suffix in ASIDE.items():
            wrong = [name for name, found in statuses.items() if found == status]
            if not wrong:
                continue
            what = "have wrong numbers" if status == "defective" else "hold a run of another task, config or seed"
            first = self._defects[wrong[0]] if status == "defective" else wrong[0]
            again = f"they are run again, and the old ones are renamed to POINT{suffix}"
            lines.append(f"{len(wrong)} of {len(statuses)} points {what}; {again} (of the first: {first})")
        return "; ".join(lines)

    def set_aside(self) -> None:
        """Renames the runs with wrong numbers, so that they are run again. A run that is being written is an error."""
        for point in self.points:
            if self.status(point) in ASIDE:
                folder = self.folder / point.name
                with held(folder):
                    if suffix := ASIDE.get(self.status(point)):  # else another sweep has done it
                        folder.rename(free_name(self.folder / f"{point.name}{suffix}"))

    def jobs(self) -> list[Job]:
        """Returns the jobs to do. The missing seeds of a config are one job if they may be vectorized."""
        missing: dict[tuple[str, ...], list[Point]] = {}
        together = self.ensemble and issubclass(self.kind, Task)
        for point in self.points:
            if self.status(point) != "finished":
                key = (*point.settings.values(), *([] if together else [str(point.seed)]))
                missing.setdefault(key, []).append(point)
        return [
            Job(
                task=self.task,
                preset=self.preset,
                settings=dict(setting.split("=", 1) for setting in self._given(points[0].settings)),
                seeds=tuple(point.seed for point in points),
                names=tuple(point.name for point in points),
                folder=str(self.folder.resolve()),
                device=self.device if issubclass(self.kind, Task) else "cpu",  # a flow is integrated on the CPU
                probes=self.probes,
                plugin_dirs=self.plugin_dirs,
            )
            for points in missing.values()
        ]

    def command(self, point: Point) -> str:
        """Returns the command that repeats a grid point; a Python call for a class that no plugin registers."""
        given = dict(setting.split("=", 1) for setting in self._given(point.settings))
        if not isinstance(self.task, str) and not self.plugin_dirs and self._has_no_plugin:
            place = {"runs": str(self.folder), "name": point.name, "resume": True}
            options = {"probes": self.probes, "device": self.device, **place}
            return run_call(self.kind.__name__, self.preset, given, point.seed, **options)
        words = ["--probes", ",".join(self.probes)] if self.probes else []
        words += ["--device", self.device] if self.device != "auto" else []
        words += ["--runs", str(self.folder), "--name", point.name, "--resume"]
        return run_command(self.kind.id, self.preset, given, point.seed, self.plugin_dirs, words)

    @property
    def _has_no_plugin(self) -> bool:
        """True if no plugin registers the task: it was given as a class."""
        return self.host.tasks.owners[self.kind.id] not in {plugin.name for plugin in self.host.plugins}

    def _given(self, settings: Mapping[str, str]) -> list[str]:
        return [*self.base, *(f"{key}={value}" for key, value in settings.items())]

    def _name(self, task: str, config: Mapping[str, Any], seed: int) -> str:
        """Returns the directory name of a grid point, which depends on its content."""
        content: dict[str, Any] = {"task": task, "config": config, "seed": seed}
        if self.probes:
            content["probes"] = sorted(self.probes)
        return content_name(task, f"seed{seed}", content)


def plan_sweep(
    task: str | type[Experiment],
    grid: Any,
    *,
    seeds: int | Sequence[int] = 1,
    preset: str = "quick",
    settings: Sequence[str] | Mapping[str, Any] = (),
    runs: str | Path | None = None,
    device: str = "auto",
    probes: Sequence[str] | None = None,
    ensemble: bool = True,
    yes: bool = False,
    host: Host | None = None,
    plugin_dirs: Sequence[str] = (),
) -> SweepPlan:
    """Returns the plan of a sweep. A user's mistakes are errors here; more than 10000 grid points need `yes`."""
    host = host or make_host(plugin_dirs)
    _, kind = resolve_task(task, host)
    given = as_settings(settings)
    make_config(kind.Config, kind.presets, preset, given)
    chosen = make_grid(grid, kind.Config)
    if both := [setting for setting in given if setting.partition("=")[0] in chosen.keys]:
        raise UsageError(f"--set {both[0]} is a key of the grid too; give it in one place")
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise UsageError(f"seeds {seeds!r}: expected at least one")
    host.probe_names(probes)  # raises if one is unknown
    if (count := chosen.size * len(numbers)) > MOST_POINTS and not yes:
        raise UsageError(
            f"the grid has {count:,} points ({chosen.size:,} configs, {len(numbers)} seeds): add --yes to run them"
        )
    plan = SweepPlan(
        task=task,
        kind=kind,
        preset=preset,
        base=tuple(given),
        grid=chosen,
        seeds=numbers,
        runs=runs_folder(runs),
        device=device,
        probes=tuple(probes) if probes else None,
        plugin_dirs=tuple(plugin_dirs),
        host=host,
        ensemble=ensemble,
    )
    _ = plan.points  # a value that the config refuses is an error now
    return plan


def parse_columns(fit: str | Sequence[str] | None) -> list[str]:
    """Returns the columns of a power-law fit, given as a list or as a text with commas between them."""
    columns = [key.strip() for key in fit.split(",") if key.strip()] if isinstance(fit, str) else list(fit or ())
    if isinstance(fit, str) and not columns:
        raise UsageError(f"--fit {fit!r}: expected keys of the grid, or features of the task, as T,d")
    return columns


def check_columns(plan: SweepPlan, columns: Sequence[str]) -> None:
    """Raises an error unless each column is a numeric config key with several values, or a feature of the task."""
    if not columns:
        return
    first = plan.points[0]
    features = plan.kind(first.config, first.seed).features()
    for key in columns:
        if key in features:
            continue
        if key.partition(".")[0] not in plan.kind.Config.model_fields:
            known = [*plan.grid.keys, *features]
            raise unknown(
                "column to fit", key, known, "a power law is fitted in keys of the grid or features of the task"
            )
        value = setting_at(first.config, key)
        if not isinstance(value, int | float):
            raise UsageError(f"--fit {key!r}: its values are no numbers ({value!r})")
        if all(setting_at(point.config, key) == value for point in plan.points):
            raise UsageError(f"--fit {key!r}: it is {value!r} at every point; its exponent needs two values or more")


def column_value(plan: SweepPlan, point: Point, column: str) -> float:
    """Returns the value of a column of the fit at a grid point: a feature of the task, or a config key."""
    features = plan.kind(point.config, point.seed).features()
    return float(features[column] if column in features else setting_at(point.config, column))


def setting_at(config: Any, key: str) -> Any:
    """Returns the value of a config key; dots separate the parts of a nested key."""
    for part in key.split("."):
        config = getattr(config, part)
    return config
