"""Sweeps: many runs over a grid of configs and seeds, their table, and the power law fitted to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.base import UsageError, content_name, make_folder, noting, safe_name, save_sealed, writing
from stagelens.experiments import Experiment
from stagelens.runs import SWEEP_FILE, SWEEPS, Run
from stagelens.sweeps.checking import check_measures
from stagelens.sweeps.executors import Executor, make_executor
from stagelens.sweeps.laws import Law, fit_law
from stagelens.sweeps.measures import Measure, Measured, parse_measure
from stagelens.sweeps.plan import Point, SweepPlan, check_columns, column_value, parse_columns, plan_sweep, setting_at

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Tally:
    """The progress of a sweep. `failures` are the grid points that failed since the last tally, with their reasons."""

    points: int
    done: int
    found: int  # of those done, the ones that were finished before
    failures: dict[str, str]


Watch = Callable[[Tally], None]


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
    """Runs `task` at every grid point that is missing, tabulates sweep metrics, and fits a power law.

        swept = sl.sweep("emergence/flow", {"T": [64, 128, 256], "d": [16, 64]}, measures="plateau_length", fit="T,d")
        swept.table, swept.law.exponents["T"]

    Args:
        grid: A mapping from config keys to values, a yaml file, or texts such as `T=log:10:1000:5`.
        measures: Sweep metrics, such as `loss:final` or `transition1`; the power law is fitted to the first.
        fit: The config keys, or features of the task, that the power law is in.
        plan: The arguments of `plan_sweep`: `preset`, `settings`, `runs`, `probes`, `ensemble`, `yes`, ...
    """
    wanted = [parse_measure(text) for text in ([measures] if isinstance(measures, str) else measures)]
    columns = parse_columns(fit)
    planned = plan_sweep(task, grid, seeds=seeds, **plan)
    check_columns(planned, columns)
    check_measures(planned, wanted)
    worker = make_executor(executor, workers, address, results) if isinstance(executor, str) else executor
    if planned.warning:
        warnings.warn(planned.warning, stacklevel=2)
    failures = execute(planned, worker, watch, wanted)
    return gather(planned, wanted, columns, failures, name)


def execute(
    plan: SweepPlan, executor: Executor, watch: Watch | None = None, measures: Sequence[Measure] = ()
) -> dict[str, str]:
    """Runs the grid points that are missing. Returns the reason for each one that failed, by its name.

    The first finished grid point is measured at once. So a sweep metric that the runs do not have, or that means
    several curves, is an error then and not at the end.
    """
    plan.set_aside()
    jobs = plan.jobs()
    there = next((point for point in plan.points if plan.status(point) == "finished"), None)
    untried = bool(measures) and there is None
    if there is not None:
        _measured(Run(plan.folder / there.name, plan.host), measures)
    found = done = len(plan.points) - sum(len(job.seeds) for job in jobs)
    failures: dict[str, str] = {}
    if watch:
        watch(Tally(len(plan.points), done, found, {}))
    make_folder(plan.folder, "give another directory with --runs")
    with closing(executor.run(jobs)) as outcomes:
        for job, outcome in outcomes:
            names = dict(zip(job.seeds, job.names, strict=True))
            new = {names[seed]: reason for seed, reason in outcome.errors.items()}
            failures |= new
            done += len(job.seeds) - len(new)
            if watch:
                watch(Tally(len(plan.points), done, found, new))
            if untried and (ended := [name for name in job.names if name not in new]):
                untried = False
                _measured(Run(plan.folder / ended[0], plan.host), measures)
    return failures


def gather(
    plan: SweepPlan,
    measures: Sequence[Measure],
    fit: Sequence[str],
    failures: Mapping[str, str],
    name: str | None = None,
) -> Sweep:
    """Measures every finished grid point and fits the power law; writes the table, the figures and `sweep.json`."""
    rows = [_row(plan, point, measures, failures.get(point.name, "")) for point in plan.points]
    swept = Sweep(plan, tuple(measure.text for measure in measures), rows, tuple(fit), name)
    swept.save()
    return swept


def _row(plan: SweepPlan, point: Point, measures: Sequence[Measure], failure: str) -> dict[str, Any]:
    """Returns one row of the table: keys, seed, metrics (None with a `reason`), status, and the name of the run."""
    row: dict[str, Any] = {key: _cell(setting_at(point.config, key)) for key in plan.grid.keys} | {"seed": point.seed}
    status, seconds = "failed" if failure else plan.status(point), None
    found = [Measured(nan)] * len(measures)
    if status == "finished":
        run = Run(plan.folder / point.name, plan.host)
        found, seconds = _measured(run, measures), run.manifest.seconds
    for measure, measured in zip(measures, found, strict=True):
        row[measure.text] = measured.value if isfinite(measured.value) else None
    row["censored"] = found[0].censored
    for measure, measured in zip(measures[1:], found[1:], strict=True):
        if measure.can_be_censored:
            row[f"censored:{measure.text}"] = measured.censored
    reasons = [f"{m.text}: {one.reason}" for m, one in zip(measures, found, strict=True) if one.reason]
    row |= {"status": status, "seconds": seconds, "run": point.name, "error": failure}
    return row | {"reason": "; ".join(reasons)}


def _measured(run: Run, measures: Sequence[Measure]) -> list[Measured]:
    return [measure(run) for measure in measures]


@dataclass(frozen=True)
class Sweep:
    """A sweep that was run: `table`, `law`, `failed`, `files`; iterating gives the finished runs, for `sl.compare`."""

    plan: SweepPlan
    measures: tuple[str, ...]
    rows: list[dict[str, Any]] = field(repr=False)
    fit: tuple[str, ...] = ()
    name: str | None = None
    noted: dict[str, str] = field(default_factory=dict, repr=False)  # what plugin code, or a figure, raised

    @cached_property
    def problems(self) -> dict[str, list[str]]:
        """What failed in finished grid points, such as a probe: each problem with the names of its runs."""
        found: dict[str, list[str]] = {line: [] for line in self.noted.values()}
        for run in self:
            self.noted.update(run.manifest.plugin_problems)
            for line in run.problems.values():
                found.setdefault(line, []).append(run.name)
        return found

    @cached_property
    def table(self) -> pandas.DataFrame:
        """One row per grid point: keys, `seed`, metrics, `censored`, `status`, `seconds`, `run`, `error`, `reason`."""
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def done(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["status"] == "finished"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The grid points that failed, each with its settings, the reason and the command that repeats it."""
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
        """The columns of the power law over the finished grid points: config keys, or features of the task."""
        return {key: [column_value(self.plan, p, key) for p in self._measured_points] for key in self.fit}

    @cached_property
    def law(self) -> Law | None:
        """The power law of the first metric in the columns of `fit`; None without `fit` or if it is impossible."""
        return self._law_or_reason[0]

    @property
    def fit_error(self) -> str:
        """Why the power law cannot be fitted; empty if it can, or without `fit`."""
        return self._law_or_reason[1]

    @cached_property
    def _law_or_reason(self) -> tuple[Law | None, str]:
        first = self.plan.points[0]
        with noting(self.noted, "fit", self.plan.kind(first.config, first.seed)):
            try:
                return self._fitted(), ""
            except UsageError as error:
                return None, str(error)
        return None, self.noted["fit"]

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

    def censored_in(self, measure: str) -> str:
        """Returns the column that says where `measure` is censored. A metric that is always reached has none."""
        return "censored" if measure == self.measures[0] else f"censored:{measure}"

    @property
    def censored(self) -> dict[str, int]:
        """How many grid points never reached a metric, for each metric that some did not reach."""
        counts = {m: sum(row.get(self.censored_in(m), False) for row in self.rows) for m in self.measures}
        return {measure: count for measure, count in counts.items() if count}

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The rows of the finished grid points that have a value of the first metric."""
        return [row for row in self.done if row[self.measures[0]] is not None]

    @property
    def _measured_points(self) -> list[Point]:
        names = {row["run"] for row in self.measured}
        return [point for point in self.plan.points if point.name in names]

    @cached_property
    def folder(self) -> Path:
        """The directory of table and figures. Without `name` it is named after grid, seeds and settings."""
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
        """Writes table.csv, table.parquet, the figures and sweep.json."""
        from stagelens.figures import write_sweep_figures

        make_folder(self.folder / "figures", "give another directory with --runs")
        with writing(self.folder / "table.csv") as aside:
            self.table.to_csv(aside, index=False)
        with writing(self.folder / "table.parquet") as aside:
            self.table.to_parquet(aside, index=False)
        with noting(self.noted, "figures"):
            write_sweep_figures(self, self.folder / "figures")
        save_sealed(self.folder / SWEEP_FILE, self.to_dict())

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
            "problems": self.problems,
            "files": self.files,
        }


def _cell(value: Any) -> Any:
    """Returns a value that a table can hold: numbers, booleans and texts as they are, others as text."""
    return value if isinstance(value, int | float | str) else str(value)
