"""Sweeps: many runs over a grid of configs and seeds, the table of what was measured, and the law fitted to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.base import EnvironmentFault, UsageError, content_name, noting
from stagelens.experiments import Experiment
from stagelens.runs import SWEEP_FILE, SWEEPS, Run
from stagelens.sweeps.executors import Executor, make_executor
from stagelens.sweeps.laws import Law, fit_law
from stagelens.sweeps.measures import Measure, Measured, parse_measure
from stagelens.sweeps.plan import Point, SweepPlan, check_columns, column_value, parse_columns, plan_sweep, setting_at

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Tally:
    """How a sweep stands: `failures` are the points that failed in this call, each with its one-line reason."""

    points: int
    done: int
    found: int  # of those done, the ones that were there before
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
    """Runs `task` at every point of `grid` that is not there yet, tabulates `measures`, and fits a law in `fit`.

        swept = sl.sweep("emergence/flow", {"T": [64, 128, 256], "d": [16, 64]}, measures="plateau_length", fit="T,d")
        swept.table, swept.law.exponents["T"]

    `grid`: as `make_grid` takes it. `measures`: one or more (see `stagelens.sweeps.measures`); the first is fitted.
    The other options are those of `plan_sweep`: `preset`, `settings`, `runs`, `probes`, `ensemble`, `yes`, ...
    """
    wanted = [parse_measure(text) for text in ([measures] if isinstance(measures, str) else measures)]
    columns = parse_columns(fit)
    planned = plan_sweep(task, grid, seeds=seeds, **plan)
    check_columns(planned, columns)
    worker = make_executor(executor, workers, address, results) if isinstance(executor, str) else executor
    if planned.warning:
        warnings.warn(planned.warning, stacklevel=2)
    failures = execute(planned, worker, watch, wanted)
    return gather(planned, wanted, columns, failures, name)


def execute(
    plan: SweepPlan, executor: Executor, watch: Watch | None = None, measures: Sequence[Measure] = ()
) -> dict[str, str]:
    """Does what is missing; returns the reason for each point that failed, by its name.

    The first finished point is measured at once, before anything runs if there is one already: a measure that the
    runs do not have, or that means several curves, is reported then and not at the end.
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
    """Measures every finished point, and fits the law; writes the table, the pictures and `sweep.json`."""
    rows = [_row(plan, point, measures, failures.get(point.name, "")) for point in plan.points]
    swept = Sweep(plan, tuple(measure.text for measure in measures), rows, tuple(fit), name)
    swept.save()
    return swept


def _row(plan: SweepPlan, point: Point, measures: Sequence[Measure], failure: str) -> dict[str, Any]:
    """One point of the table: its keys, seed, measures (None, and the `reason`), its status, and where it is."""
    row: dict[str, Any] = {key: _plain(setting_at(point.config, key)) for key in plan.grid.keys} | {"seed": point.seed}
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
    noted: dict[str, str] = field(default_factory=dict, repr=False)  # what plugin code, or a figure, raised afterwards

    @cached_property
    def problems(self) -> dict[str, list[str]]:
        """What failed in points that are finished otherwise, such as a probe: each line with the runs that have it."""
        found: dict[str, list[str]] = {line: [] for line in self.noted.values()}
        for run in self:
            self.noted.update(run.manifest.plugin_problems)
            for line in run.problems.values():
                found.setdefault(line, []).append(run.name)
        return found

    @cached_property
    def table(self) -> pandas.DataFrame:
        """One row for each point: keys, `seed`, measures, `censored`, `status`, `seconds`, `run`, `error`, `reason`."""
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
        return {key: [column_value(self.plan, p, key) for p in self._measured_points] for key in self.fit}

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
        """The column that says where `measure` is censored; one that is always reached has none."""
        return "censored" if measure == self.measures[0] else f"censored:{measure}"

    @property
    def censored(self) -> dict[str, int]:
        """How many points never reached a measure, of each measure that some did not reach."""
        counts = {m: sum(row.get(self.censored_in(m), False) for row in self.rows) for m in self.measures}
        return {measure: count for measure, count in counts.items() if count}

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
        from stagelens.base import safe_name

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
        from stagelens.base import save_sealed, writing
        from stagelens.figures import write_sweep_figures

        try:
            (self.folder / "figures").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(f"cannot make {self.folder}: {error.strerror}; give another --runs") from None
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


def _plain(value: Any) -> Any:
    """A value that a table can hold: numbers, booleans and texts as they are, anything else as text."""
    return value if isinstance(value, int | float | str) else str(value)
