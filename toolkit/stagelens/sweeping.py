"""Sweeps: many runs over a grid of configs and seeds, the table of what was measured, and the law fitted to it.

A point's folder is named after its content (task, config, seed), so that a repeated sweep runs only what is missing,
and sweeps of the same task share the points that they have in common.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelens.config import Config, as_settings, make_config
from stagelens.errors import EnvironmentFault, StagelensError, UsageError, unknown
from stagelens.executors import Executor, Job, make_executor
from stagelens.experiment import Experiment
from stagelens.grid import Grid, make_grid
from stagelens.host import Host, make_host
from stagelens.laws import Law, fit_law
from stagelens.manifest import load_manifest
from stagelens.measures import Measure, parse_measure
from stagelens.naming import content_name
from stagelens.running import resolve_task
from stagelens.runs import Run, runs_folder
from stagelens.task import Task

if TYPE_CHECKING:
    import pandas

POINTS, SWEEPS, FILE = "points", "sweeps", "sweep.json"  # where `runs.points_of` looks for them
MOST_POINTS = 10_000  # a sweep of more asks whether that is meant


@dataclass(frozen=True)
class Point:
    """One config and seed of a sweep. `settings` are the grid's own, `name` is its folder."""

    settings: dict[str, str]
    config: Config
    seed: int
    name: str


@dataclass(frozen=True)
class Tally:
    """How a sweep stands: `failures` are the points that failed in this call, each with its one-line reason."""

    points: int
    done: int
    found: int  # of those done, the ones that were there before
    failures: dict[str, str]


Watch = Callable[[Tally], None]


@dataclass(frozen=True)
class SweepPlan:
    """A sweep before it starts: every point is known and its config is valid."""

    task: str | type[Experiment]
    kind: type[Experiment]
    preset: str
    base: tuple[str, ...]  # settings of every point, as key=value
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
        return [
            Point(settings, config, seed, self._name(config, seed))
            for settings in self.grid
            for config in [make_config(self.kind.Config, self.kind.presets, self.preset, self._given(settings))]
            for seed in self.seeds
        ]

    @property
    def folder(self) -> Path:
        """Where the points are."""
        return self.runs / POINTS

    def status(self, point: Point) -> str:
        """As in the point's manifest; `missing` where there is none that can be read."""
        try:
            return load_manifest(self.folder / point.name).status
        except StagelensError:
            return "missing"

    def jobs(self) -> list[Job]:
        """What is still to do: a config's missing seeds together where they can be trained as one."""
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
                device=self.device,
                probes=self.probes,
                plugin_dirs=self.plugin_dirs,
            )
            for points in missing.values()
        ]

    def command(self, point: Point) -> str:
        """The command that repeats a point, in its place."""
        task = self.kind.id
        settings = [word for setting in self._given(point.settings) for word in ("--set", setting)]
        words = ["stagelens", "run", task, "--preset", self.preset, *settings, "--seed", str(point.seed)]
        return shlex.join([*words, "--runs", str(self.folder), "--name", point.name, "--resume"])

    def _given(self, settings: Mapping[str, str]) -> list[str]:
        return [*self.base, *(f"{key}={value}" for key, value in settings.items())]

    def _name(self, config: Config, seed: int) -> str:
        content: dict[str, Any] = {"task": self.kind.id, "config": config.model_dump(mode="json"), "seed": seed}
        if self.probes:
            content["probes"] = sorted(self.probes)
        return content_name(self.kind.id, f"seed{seed}", content)


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
    """The points of a sweep. The user's mistakes are told here; more than 10000 points need `yes`."""
    host = host or make_host(plugin_dirs)
    _, kind = resolve_task(task, host)
    given = as_settings(settings)
    make_config(kind.Config, kind.presets, preset, given)
    chosen = make_grid(grid, kind.Config)
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise UsageError(f"seeds {seeds!r}: expected at least one")
    for name in probes or ():
        host.probes[name]
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
    _ = plan.points  # a value that the config refuses is told now
    return plan


def sweep(
    task: str | type[Experiment],
    grid: Any,
    seeds: int | Sequence[int] = 1,
    executor: str | Executor = "local",
    workers: int | None = None,
    *,
    measures: str | Sequence[str] = "loss:final",
    fit: str | Sequence[str] | None = None,
    address: str | None = None,
    results: str = "shared",
    name: str | None = None,
    watch: Watch | None = None,
    **plan: Any,
) -> Sweep:
    """Runs `task` at every point of `grid` that is not there yet, tabulates `measures`, and fits a law in `fit`.

        swept = sl.sweep("emergence/flow", {"T": [64, 128, 256], "d": [16, 64]}, measures="plateau_length", fit="T,d")
        swept.table, swept.law.exponents["T"]

    `grid`: as `make_grid` takes it. `measures`: one or more (see `stagelens.measures`); the first is fitted.
    The other options are those of `plan_sweep`: `preset`, `settings`, `runs`, `probes`, `ensemble`, `yes`, ...
    """
    wanted = [parse_measure(text) for text in ([measures] if isinstance(measures, str) else measures)]
    columns = [key.strip() for key in fit.split(",")] if isinstance(fit, str) else list(fit or ())
    planned = plan_sweep(task, grid, seeds=seeds, **plan)
    check_columns(planned, columns)
    worker = make_executor(executor, workers, address, results) if isinstance(executor, str) else executor
    failures = execute(planned, worker, watch)
    return gather(planned, wanted, columns, failures, name)


def execute(plan: SweepPlan, executor: Executor, watch: Watch | None = None) -> dict[str, str]:
    """Does what is missing; returns the reason for each point that failed, by its name."""
    jobs = plan.jobs()
    found = done = len(plan.points) - sum(len(job.seeds) for job in jobs)
    failures: dict[str, str] = {}
    if watch:
        watch(Tally(len(plan.points), done, found, {}))
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot make {plan.folder}: {error.strerror}; give another folder with --runs"
        ) from None
    with closing(executor.run(jobs)) as outcomes:
        for job, outcome in outcomes:
            names = dict(zip(job.seeds, job.names, strict=True))
            new = {names[seed]: reason for seed, reason in outcome.errors.items()}
            failures |= new
            done += len(job.seeds) - len(new)
            if watch:
                watch(Tally(len(plan.points), done, found, new))
    return failures


def gather(
    plan: SweepPlan,
    measures: Sequence[Measure],
    fit: Sequence[str],
    failures: Mapping[str, str],
    name: str | None = None,
) -> Sweep:
    """Measures every finished point, and fits the law; writes the table, the pictures and `sweep.json`."""
    rows = [_row(plan, point, measures, failures.get(point.name, "")) for point in plan.points]
    swept = Sweep(plan, tuple(measure.text for measure in measures), rows, tuple(fit), name)
    swept.save()
    return swept


def _row(plan: SweepPlan, point: Point, measures: Sequence[Measure], failure: str) -> dict[str, Any]:
    """One point of the table: its keys, seed, measures (None where it has none), how it stands, and where it is."""
    row: dict[str, Any] = {key: _plain(_at(point.config, key)) for key in plan.grid.keys} | {"seed": point.seed}
    status, seconds = plan.status(point), None
    values: dict[str, Any] = {measure.text: None for measure in measures}
    censored = False
    if status == "finished":
        run = Run(plan.folder / point.name, plan.host)
        seconds = run.manifest.seconds
        for number, measure in enumerate(measures):
            measured = measure(run)
            values[measure.text] = measured.value if np.isfinite(measured.value) else None
            censored |= measured.censored and number == 0
    end = {"censored": censored, "status": status, "seconds": seconds, "run": point.name, "error": failure}
    return row | values | end


@dataclass(frozen=True)
class Sweep:
    """A sweep that was run: `table`, `law`, `failed`, `files`; iterating gives the finished runs, for `sl.compare`."""

    plan: SweepPlan
    measures: tuple[str, ...]
    rows: list[dict[str, Any]] = field(repr=False)
    fit: tuple[str, ...] = ()
    name: str | None = None

    @cached_property
    def table(self) -> pandas.DataFrame:
        """One row for each point: keys, `seed`, measures, `censored`, `status`, `seconds`, `run`, `error`."""
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def done(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["status"] == "finished"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The points that failed, each with its settings, its reason and the command that repeats it."""
        return [
            {
                "point": point.settings | {"seed": point.seed},
                "reason": row["error"],
                "command": self.plan.command(point),
            }
            for point, row in zip(self.plan.points, self.rows, strict=True)
            if row["error"]
        ]

    def __len__(self) -> int:
        return len(self.done)

    def __iter__(self) -> Iterator[Run]:
        for row in self.done:
            yield Run(self.plan.folder / row["run"], self.plan.host)

    @cached_property
    def columns(self) -> dict[str, list[float]]:
        """The columns that the law is in, over the finished points: config keys, or features that the task names."""
        return {key: [_value(self.plan, p, key) for p in self._measured_points] for key in self.fit}

    @cached_property
    def law(self) -> Law | None:
        """The law of the first measure in the columns of `fit`; None where none was asked for or can be fitted."""
        return self._law_or_reason[0]

    @property
    def fit_error(self) -> str:
        """Why no law can be fitted, where one was asked for."""
        return self._law_or_reason[1]

    @cached_property
    def _law_or_reason(self) -> tuple[Law | None, str]:
        try:
            return self._fitted(), ""
        except UsageError as error:
            return None, str(error)

    def _fitted(self) -> Law | None:
        if not self.fit:
            return None
        rows = self.measured
        return fit_law(
            self.columns,
            [row[self.measures[0]] for row in rows],
            seeds=[row["seed"] for row in rows],
            censored=[row["censored"] for row in rows],
        )

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The rows of the finished points that have a value of the first measure."""
        return [row for row in self.done if row[self.measures[0]] is not None]

    @property
    def _measured_points(self) -> list[Point]:
        names = {row["run"] for row in self.measured}
        return [point for point in self.plan.points if point.name in names]

    @cached_property
    def folder(self) -> Path:
        """Where the table and the pictures are: named after the grid and the seeds."""
        from stagelens.files import safe_name

        plan = self.plan
        content = {
            "axes": [[axis.keys, axis.rows] for axis in plan.grid.axes],
            "seeds": plan.seeds,
            "preset": plan.preset,
            "settings": plan.base,
        }
        return (
            plan.runs / SWEEPS / (safe_name(self.name) if self.name else content_name(plan.kind.id, "sweep", content))
        )

    @property
    def files(self) -> dict[str, str]:
        """What was written, by kind."""
        figures = {path.stem: str(path) for path in sorted((self.folder / "figures").glob("*.png"))}
        return {kind: str(self.folder / f"table.{kind}") for kind in ("csv", "parquet")} | figures

    def save(self) -> None:
        """Writes table.csv, table.parquet, the pictures and sweep.json."""
        from stagelens.figures.sweeps import write_figures
        from stagelens.files import write_text, writing
        from stagelens.plain import json_text

        try:
            (self.folder / "figures").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(f"cannot make {self.folder}: {error.strerror}; give another --runs") from None
        with writing(self.folder / "table.csv") as aside:
            self.table.to_csv(aside, index=False)
        with writing(self.folder / "table.parquet") as aside:
            self.table.to_parquet(aside, index=False)
        write_figures(self, self.folder / "figures")
        write_text(self.folder / FILE, json_text(self.to_dict()) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """What `stagelens sweep --json` prints."""
        return {
            "task": self.plan.kind.id,
            "sweep": str(self.folder),
            "points": len(self.rows),
            "done": len(self.done),
            "failed": len(self.failed),
            "censored": sum(row["censored"] for row in self.rows),
            "measures": list(self.measures),
            "table": self.rows,
            "fit": self.law.to_dict() if self.law else None,
            "fit_error": self.fit_error,
            "failures": self.failed,
            "files": self.files,
        }


def check_columns(plan: SweepPlan, columns: Sequence[str]) -> None:
    """A law is in numeric config keys, or in features that the task names."""
    if not columns:
        return
    first = plan.points[0]
    features = plan.kind(first.config, first.seed).features()
    for key in columns:
        if key in features:
            continue
        if key.partition(".")[0] not in plan.kind.Config.model_fields:
            known = [*plan.grid.keys, *features]
            raise unknown("column to fit", key, known, "a law is in keys of the grid or features of the task")
        if not isinstance(_at(first.config, key), int | float):
            raise UsageError(f"--fit {key!r}: its values are no numbers ({_at(first.config, key)!r})")


def _value(plan: SweepPlan, point: Point, column: str) -> float:
    features = plan.kind(point.config, point.seed).features()
    return float(features[column] if column in features else _at(point.config, column))


def _at(config: Any, key: str) -> Any:
    """The value of a config key, nested ones with dots."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def _plain(value: Any) -> Any:
    """A value that a table can hold: numbers, booleans and texts as they are, anything else as text."""
    return value if isinstance(value, int | float | str) else str(value)
